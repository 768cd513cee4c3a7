// The Overlap panel: two overlapping digits, and which pixels belong to which.

import { latest, ServerUnavailable, throttled } from "./api.js";
import { classBars } from "./bars.js";
import { $, h, round, roving, sentence, withArticle } from "./dom.js";
import { picture } from "./draw.js";
import { INKS, Pad, pictureOf } from "./pad.js";
import { arranged } from "./pair.js";
import { addedBySecond, differenceOf, explained, greys, swapped, tinted } from "./pixels.js";
import { Probe } from "./probe.js";
import { exampleMarks, exampleSheet, toolbar } from "./tools.js";

// Size and positions of examples on the pad.
const SHARE = 0.8;
const POSITIONS = [{ dx: -0.08, dy: -0.04 }, { dx: 0.08, dy: 0.04 }];
const KINDS = ["first", "second"];
// A second digit is there if its reconstruction explains this share of the drawing beyond the first. It was chosen on
// training digits; benchmarks/second_digit.py has what it gives on others.
const ADDED = 0.06;
const ABSENT = 0.2;      // length of a capsule that is surely absent
const PRESENT = 0.5;     // length of a class that is present

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
    const found = placed(answer, drawn, parts, layers);
    winners = found.map((each) => each?.class ?? null);
    const names = found.map((each) => each && model.classes[each.class]);
    found.forEach((each, i) => {
      picture(`pair-${KINDS[i]}`, each && tinted(each.grey, INKS[i], height, width));
      const caption = $(`pair-${KINDS[i]}-name`);
      caption.dataset.class = names[i] ?? "";
      caption.textContent = each ? `${withArticle(names[i])}, length ${round(each.length)}` : absent(answer, winners);
    });
    picture("pair-missing", found.every(Boolean) ? answer.missing : differenceOf(drawn, found.find(Boolean).grey, height, width));
    const values = found.map((each) => each?.grey ?? new Float32Array(drawn.length));
    probe.show(explained(values, INKS), { drawn, first: values[0], second: values[1] }, names);
    bars.show(answer.lengths, Object.fromEntries(winners.flatMap((index, i) => (index === null ? [] : [[index, KINDS[i]]]))));
    $("pair-message").textContent = "";
    const [only, further] = names.filter(Boolean);
    $("pair-verdict").textContent = Math.max(...answer.lengths) < PRESENT ? `None of these. Nearest: ${withArticle(only)}.`
      : further ? `${sentence(withArticle(only))} and ${withArticle(further)}.` : `${sentence(withArticle(only))}; no second digit found.`;
    choices.forEach((button, index) => {
      const i = winners.indexOf(index);
      button.dataset.kind = i < 0 ? "" : KINDS[i];
    });
    if (other === null) choose(answer.lengths.findIndex((_, index) => !answer.winners.includes(index)));
    else decodeOther({ ...request(), decode: [other] });
  }

  /** The digits that were found, each in the place of the layer that it fits; null for a digit that is not there. */
  function placed(answer, drawn, parts, layers) {
    const entries = answer.decoded.map((each, i) => ({ ...each, grey: parts[i] }));
    const { best, added } = addedBySecond(drawn, parts);
    if (added >= ADDED && entries[1].length >= ABSENT) return swapped(parts, layers) ? entries.reverse() : entries;
    const misfit = layers.map((layer) => layer.reduce((sum, value, i) => sum + (value - parts[best][i]) ** 2, 0));
    return misfit[1] < misfit[0] ? [null, entries[best]] : [entries[best], null];
  }

  /** What is said where a second digit would be. */
  function absent(answer, present) {
    const next = answer.decoded.find((each) => !present.includes(each.class));
    return next ? `no second digit: ${withArticle(model.classes[next.class])} has length ${round(next.length)} but explains little` : "";
  }

  function showOther(answer) {
    const [decoded] = answer.decoded;
    const finding = winners.includes(decoded.class) ? "present."
      : decoded.length < ABSENT ? "not present, so the reconstruction means little." : "not one of the digits found.";
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
