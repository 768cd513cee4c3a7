// From what the page sends to what a model takes. The steps and their names are those of serve/pictures.py.

import { median, range, rint, sum } from "./numbers.js";
import { image } from "./pictures.js";

const MAX_BYTES = 1 << 20;
const MAX_SIDE_PIXELS = 2048;
const MIN_INK = Math.fround(0.1);      // a darker pixel is background
const TIE = 1e-4;                      // pixels

/** What a user can correct. */
export class UserError extends Error {}

/** The model's input for the image of a request: `{ channels, height, width, data }` in [0, 1]. */
export async function prepared(model, request) {
  const { channels, height, width } = model.image;
  if (request.example !== undefined) return model.example(request.example);
  if (request.pixels !== undefined) {
    const rows = request.pixels;
    if (rows.length !== height || rows.some((row) => row.length !== width)) {
      throw new UserError(`pixels: ${model.name} needs ${height} rows of ${width} values`);
    }
    return repeated(image(1, height, width, Float32Array.from(rows.flat())), channels);
  }
  const colours = await decoded(request.png);
  return model.draws ? drawing(model, inGrey(colours), request.centre ?? false) : photograph(model, colours);
}

function repeated(picture, channels) {
  const { height, width, data } = picture;
  if (picture.channels === channels) return picture;
  const all = image(channels, height, width);
  for (let c = 0; c < channels; c += 1) all.data.set(data, c * height * width);
  return all;
}

/** The pixels of a picture in base64: `{ channels: 3, … }` from 0 to 255, white behind transparent parts. */
async function decoded(text) {
  const body = text.startsWith("data:") ? text.slice(text.indexOf(",") + 1) : text;
  let bytes;
  try {
    bytes = Uint8Array.from(atob(body), (letter) => letter.charCodeAt(0));
  } catch {
    throw new UserError("the picture is not base64");
  }
  if (bytes.length > MAX_BYTES) throw new UserError("the picture is larger than 1 MiB: make it smaller");
  let bitmap;
  try {
    bitmap = await createImageBitmap(new Blob([bytes]), { colorSpaceConversion: "none" });
  } catch {
    throw new UserError("the picture is no PNG, JPEG or WebP file");
  }
  const { width, height } = bitmap;
  if (Math.max(width, height) > MAX_SIDE_PIXELS) {
    throw new UserError(`the picture has ${width}×${height} pixels: at most ${MAX_SIDE_PIXELS}×${MAX_SIDE_PIXELS} are read`);
  }
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, width, height);
  const colours = image(3, height, width);
  const size = height * width;
  for (let i = 0; i < size; i += 1) for (let c = 0; c < 3; c += 1) colours.data[c * size + i] = data[4 * i + c];
  return colours;
}

/** Grey levels from 0 to 255, with the weights and the rounding of the server's decoder. */
export function inGrey({ height, width, data }) {
  const size = height * width;
  const grey = image(1, height, width);
  for (let i = 0; i < size; i += 1) {
    grey.data[i] = (19595 * data[i] + 38470 * data[size + i] + 7471 * data[2 * size + i] + 0x8000) >> 16;
  }
  return grey;
}

/** White ink on black for a network of digits, from grey levels. */
export function drawing(model, levels, centred) {
  const { channels, height, width } = model.image;
  const { box, original_side: side } = model.style;
  const drawn = whiteOnBlack({ ...levels, data: levels.data.map((value) => value / 255) });
  // Reduce to the training images' original resolution, unless the image is no larger than the model's input.
  const finer = side !== null && Math.max(drawn.height, drawn.width) > Math.max(height, width);
  const size = side !== null && finer ? [side, side] : [height, width];
  const grey = centred ? centre(ink(drawn), ...size, box) : fit(drawn, ...size);
  return repeated(fit(grey, height, width), channels);
}

/** A photograph in its own colours, resized and cut as the model's input. */
export function photograph(model, colours) {
  const { channels, height, width } = model.image;
  const [tall, wide] = model.resize_to;
  const given = channels === 3 ? colours : inGrey(colours);
  const small = given.height === tall && given.width === wide ? given.data
    : resized(given, tall, wide).data.map((value) => Math.min(255, Math.max(0, rint(value))));
  const [top, left] = [(tall - height) >> 1, (wide - width) >> 1];
  const cut = image(given.channels, height, width);
  for (let c = 0, at = 0; c < given.channels; c += 1) {
    for (let y = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1, at += 1) cut.data[at] = small[(c * tall + top + y) * wide + left + x] / 255;
    }
  }
  return repeated(cut, channels);
}

function borderOf({ height, width, data }) {
  const column = (x) => range(height).map((y) => data[y * width + x]);
  return [...data.subarray(0, width), ...data.subarray((height - 1) * width), ...column(0), ...column(width - 1)];
}

function whiteOnBlack(grey) {
  const border = borderOf(grey);
  return sum(border) / border.length > 0.5 ? { ...grey, data: grey.data.map((value) => 1 - value) } : grey;
}

/** Removes the background: pixels that are clearly brighter than the border are ink, and the brightest becomes 1. */
export function ink(grey) {
  const border = borderOf(grey);
  const paper = median(border);
  const spread = Math.fround(median(border.map((value) => Math.abs(value - paper))) / 0.6745);
  const contrast = grey.data.map((value) => Math.max(0, Math.fround(value - paper) - 4 * spread));
  const strongest = contrast.reduce((most, value) => Math.max(most, value), 0);
  return { ...grey, data: strongest > MIN_INK ? contrast.map((value) => value / strongest) : new Float32Array(contrast.length) };
}

/** For each of `to` pixels the first of `from` pixels that it shows, and their weights: a triangle, wide enough to average. */
function weightsOf(from, to) {
  const scale = from / to;
  const reach = Math.max(1, scale);
  return range(to).map((i) => {
    const middle = scale * (i + 0.5);
    const first = Math.max(0, Math.trunc(middle - reach + 0.5));
    const count = Math.min(from, Math.trunc(middle + reach + 0.5)) - first;
    const near = range(count).map((k) => Math.max(0, 1 - Math.abs(k + first - middle + 0.5) / reach));
    const all = sum(near);
    return { first, weights: near.map((weight) => weight / all) };
  });
}

function resized({ channels, height, width, data }, tall, wide) {
  const [across, down] = [weightsOf(width, wide), weightsOf(height, tall)];
  const result = image(channels, tall, wide);
  const rows = new Float64Array(height * wide);
  for (let c = 0; c < channels; c += 1) {
    for (let y = 0; y < height; y += 1) {
      across.forEach(({ first, weights }, x) => {
        rows[y * wide + x] = weights.reduce((total, weight, k) => total + weight * data[(c * height + y) * width + first + k], 0);
      });
    }
    down.forEach(({ first, weights }, y) => {
      for (let x = 0; x < wide; x += 1) {
        result.data[(c * tall + y) * wide + x] = weights.reduce((total, weight, k) => total + weight * rows[(first + k) * wide + x], 0);
      }
    });
  }
  return result;
}

/** Resizes with antialiasing; the aspect ratio is not kept. */
export function fit(grey, height, width) {
  if (grey.height === height && grey.width === width) return grey;
  const small = resized(grey, height, width);
  return { ...small, data: small.data.map((value) => Math.min(1, Math.max(0, value))) };
}

/** Scales and centres the ink as in MNIST: its bounding box gets a fixed size, its centre of mass is centred. */
export function centre(grey, height, width, box) {
  const inked = (x, y) => grey.data[y * grey.width + x] > MIN_INK;
  const [across, down] = [range(grey.width), range(grey.height)];
  const columns = across.filter((x) => down.some((y) => inked(x, y)));
  const rows = down.filter((y) => across.some((x) => inked(x, y)));
  const picture = image(1, height, width);
  if (rows.length === 0) return picture;
  const [top, left] = [rows[0], columns[0]];
  const cut = image(1, rows.at(-1) + 1 - top, columns.at(-1) + 1 - left);
  for (let y = 0; y < cut.height; y += 1) {
    const from = (top + y) * grey.width + left;
    cut.data.set(grey.data.subarray(from, from + cut.width), y * cut.width);
  }
  const factor = Math.min((box * height) / cut.height, (box * width) / cut.width);
  const small = fit(cut, Math.max(1, rint(factor * cut.height)), Math.max(1, rint(factor * cut.width)));
  const [first, start] = starts(small, height, width);
  for (let y = 0; y < small.height; y += 1) {
    picture.data.set(small.data.subarray(y * small.width, (y + 1) * small.width), (first + y) * width + start);
  }
  return picture;
}

/** The first row and column that centre the ink's centre of mass without cropping it. */
function starts({ height, width, data }, tall, wide) {
  let [mass, across, down] = [0, 0, 0];
  data.forEach((value, i) => {
    mass += value;
    across += value * (i % width);
    down += value * Math.floor(i / width);
  });
  const start = (middle, side, length) => Math.min(Math.max(rint((side - 1) / 2 - middle / mass - TIE), 0), side - length);
  return [start(down, tall, height), start(across, wide, width)];
}
