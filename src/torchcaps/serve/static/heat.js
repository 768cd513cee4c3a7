// Heat map over a drawing: the value of each grid position, spread over its receptive field.

const FOR = [255, 138, 61];
const AGAINST = [77, 171, 247];

const hann = (share) => 0.5 - 0.5 * Math.cos(2 * Math.PI * share);

/** Spreads the values of a grid (rows × columns) over an image of height × width pixels. */
export function spread(values, grid, height, width) {
  const map = new Float32Array(height * width);
  const weight = new Float32Array(height * width);
  const window = Array.from({ length: grid.field }, (_, i) => hann((i + 0.5) / grid.field));
  values.forEach((row, r) => row.forEach((value, c) => {
    for (let i = 0; i < grid.field; i += 1) {
      for (let j = 0; j < grid.field; j += 1) {
        const y = grid.offset + r * grid.stride + i;
        const x = grid.offset + c * grid.stride + j;
        if (y < 0 || x < 0 || y >= height || x >= width) continue;
        map[y * width + x] += value * window[i] * window[j];
        weight[y * width + x] += window[i] * window[j];
      }
    }
  }));
  // Divide by the weights, so that pixels in few receptive fields do not look unimportant; only the outer edge fades.
  const most = Math.max(...weight);
  return map.map((value, i) => value / Math.max(weight[i], most / 4));
}

/** Draws the image in grey with the map on top: orange for, blue against. `most` is the value of full colour. */
export function paintHeat(canvas, image, map, most, height, width) {
  const small = new OffscreenCanvas(width, height);
  const context = small.getContext("2d");
  const pixels = context.createImageData(width, height);
  map.forEach((value, i) => {
    const colour = value >= 0 ? FOR : AGAINST;
    pixels.data.set([...colour, 255 * Math.min(1, Math.abs(value) / most)], 4 * i);
  });
  context.putImageData(pixels, 0, 0);
  const target = canvas.getContext("2d");
  target.fillStyle = "#000";
  target.fillRect(0, 0, canvas.width, canvas.height);
  target.imageSmoothingEnabled = false;
  target.globalAlpha = 0.7;
  target.drawImage(image, 0, 0, canvas.width, canvas.height);
  target.globalAlpha = 1;
  target.imageSmoothingEnabled = true;
  target.globalCompositeOperation = "screen";
  target.drawImage(small, 0, 0, canvas.width, canvas.height);
  target.globalCompositeOperation = "source-over";
}
