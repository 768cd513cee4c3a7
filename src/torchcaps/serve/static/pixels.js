// Conversion between images and arrays of numbers from 0 to 1.

import { h } from "./dom.js";

const [MISSING, EXTRA] = ["#ff6b6b", "#4dabf7"];

/** The grey values of the image at a URL, optionally resized. */
export async function greys(source, width = null, height = null) {
  const image = new Image();
  image.src = source;
  await image.decode();
  const canvas = h("canvas", { width: width ?? image.naturalWidth, height: height ?? image.naturalHeight });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  return Float32Array.from({ length: data.length / 4 }, (_, i) => data[4 * i] / 255);
}

const rgb = (ink) => [1, 3, 5].map((i) => parseInt(ink.slice(i, i + 2), 16));

/** The sum of the parts, each in its colour: three numbers per pixel. */
export function explained(parts, inks) {
  return Array.from(parts[0], (_, i) => [0, 1, 2].map((channel) =>
    Math.min(255, parts.reduce((sum, part, k) => sum + part[i] * rgb(inks[k])[channel], 0))));
}

export function toPicture(colours, height, width) {
  const canvas = h("canvas", { width, height });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(width, height);
  colours.forEach((colour, i) => pixels.data.set([...colour, 255], 4 * i));
  context.putImageData(pixels, 0, 0);
  return canvas.toDataURL("image/png");
}

export const tinted = (grey, ink, height, width) => toPicture(explained([grey], [ink]), height, width);

/** Red where only the drawing has ink, blue where only the reconstruction has, as the server colours it. */
export const differenceOf = (drawn, redrawn, height, width) => toPicture(Array.from(drawn, (value, i) => {
  const [lacking, added] = [Math.max(0, value - redrawn[i]), Math.max(0, redrawn[i] - value)];
  return rgb(MISSING).map((red, channel) => lacking * red + added * rgb(EXTRA)[channel]);
}), height, width);

/** Whether swapping the parts fits the layers better, by squared error. */
export function swapped(parts, layers) {
  const fit = (part, layer) => part.reduce((sum, value, i) => sum - (value - layer[i]) ** 2, 0);
  return fit(parts[0], layers[1]) + fit(parts[1], layers[0]) > fit(parts[0], layers[0]) + fit(parts[1], layers[1]);
}

/**
 * Which of two reconstructions explains the drawing better alone, and what the other adds: the share of the drawing's
 * squared error that their sum explains beyond it.
 */
export function addedBySecond(drawn, parts) {
  const error = (redrawn) => drawn.reduce((sum, value, i) => sum + (value - redrawn(i)) ** 2, 0);
  const whole = error(() => 0) || 1;
  const alone = parts.map((part) => error((i) => part[i]));
  const best = alone[0] <= alone[1] ? 0 : 1;
  return { best, added: (alone[best] - error((i) => Math.min(1, parts[0][i] + parts[1][i]))) / whole };
}
