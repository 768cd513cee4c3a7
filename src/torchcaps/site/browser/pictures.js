// Images as values `{ channels, height, width, data }`: colours, differences, and many tiled into one.

const COLOURS = ["#e8590c", "#1c7ed6", "#2b8a3e", "#ae3ec9", "#f08c00"];
const [MISSING, EXTRA] = ["#ff6b6b", "#4dabf7"];

export const image = (channels, height, width, data = new Float32Array(channels * height * width)) => ({ channels, height, width, data });

/** Image `index` of a batch, which a program returned as `{ dims, data }` of (B, C, H, W). */
export function imageOf({ dims: [, channels, height, width], data }, index) {
  const size = channels * height * width;
  return image(channels, height, width, data.slice(index * size, (index + 1) * size));
}

/** The mean over the channels. */
export function grey({ channels, height, width, data }) {
  if (channels === 1) return image(1, height, width, data);
  const size = height * width;
  const mean = image(1, height, width);
  for (let i = 0; i < size; i += 1) {
    let total = 0;
    for (let c = 0; c < channels; c += 1) total += data[c * size + i];
    mean.data[i] = total / channels;
  }
  return mean;
}

const shares = (code) => [1, 3, 5].map((i) => parseInt(code.slice(i, i + 2), 16) / 255);

/** A grey image times a colour, added to `onto` if that is given. */
function tint(code, { height, width, data }, onto = image(3, height, width)) {
  const size = height * width;
  shares(code).forEach((share, c) => { for (let i = 0; i < size; i += 1) onto.data[c * size + i] += share * data[i]; });
  return onto;
}

/** An image in the colour that belongs to its index, added to `onto` if that is given. */
export const coloured = (picture, index, onto) => tint(COLOURS[index % COLOURS.length], grey(picture), onto);

/** Red where only the drawing has ink, blue where only the reconstruction has. */
export function missing(drawn, redrawn) {
  const [seen, made] = [grey(drawn), grey(redrawn)];
  const part = (one, other) => image(1, seen.height, seen.width, one.data.map((value, i) => Math.max(0, value - other.data[i])));
  return tint(EXTRA, part(made, seen), tint(MISSING, part(seen, made)));
}

/** The sum of images, at most 1. */
export const total = (pictures) => ({ ...pictures[0],
  data: pictures[0].data.map((_, i) => Math.min(1, pictures.reduce((sum, { data }) => sum + data[i], 0))) });

/** Images tiled into one, row by row. */
export function strip(pictures, columns) {
  const [{ channels, height, width }] = pictures;
  const rows = pictures.length / columns;
  const sheet = image(channels, rows * height, columns * width);
  pictures.forEach(({ data }, k) => {
    const [row, column] = [Math.floor(k / columns), k % columns];
    for (let c = 0; c < channels; c += 1) {
      for (let y = 0; y < height; y += 1) {
        const from = (c * height + y) * width;
        sheet.data.set(data.subarray(from, from + width), (c * sheet.height + row * height + y) * sheet.width + column * width);
      }
    }
  });
  return sheet;
}
