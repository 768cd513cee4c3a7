// The Overlap panel: two overlapping digits, and which pixels belong to which.

import { latest, ServerUnavailable, throttled } from "./api.js";
import { classBars } from "./bars.js";
import { $, h, round, roving, sentence, withArticle } from "./dom.js";
import { picture } from "./draw.js";
import { INKS, Pad, pictureOf } from "./pad.js";
import { arranged } from "./pair.js";
import { explained, greys, swapped, tinted } from "./pixels.js";
import { Probe } from "./probe.js";
import { exampleMarks, exampleSheet, toolbar } from "./tools.js";

// Size and positions of examples on the pad.
const SHARE = 0.8;
const POSITIONS = [{ dx: -0.08, dy: -0.04 }, { dx: 0.08, dy: 0.04 }];
const KINDS = ["first", "second"];

export function overlapPanel(page) {
  const model = page.overlap;
  $("overlap-absent").hidden = model !== null;
  $("overlap-present").hidden = model === null;
  if (model === null) return { update() {} };

  const { height, width } = model.image;
  const bars = classBars($("pair-bars"), model.classes);
  const probe = new Probe($("probe"), $("probe-text"), height, width);
  let other = null;        // the additional class to decode
  let winners = [];

  const failed = (error) => {
    if (error instanceof ServerUnavailable) page.failed(error);
    else $("pair-message").textContent = error.message;
  };
  const predict = latest("api/predict", show, failed);
  const decodeOther = latest("api/predict", showOther, failed);
  const request = () => ({ image: { png: pictureOf(arranged(pad.marks)), centre: false }, model: model.name });

  async function show(answer) {
    const [one, two] = answer.decoded;
    const pictures = [answer.seen, one.reconstruction, two.reconstruction];
    const [drawn, ...parts] = await Promise.all(pictures.map((source) => greys(source)));
    // The longest capsule may belong to either digit: each gets the colour of the layer that it fits.
    const marks = arranged(pad.marks);
    const layers = await Promise.all([0, 1].map((layer) =>
      greys(pictureOf(marks.filter((mark) => mark.layer === layer)), width, height)));
    if (pad.empty) return;      // cleared meanwhile
    const order = swapped(parts, layers) ? [1, 0] : [0, 1];
    const found = order.map((i) => ({ ...answer.decoded[i], grey: parts[i] }));
    winners = found.map((each) => each.class);
    const names = winners.map((index) => model.classes[index]);
    found.forEach((each, i) => {
      picture(`pair-${KINDS[i]}`, tinted(each.grey, INKS[i], height, width));
      const caption = $(`pair-${KINDS[i]}-name`);
      caption.dataset.class = names[i];
      caption.textContent = `${withArticle(names[i])}, length ${round(each.length)}`;
    });
    picture("pair-missing", answer.missing);
    probe.show(explained(found.map((each) => each.grey), INKS), { drawn, first: found[0].grey, second: found[1].grey }, names);
    bars.show(answer.lengths, { [winners[0]]: "first", [winners[1]]: "second" });
    $("pair-message").textContent = "";
    $("pair-verdict").textContent = answer.lengths[winners[1]] < 0.2 || answer.lengths[winners[0]] < 0.2
      ? `${sentence(withArticle(model.classes[answer.winners[0]]))}; no second digit found.`
      : `${sentence(withArticle(names[0]))} and ${withArticle(names[1])}.`;
    choices.forEach((button, index) => {
      const i = winners.indexOf(index);
      button.dataset.kind = i < 0 ? "" : KINDS[i];
    });
    if (other === null) choose(answer.lengths.findIndex((_, index) => !answer.winners.includes(index)));
    else decodeOther({ ...request(), decode: [other] });
  }

  function showOther(answer) {
    const [decoded] = answer.decoded;
    const finding = winners.includes(decoded.class) ? "present."
      : decoded.length < 0.2 ? "not present, so the reconstruction means little." : "not among the two longest.";
    picture("other-picture", decoded.reconstruction);
    $("other-note").textContent = `${model.classes[decoded.class]}, length ${round(decoded.length)}: ${finding}`;
  }

  const choices = model.classes.map((name, index) => h("button", { type: "button", onclick: () => choose(index) }, name));
  $("other").replaceChildren(...choices);
  roving(choices);
  function choose(index) {
    other = index;
    choices.forEach((button, i) => button.setAttribute("aria-pressed", String(i === index)));
    if (!pad.empty) decodeOther({ ...request(), decode: [other] });
  }

  const pad = new Pad($("pair-pad"), { label: "Drawing pad for two digits", help: "pair-help", layers: 2, changed: throttled(predictPair) });
  pad.brush *= SHARE;
  function predictPair() {
    if (pad.empty) blank();
    else predict({ ...request(), top: 2 });
  }

  function blank() {
    predict.cancel();
    decodeOther.cancel();
    for (const id of ["pair-first", "pair-second", "pair-missing", "other-picture"]) picture(id, null);
    for (const id of ["pair-first-name", "pair-second-name", "other-note", "pair-message"]) $(id).textContent = "";
    for (const button of choices) button.dataset.kind = "";
    probe.blank();
    bars.clear();
    $("pair-verdict").textContent = "Draw two digits, one in each colour.";
  }

  // The digit to which new strokes and examples belong.
  const layers = ["First digit", "Second digit"].map((name, layer) => {
    const input = h("input", { type: "radio", name: "layer", id: `layer-${layer}`, checked: layer === 0,
      onchange: () => { pad.layer = layer; $("pair-examples").dataset.kind = KINDS[layer]; } });
    return h("span", { class: `layer ${KINDS[layer]}` }, input, h("label", { for: input.id }, name));
  });
  $("pair-layers").replaceChildren(...layers);
  $("pair-examples").dataset.kind = KINDS[0];
  toolbar($("pair-tools"), pad, { name: "pair" });
  const example = (digit, style, layer) => exampleMarks(digit, style, { layer, share: SHARE, ...POSITIONS[layer] });
  exampleSheet($("pair-examples"), [0, 1], (digit, style) => {
    pad.replace(example(digit, style, pad.layer), { layer: pad.layer });
  });

  let greeted = false;
  return {
    update() {
      if (greeted) return;
      greeted = true;
      pad.replace([...example(2, 0, 0), ...example(7, 0, 1)], { greeting: true });
      pad.past = [];
    },
    retry: predictPair,
  };
}
