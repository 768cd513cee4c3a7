// Affine maps [a, b, c, d, x, y]: place ↦ (a·u + b·v + x, c·u + d·v + y), in pixels from the centre of an image.

const radians = (degrees) => (degrees * Math.PI) / 180;

/** Stretch, scale, shear, turn and move, in this order. */
export function affineOf({ x = 0, y = 0, angle = 0, scale = 1, stretch = 1, shear = 0 }) {
  const [cos, sin] = [Math.cos(radians(angle)), Math.sin(radians(angle))];
  const [across, down] = [scale * Math.sqrt(stretch), scale / Math.sqrt(stretch)];
  const slant = -shear * down;
  return [across * cos, slant * cos + down * sin, -across * sin, down * cos - slant * sin, x, y];
}

export function inverse([a, b, c, d, x, y]) {
  const area = a * d - b * c;
  const [e, f, g, h] = [d / area, -b / area, -c / area, a / area];
  return [e, f, g, h, -(e * x + f * y), -(g * x + h * y)];
}

/** Pixel (u, v) of the result shows the place `map` · (u, v) of the image, by bilinear interpolation; outside is 0. */
export function sample(picture, [a, b, c, d, x, y]) {
  const { channels, height, width, data } = picture;
  const size = height * width;
  const result = new Float32Array(data.length);
  const [middleX, middleY] = [(width - 1) / 2, (height - 1) / 2];
  for (let row = 0; row < height; row += 1) {
    for (let column = 0; column < width; column += 1) {
      const [u, v] = [column - middleX, row - middleY];
      const [px, py] = [a * u + b * v + x + middleX, c * u + d * v + y + middleY];
      const [left, top] = [Math.floor(px), Math.floor(py)];
      const [right, low] = [px - left, py - top];
      const corners = [[left, top, (1 - right) * (1 - low)], [left + 1, top, right * (1 - low)],
        [left, top + 1, (1 - right) * low], [left + 1, top + 1, right * low]];
      for (const [i, j, weight] of corners) {
        if (i < 0 || i >= width || j < 0 || j >= height) continue;
        for (let k = 0; k < channels; k += 1) result[k * size + row * width + column] += weight * data[k * size + j * width + i];
      }
    }
  }
  return { ...picture, data: result };
}

/** An image scaled, sheared, turned and moved, in this order. */
export function transformed(picture, { rotate = 0, shear = 0, scale = 1, shift_x: right = 0, shift_y: down = 0 }) {
  if (rotate === 0 && shear === 0 && scale === 1 && right === 0 && down === 0) return picture;
  const [cos, sin] = [Math.cos(radians(rotate)), Math.sin(radians(rotate))];
  const [a, b, c, d] = [(cos + shear * sin) / scale, (shear * cos - sin) / scale, sin / scale, cos / scale];
  return sample(picture, [a, b, c, d, -(a * right + b * down), -(c * right + d * down)]);
}
