// Examples to choose from: the page's own strokes, or images of the data that the network was trained on.

import { $, h, roving } from "./dom.js";
import { exampleSheet } from "./tools.js";

const COLUMNS = 10;

/**
 * Fills the sheet of examples. `draw(digit, style)` is called for strokes, `show(index)` for images; both with
 * `{ greeting: true }` as a last argument by the function that is returned, which shows a first example, if there is one.
 */
export function examplesOf(model, { draw, show }) {
  const { kind, note, images } = model.examples;
  $("examples-note").textContent = note;
  $("examples").dataset.kind = kind;
  $("examples").hidden = $("examples-title").hidden = kind === "none";
  $("examples-title").textContent = model.draws ? "Or choose an example" : "Choose an example, or open an image";
  if (kind === "drawn") {
    exampleSheet($("examples"), [0, 1, 2], draw);
    return () => draw(5, 1, { greeting: true });
  }
  const buttons = images.map(({ classes, picture }, index) => {
    const name = classes.join(" and ") || "no class";
    return h("button", { type: "button", "aria-label": `${name}, test image ${index + 1}`, title: name, onclick: () => show(index) },
      h("img", { src: picture, alt: "" }));
  });
  $("examples").replaceChildren(...buttons);
  roving(buttons, COLUMNS);
  return () => { if (images.length > 0) show(0, { greeting: true }); };
}

/** Words of the page that depend on whether its network takes drawings. */
export function describeInput(model) {
  document.body.dataset.draws = String(model.draws);
  if (model.draws) return;
  $("purpose").textContent = "Choose an image and see how a capsule network classifies it.";
  $("tab-draw").textContent = "Image";
  $("pad-help").hidden = true;
}
