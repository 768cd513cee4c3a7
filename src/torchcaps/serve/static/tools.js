// The controls beside a pad: undo, clear, brush, image files and example digits.

import { h, roving, svg } from "./dom.js";
import { STYLES, PATHS, strokesOf } from "./examples.js";

export function toolbar(host, pad, { file = null, name }) {
  const brush = h("input", { type: "range", id: `${name}-brush`, min: 0.04, max: 0.14, step: 0.005, value: pad.brush,
    oninput: () => { pad.brush = Number(brush.value); } });
  host.append(
    h("button", { type: "button", onclick: () => pad.undo() }, "Undo"),
    h("button", { type: "button", onclick: () => pad.clear() }, "Clear"),
    h("label", { class: "brush", for: brush.id }, "Brush", brush),
  );
  if (file) host.append(fileButton(name, file));
}

/** A file input that looks like the other buttons and keeps its keyboard behaviour. */
function fileButton(name, file) {
  const input = h("input", { type: "file", id: `${name}-file`, accept: "image/*", class: "unseen" });
  input.addEventListener("change", () => {
    if (input.files[0]) file(input.files[0]);
    input.value = "";       // so that choosing the same file again fires an event
  });
  return h("span", { class: "file" }, input, h("label", { class: "button", for: input.id }, "Open",
    h("span", { class: "spare" }, " an image"), "…"));
}

/** Opens files dropped anywhere on the page; by default the browser would navigate to them. */
export function acceptDrops(target, file) {
  target.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
  target.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  target.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    if (event.dataTransfer.files[0]) file(event.dataTransfer.files[0]);
  });
}

/** Reads any image that the browser can decode, scales it down, and returns a data URL. */
export async function readPicture(file, longest = 512) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`“${file.name}” cannot be read as an image. Use PNG, JPEG or WebP.`);
  }
  const scale = Math.min(1, longest / Math.max(bitmap.width, bitmap.height));
  const canvas = h("canvas", { width: Math.max(1, Math.round(bitmap.width * scale)),
    height: Math.max(1, Math.round(bitmap.height * scale)) });
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";       // background for transparent images
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/png");
}

/** The marks of an example, scaled to `share` of the pad and moved by (dx, dy). */
export function exampleMarks(digit, style, { layer = 0, share = 1, dx = 0, dy = 0, brush = 0.085 } = {}) {
  const place = ([x, y]) => [0.5 + (x - 0.5) * share + dx, 0.5 + (y - 0.5) * share + dy, 1];
  return strokesOf(PATHS[digit][style]).map((points) => ({ layer, width: brush * share, points: points.map(place) }));
}

/** Buttons with example digits, one row per style. */
export function exampleSheet(host, styles, pick) {
  const buttons = styles.flatMap((style) => PATHS.map((paths, digit) =>
    h("button", { type: "button", "aria-label": `${digit}, ${STYLES[style]}`, onclick: () => pick(digit, style) },
      svg("svg", { viewBox: "0 0 100 100", "aria-hidden": "true" }, svg("path", { d: paths[style] })))));
  host.append(...buttons);
  roving(buttons, PATHS.length);
}
