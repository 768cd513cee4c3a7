// Similarities of the plane as [x, y, scale · cos, scale · sin]; a turn is counter-clockwise as an image is seen.

export function similarityOf({ x = 0, y = 0, radians = 0, scale = 1 }) {
  return [x, y, scale * Math.cos(radians), scale * Math.sin(radians)];
}

/** First `inner`, then `outer`. */
export function compose([x, y, cos, sin], [u, v, innerCos, innerSin]) {
  return [cos * u + sin * v + x, cos * v - sin * u + y, cos * innerCos - sin * innerSin, cos * innerSin + sin * innerCos];
}

export function inverse([x, y, a, b]) {
  const square = a * a + b * b;
  const [cos, sin] = [a / square, -b / square];
  return [-(cos * x + sin * y), sin * x - cos * y, cos, sin];
}

/** x, y, the turn in radians, and the logarithm of the scale. */
export const log = ([x, y, cos, sin]) => [x, y, Math.atan2(sin, cos), 0.5 * Math.log(cos * cos + sin * sin)];

export const exp = ([x, y, radians, logScale]) => similarityOf({ x, y, radians, scale: Math.exp(logScale) });

export const turnOf = ([, , cos, sin]) => Math.atan2(sin, cos);

export const scaleOf = ([, , cos, sin]) => Math.sqrt(cos * cos + sin * sin);
