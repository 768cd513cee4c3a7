// Connects the models, the drawing pad and the visible panel.

import { latest, request, ServerUnavailable, throttled, untilServerResponds } from "./api.js";
import { $, h, round, roving, slider, withArticle } from "./dom.js";
import { drawPanel } from "./draw.js";
import { overlapPanel } from "./overlap.js";
import { Pad, pictureOf } from "./pad.js";
import { posePanel } from "./pose.js";
import { routingPanel } from "./routing.js";
import { describeInput, examplesOf } from "./samples.js";
import { shapesPanel } from "./shapes.js";
import { acceptDrops, exampleMarks, readPicture, toolbar } from "./tools.js";
import { transformPanel } from "./transform.js";
import { viewsPanel } from "./views.js";

const NAMES = ["draw", "pose", "routing", "views", "overlap", "transform", "shapes"];
const PRESENT = 0.5;      // length of a class that is present
const EXAMPLE = 0.9;      // size of an example, as a share of the pad's side

function showBanner(text) {
  $("banner").hidden = text === null;
  $("banner").textContent = text ?? "";
}

async function fetchModels() {
  for (;;) {
    try {
      return await request("api/model");
    } catch (error) {
      if (!(error instanceof ServerUnavailable)) throw error;
      await untilServerResponds(showBanner);
    }
  }
}

/** Hides elements that do not apply to this model. `data-of` lists the traits that an element requires. */
function showFor(model, comparison) {
  const traits = { capsules: model.kind === "capsules", poses: model.kind === "poses", decoder: model.decoder,
    "no-decoder": !model.decoder, comparison: model.kind === "capsules" || comparison !== null };
  for (const element of document.querySelectorAll("[data-of]")) {
    element.hidden = !element.dataset.of.split(" ").every((trait) => traits[trait]);
  }
}

async function start() {
  // The URL's hash names the panel to show, also for a tab that was clicked before the models were loaded.
  let visible = null;
  let names = NAMES;
  const panelInHash = () => (names.includes(location.hash.slice(1)) ? location.hash.slice(1) : "draw");
  const choose = (name) => { if (panelInHash() !== name) location.hash = name; };      // hashchange then shows the panel
  for (const name of NAMES) $(`tab-${name}`).addEventListener("click", () => choose(name));

  const { models } = await fetchModels();
  const byRole = (role) => models.find((model) => model.role === role) ?? null;
  const main = byRole("main");
  const poses = main.kind === "poses";
  const page = {
    model: main, overlap: byRole("overlap") ?? (main.pairs && main.decoder ? main : null),
    comparison: byRole("comparison"),
    routing: byRole("routing") ?? main,      // whose couplings the Routing panel shows
    image: null,         // the image to predict; null while nothing is drawn
    answer: null,        // the response of /api/predict to it
    failed,
  };
  for (const place of document.querySelectorAll(".pose-size")) place.textContent = page.model.pose;
  showFor(page.model, page.comparison);
  describeInput(page.model);
  document.body.dataset.model = page.model.kind;
  names = NAMES.filter((name) => name !== (poses ? "routing" : "views"));
  for (const name of NAMES) $(`tab-${name}`).hidden = !names.includes(name);
  const tabs = names.map((name) => $(`tab-${name}`));
  $("about").textContent = models.map((model) => model.name).join(" · ");

  const panels = { draw: drawPanel(page), pose: posePanel(page), [poses ? "views" : "routing"]: (poses ? viewsPanel : routingPanel)(page),
    overlap: overlapPanel(page), transform: transformPanel(page), shapes: shapesPanel(page) };

  function failed(error) {
    if (error instanceof ServerUnavailable) untilServerResponds(showBanner).then(retry);
    else $("message").textContent = error.message;
  }

  function retry() {
    predictDrawing();
    panels[visible].retry?.();
  }

  const predict = latest("api/predict", (answer, { image }) => {
    page.image = image;
    page.answer = answer;
    $("message").textContent = fileError ?? "";
    const [winner] = answer.winners;
    const name = page.model.classes[winner];
    const length = answer.lengths[winner];
    const measure = poses ? "Presence" : "Length";
    $("verdict").dataset.winner = name;
    $("verdict").toggleAttribute("data-none", answer.classes.length === 0);
    $("verdict").textContent = answer.classes.length === 0 ? `None of these. Nearest: ${name}, ${measure.toLowerCase()} ${round(length)}.`
      : length >= 0.5 ? `This is ${withArticle(name)}. ${measure} ${round(length)}.`
        : `Possibly ${withArticle(name)}. ${measure} only ${round(length)}.`;
    panels[visible].update();
  }, failed);

  let fileError = null;   // error message for a file, shown until the drawing changes
  // Length below which no class is predicted; null for the network's own threshold, if it has one.
  let reject = page.model.none_below === null ? PRESENT : null;
  const pad = new Pad($("pad"), { label: "Drawing pad", help: "pad-help", changed: throttled(predictDrawing) });
  // A network that predicts placements gets the pad unchanged, with digits of the size that they have in its training images.
  const { box, brush } = page.model.drawing;
  const share = poses ? box / EXAMPLE : 1;
  pad.brush = brush * share;
  if (poses && box < 0.95) pad.guide(box);
  const centring = h("input", { type: "checkbox", id: "fit", onchange: () => refit() });
  const centre = () => !poses || centring.checked;
  // An image file or example is sent unchanged until the user draws on it.
  const unchanged = () => (pad.marks.length === 1 && pad.marks[0].source) || {};
  function predictDrawing() {
    fileError = null;
    if (pad.empty) return showEmpty();
    const { example: own, png } = unchanged();
    const image = own === undefined ? { png: png ?? pictureOf(pad.marks), centre: centre() } : { example: own };
    predict({ image, model: page.model.name, reject });
  }

  function showEmpty() {
    predict.cancel();
    page.image = page.answer = null;
    delete $("verdict").dataset.winner;
    delete $("verdict").dataset.none;
    $("message").textContent = "";
    $("verdict").textContent = page.model.draws ? "Draw a digit." : "Open an image.";
    panels[visible].update();
  }

  async function open(file) {
    if (panelInHash() === "overlap") choose("draw");      // its pad shows images
    await put(() => readPicture(file));
  }

  /** Shows an image on the pad as the network sees it. */
  async function put(read) {
    try {
      const png = await read();
      const { seen } = await request("api/predict", { image: { png, centre: centre() }, model: page.model.name });
      const picture = new Image();
      picture.src = seen;
      await picture.decode();
      pad.replace([{ layer: 0, picture, source: { png } }]);
    } catch (error) {
      if (!(error instanceof ServerUnavailable)) fileError = error.message;
      failed(error);
    }
  }

  /** Shows one of the network's own images; the server has it as the network takes it. */
  async function showExample(index, { greeting = false } = {}) {
    const { picture: source } = page.model.examples.images[index];
    const picture = new Image();
    picture.src = source;
    await picture.decode();
    pad.replace([{ layer: 0, picture, source: { example: index } }], { greeting });
    if (greeting) pad.past = [];
  }

  function refit() {
    const { png } = unchanged();
    if (png === undefined) predictDrawing();
    else put(() => png);
  }

  const example = (digit, style) => exampleMarks(digit, style, { share, brush });
  toolbar($("tools"), pad, { file: open, name: "pad" });
  if (poses && page.model.draws) $("tools").append(h("label", { class: "fit", for: "fit", title: "For photographs: remove the background, then centre and scale the ink" }, centring, "Centre and scale"));
  acceptDrops(document, open);
  const greet = examplesOf(page.model, { draw: (digit, style, options) => pad.replace(example(digit, style), options), show: showExample });

  const own = page.model.none_below === null ? "off" : "own threshold";
  $("reject-host").replaceChildren(slider({ id: "reject", label: `“None of these” below ${poses ? "presence" : "length"}`, min: 0, max: 1, step: 0.05, value: reject ?? 0,
    show: (value) => (value === 0 ? own : round(value)),
    oninput: (value) => { reject = value === 0 ? null : value; predictDrawing(); } }).element);

  // The hash keeps the visible panel, so that it can be linked to and survives a reload.
  const focus = roving(tabs);
  tabs.forEach((tab, i) => tab.addEventListener("focus", () => choose(names[i])));
  function show(name) {
    visible = name;
    names.forEach((other, i) => {
      tabs[i].setAttribute("aria-selected", String(other === name));
      $(`panel-${other}`).hidden = other !== name;
    });
    focus.settle(names.indexOf(name));
    document.body.dataset.panel = name;
    $("desk").hidden = ["overlap", "shapes"].includes(name);
    panels[name].update();
  }
  const showFromHash = () => show(panelInHash());
  addEventListener("hashchange", showFromHash);

  showFromHash();
  predictDrawing();
  greet();
  pad.past = [];
}

start().catch((error) => showBanner(error.message));
