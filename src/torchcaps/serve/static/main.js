// Wires the page together: the models, the pad, and the panel in front.

import { ask, Away, latest, paced, serverBack } from "./api.js";
import { $, h, round, roving, slider, withArticle } from "./dom.js";
import { drawPanel } from "./draw.js";
import { overlapPanel } from "./overlap.js";
import { Pad, pictureOf } from "./pad.js";
import { posePanel } from "./pose.js";
import { routingPanel } from "./routing.js";
import { acceptDrops, exampleMarks, exampleSheet, readPicture, toolbar } from "./tools.js";
import { transformPanel } from "./transform.js";
import { viewsPanel } from "./views.js";

const NAMES = ["draw", "pose", "routing", "views", "overlap", "transform"];
const EXAMPLE = 0.9;      // share of the pad's side that an example takes

function trouble(text) {
  $("trouble").hidden = text === null;
  $("trouble").textContent = text ?? "";
}

async function describe() {
  for (;;) {
    try {
      return await ask("api/model");
    } catch (error) {
      if (!(error instanceof Away)) throw error;
      await serverBack(trouble);
    }
  }
}

/** Shows what belongs to this kind of network, and hides the rest: `data-of` names all that must hold. */
function showFor(model, comparison) {
  const holds = { capsules: model.kind === "capsules", poses: model.kind === "poses", decoder: model.decoder,
    "no-decoder": !model.decoder, comparison: model.kind === "capsules" || comparison !== null };
  for (const element of document.querySelectorAll("[data-of]")) {
    element.hidden = !element.dataset.of.split(" ").every((trait) => holds[trait]);
  }
}

async function start() {
  // A tab that is chosen before the models are known is in front when they are: the address keeps it.
  let front = null;
  let names = NAMES;
  const named = () => (names.includes(location.hash.slice(1)) ? location.hash.slice(1) : "draw");
  const choose = (name) => { if (named() !== name) location.hash = name; };      // it is brought to the front a little later
  for (const name of NAMES) $(`tab-${name}`).addEventListener("click", () => choose(name));

  const { models } = await describe();
  const byRole = (role) => models.find((model) => model.role === role) ?? null;
  const main = byRole("main");
  const poses = main.kind === "poses";
  const page = {
    model: main, overlap: byRole("overlap") ?? (main.pairs && main.decoder ? main : null),
    comparison: byRole("comparison"),
    question: null,      // the image that the panels ask about, null while nothing is drawn
    answer: null,        // what /api/predict said of it
    failed,
  };
  for (const place of document.querySelectorAll(".pose-size")) place.textContent = page.model.pose;
  showFor(page.model, page.comparison);
  document.body.dataset.model = page.model.kind;
  names = NAMES.filter((name) => name !== (poses ? "routing" : "views"));
  for (const name of NAMES) $(`tab-${name}`).hidden = !names.includes(name);
  const tabs = names.map((name) => $(`tab-${name}`));
  $("about").textContent = models.map((model) => model.name).join(" · ");

  const panels = { draw: drawPanel(page), pose: posePanel(page), [poses ? "views" : "routing"]: (poses ? viewsPanel : routingPanel)(page),
    overlap: overlapPanel(page), transform: transformPanel(page) };

  function failed(error) {
    if (error instanceof Away) serverBack(trouble).then(again);
    else $("message").textContent = error.message;
  }

  function again() {
    question();
    panels[front].again?.();
  }

  // The drawing and what it is taken for.
  const predict = latest("api/predict", (answer, question) => {
    page.question = question.image;
    page.answer = answer;
    $("message").textContent = unread ?? "";
    const [winner] = answer.winners;
    const name = page.model.classes[winner];
    const length = answer.lengths[winner];
    const measure = poses ? "Presence" : "Length";
    $("verdict").dataset.winner = name;
    $("verdict").toggleAttribute("data-none", answer.classes.length === 0);
    $("verdict").textContent = answer.classes.length === 0 ? `None of these. Nearest: ${name}, ${measure.toLowerCase()} ${round(length)}.`
      : length >= 0.5 ? `This is ${withArticle(name)}. ${measure} ${round(length)}.`
        : `Perhaps ${withArticle(name)}, but its capsule is short: ${round(length)}.`;
    panels[front].answered();
  }, failed);

  let unread = null;      // what was wrong with a file: it stands until the drawing changes
  let opened = null;      // a picture file, and the mark it became: it goes as it came until somebody draws on it
  let reject = null;      // the length below which the answer is none of the classes; null for the network's own threshold
  const pad = new Pad($("pad"), { label: "Drawing pad", help: "pad-help", changed: paced(question) });
  // A network that reads poses is shown the pad as it is, and everything at the size that its training images have.
  const { box, brush } = page.model.drawing;
  const share = poses ? box / EXAMPLE : 1;
  pad.brush = brush * share;
  if (poses && box < 0.95) pad.guide(box);
  const fitted = h("input", { type: "checkbox", id: "fit", onchange: () => refit() });
  const centre = () => !poses || fitted.checked;
  const asOpened = () => opened !== null && pad.marks.length === 1 && pad.marks[0] === opened.mark;
  function question() {
    unread = null;
    if (pad.empty) return nothing();
    const image = { png: asOpened() ? opened.png : pictureOf(pad.marks), centre: centre() };
    predict({ image, model: page.model.name, reject });
  }

  function nothing() {
    predict.forget();
    page.question = page.answer = null;
    delete $("verdict").dataset.winner;
    delete $("verdict").dataset.none;
    $("message").textContent = "";
    $("verdict").textContent = "Draw a digit.";
    panels[front].answered();
  }

  async function open(file) {
    if (named() === "overlap") choose("draw");      // where the pad is that takes pictures
    await put(() => readPicture(file));
  }

  /** Lays a picture on the pad as the network sees it. */
  async function put(read) {
    try {
      const png = await read();
      const { seen } = await ask("api/predict", { image: { png, centre: centre() }, model: page.model.name });
      const picture = new Image();
      picture.src = seen;
      await picture.decode();
      opened = { png, mark: { layer: 0, picture } };
      pad.replace([opened.mark]);
    } catch (error) {
      if (!(error instanceof Away)) unread = error.message;
      failed(error);
    }
  }

  function refit() {
    if (asOpened()) put(() => opened.png);
    else question();
  }

  const example = (digit, hand) => exampleMarks(digit, hand, { share, brush });
  toolbar($("tools"), pad, { file: open, name: "pad" });
  if (poses) $("tools").append(h("label", { class: "fit", for: "fit", title: "For photographs: take the paper away" }, fitted, "Fit into the middle"));
  acceptDrops(document, open);
  exampleSheet($("examples"), [0, 1, 2], (digit, hand) => pad.replace(example(digit, hand)));

  const own = page.model.none_below === null ? "off" : "own threshold";
  $("reject-host").replaceChildren(slider({ id: "reject", label: `“None of these” below ${poses ? "presence" : "length"}`, min: 0, max: 1, step: 0.05, value: 0,
    show: (value) => (value === 0 ? own : round(value)),
    oninput: (value) => { reject = value === 0 ? null : value; question(); } }).element);

  // The tabs. The address keeps the one in front, so that it can be linked to and survives a reload.
  const focus = roving(tabs);
  tabs.forEach((tab, i) => tab.addEventListener("focus", () => choose(names[i])));
  function bring(name) {
    front = name;
    names.forEach((other, i) => {
      tabs[i].setAttribute("aria-selected", String(other === name));
      $(`panel-${other}`).hidden = other !== name;
    });
    focus.settle(names.indexOf(name));
    document.body.dataset.panel = name;
    $("desk").hidden = name === "overlap";
    panels[name].answered();
  }
  const fromAddress = () => bring(named());
  addEventListener("hashchange", fromAddress);

  fromAddress();
  pad.replace(example(5, 1), { greeting: true });
  pad.past = [];
}

start().catch((error) => trouble(error.message));
