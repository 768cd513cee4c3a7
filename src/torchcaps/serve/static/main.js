// Wires the page together: the models, the pad, and the panel in front.

import { ask, Away, latest, paced, serverBack } from "./api.js";
import { $, round, roving, withArticle } from "./dom.js";
import { drawPanel } from "./draw.js";
import { overlapPanel } from "./overlap.js";
import { Pad, pictureOf } from "./pad.js";
import { posePanel } from "./pose.js";
import { routingPanel } from "./routing.js";
import { acceptDrops, exampleMarks, exampleSheet, readPicture, toolbar } from "./tools.js";
import { transformPanel } from "./transform.js";

const NAMES = ["draw", "pose", "routing", "overlap", "transform"];

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

async function start() {
  // A tab that is chosen before the models are known is in front when they are: the address keeps it.
  const tabs = NAMES.map((name) => $(`tab-${name}`));
  let front = null;
  const named = () => (NAMES.includes(location.hash.slice(1)) ? location.hash.slice(1) : "draw");
  const choose = (name) => { if (named() !== name) location.hash = name; };      // it is brought to the front a little later
  tabs.forEach((tab, i) => tab.addEventListener("click", () => choose(NAMES[i])));

  const { models } = await describe();
  const byRole = (role) => models.find((model) => model.role === role) ?? null;
  const page = {
    model: byRole("main"), overlap: byRole("overlap") ?? (byRole("main").pairs ? byRole("main") : null),
    comparison: byRole("comparison"),
    question: null,      // the image that the panels ask about, null while nothing is drawn
    answer: null,        // what /api/predict said of it
    failed,
  };
  for (const place of document.querySelectorAll(".pose-size")) place.textContent = page.model.pose;
  $("about").textContent = models.map((model) => model.name).join(" · ");

  const panels = { draw: drawPanel(page), pose: posePanel(page), routing: routingPanel(page),
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
    $("verdict").dataset.winner = name;
    $("verdict").textContent = length >= 0.5 ? `This is ${withArticle(name)}. Length ${round(length)}.`
      : `Perhaps ${withArticle(name)}, but its capsule is short: ${round(length)}.`;
    panels[front].answered();
  }, failed);

  let unread = null;      // what was wrong with a file: it stands until the drawing changes
  let opened = null;      // a picture file, and the mark it became: it goes as it came until somebody draws on it
  const pad = new Pad($("pad"), { label: "Drawing pad", help: "pad-help", changed: paced(question) });
  function question() {
    unread = null;
    if (pad.empty) return nothing();
    const asOpened = opened !== null && pad.marks.length === 1 && pad.marks[0] === opened.mark;
    predict({ image: { png: asOpened ? opened.png : pictureOf(pad.marks), centre: true }, model: page.model.name });
  }

  function nothing() {
    predict.forget();
    page.question = page.answer = null;
    delete $("verdict").dataset.winner;
    $("message").textContent = "";
    $("verdict").textContent = "Draw a digit.";
    panels[front].answered();
  }

  async function open(file) {
    if (named() === "overlap") choose("draw");      // where the pad is that takes pictures
    try {
      const png = await readPicture(file);
      const { seen } = await ask("api/predict", { image: { png, centre: true }, model: page.model.name });
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

  toolbar($("tools"), pad, { file: open, name: "pad" });
  acceptDrops(document, open);
  exampleSheet($("examples"), [0, 1, 2], (digit, hand) => pad.replace(exampleMarks(digit, hand)));

  // The tabs. The address keeps the one in front, so that it can be linked to and survives a reload.
  const focus = roving(tabs);
  tabs.forEach((tab, i) => tab.addEventListener("focus", () => choose(NAMES[i])));
  function bring(name) {
    front = name;
    NAMES.forEach((other, i) => {
      tabs[i].setAttribute("aria-selected", String(other === name));
      $(`panel-${other}`).hidden = other !== name;
    });
    focus.settle(NAMES.indexOf(name));
    document.body.dataset.panel = name;
    $("desk").hidden = name === "overlap";
    panels[name].answered();
  }
  const fromAddress = () => bring(named());
  addEventListener("hashchange", fromAddress);

  fromAddress();
  pad.replace(exampleMarks(5, 1), { greeting: true });
  pad.past = [];
}

start().catch((error) => trouble(error.message));
