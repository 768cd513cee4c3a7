// The Shapes panel: rectangles and triangles vote for boats and houses.

import { latest, ServerUnavailable } from "./api.js";
import { lineChart } from "./charts.js";
import { $, h, round, sentence, withArticle } from "./dom.js";
import { PRESETS, presetParts } from "./shapes-geometry.js";
import { comparedPair, listed, PartList, PRESENT, showGaps, showWholes, voters } from "./shapes-lists.js";
import { limited, Scene } from "./shapes-scene.js";
import { VoteCharts } from "./shapes-votes.js";

const ITERATIONS = 5;
const PACE_MS = 900;      // of an iteration, while playing
const MAX_PARTS = 24;
const KINDS = { house: "strong", boat: "runner-up" };      // of lines in the chart
const COUNTS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];

export function shapesPanel(page) {
  const slider = $("shapes-iteration");
  let parts = [];          // { id, number, type, x, y, angle, scale }
  let chosen = null;       // the id of the selected part
  let preset = null;
  let kinds = null;        // of parts, by type; null until the first response
  let answer = null;       // the last response
  let routed = [];         // the parts that it is about
  let found = [];          // its hypotheses that are listed
  let pinned = null;       // the hypothesis that was clicked
  let timer = null;        // while playing
  let ids = 0;
  const about = new WeakMap();      // the parts of each request

  const named = ({ type, number }) => `${type} ${number}`;
  const namedAt = (index) => named(routed[index]);
  const described = (part) => `${sentence(named(part))}: x ${round(part.x, 1)}, y ${round(part.y, 1)}, angle ${round(part.angle, 0)}°, scale ${round(part.scale)}`;
  const partOf = (id) => parts.find((part) => part.id === id);
  const edit = { changed: change, selected: select, removed: remove, named, described, partOf };
  const scene = new Scene($("shapes-scene"), edit);
  const list = new PartList($("shapes-parts"), edit);
  const charts = new VoteCharts($("shapes-votes"), namedAt);

  const route = latest("api/shapes", receive, (error) => {
    if (error instanceof ServerUnavailable) page.failed(error);
    else $("shapes-message").textContent = error.message;
  });

  function request() {
    const body = { parts: parts.map(({ type, x, y, angle, scale }) => ({ type, x, y, angle, scale })), iterations: ITERATIONS };
    about.set(body, parts);      // which are replaced by a change, never written to
    route(body);
  }

  function receive(given, body) {
    $("shapes-message").textContent = "";
    const first = kinds === null;
    kinds = Object.fromEntries(given.kinds.map((kind) => [kind.type, kind]));
    [answer, routed] = [given, about.get(body)];
    if (first) usePreset("A house");
    else showAnswer();
  }

  function usePreset(name) {
    stop();
    parts = [];
    for (const part of presetParts(name, answer.classes)) parts = [...parts, numbered(part)];
    [preset, chosen] = [name, null];
    slider.value = ITERATIONS;
    edited();
  }

  function numbered(part) {
    const number = Array.from({ length: MAX_PARTS }, (_, i) => i + 1).find((each) => parts.every((other) => other.number !== each));
    ids += 1;
    return { id: ids, number, ...limited(part) };
  }

  function add(type) {
    if (!kinds || parts.length >= MAX_PARTS) return;
    const room = ([x, y]) => Math.min(...parts.map((part) => Math.hypot(part.x - x, part.y - y)));
    const spots = [32, 14, 50].flatMap((y) => [32, 14, 50].map((x) => [x, y]));
    const [x, y] = spots.reduce((best, spot) => (room(spot) > room(best) ? spot : best));
    const part = numbered({ type, x, y, angle: 0, scale: parts.length ? parts[parts.length - 1].scale : 2 });
    parts = [...parts, part];
    chosen = part.id;
    edited();
    scene.focus(part.id);
  }

  function remove(id) {
    const index = parts.findIndex((part) => part.id === id);
    const inScene = $("shapes-scene").contains(document.activeElement);
    $("shapes-status").textContent = `Removed ${named(parts[index])}.`;
    parts = parts.filter((part) => part.id !== id);
    const next = parts[Math.min(index, parts.length - 1)];
    if (chosen === id) chosen = null;
    edited();
    if (next === undefined) $("shapes-add-rectangle").focus();
    else if (inScene) scene.focus(next.id);
    else list.focus(next.id);
  }

  function change(id, changes, byKey = false) {
    parts = parts.map((part) => (part.id === id ? limited({ ...part, ...changes }) : part));
    if (byKey) $("shapes-status").textContent = `${described(partOf(id))}.`;
    edited();
  }

  function select(id) {
    if (chosen === id) return;
    [chosen, pinned] = [id, null];
    showParts();
    if (answer) showAnswer();
  }

  /** After a change of the scene, which is no preset any more unless it was just made from one. */
  function edited() {
    pinned = null;
    showParts();
    if (preset !== null && !samePreset()) preset = null;
    for (const [name, button] of presets) button.setAttribute("aria-pressed", String(name === preset));
    request();
  }

  function samePreset() {
    const made = presetParts(preset, answer.classes).map(limited);
    return made.length === parts.length && made.every((part, i) => Object.entries(part).every(([name, value]) => parts[i][name] === value));
  }

  function showParts() {
    scene.show(parts, chosen, kinds);
    list.show(parts, chosen, kinds);
    for (const type of ["rectangle", "triangle"]) $(`shapes-add-${type}`).disabled = parts.length >= MAX_PARTS;
    $("shapes-full").hidden = parts.length < MAX_PARTS;
  }

  function showAnswer() {
    found = listed(answer);
    if (!found.some(({ k }) => k === pinned)) pinned = null;
    charts.show(answer, routed, kinds, routed.findIndex(({ id }) => id === chosen));
    lineChart($("shapes-presence"), { xs: answer.steps.map((_, i) => i + 1), ticks: answer.steps.map((_, i) => i + 1), label: "iteration",
      lines: found.map((each) => ({ name: each.name, kind: KINDS[answer.classes[each.class].name], values: answer.steps.map(({ wholes }) => wholes[each.k].presence) })),
      dots: true, height: 150, title: `Presence in each iteration. ${found.map((each) => `${each.name}: ${answer.steps.map(({ wholes }) => round(wholes[each.k].presence)).join(", ")}`).join("; ")}` });
    say("shapes-verdict", verdict());
    showStep();
  }

  function showStep() {
    const index = Number(slider.value) - 1;
    const { wholes, unexplained } = answer.steps[index];
    $("shapes-iteration-value").textContent = `${index + 1} of ${ITERATIONS}`;
    charts.step(index);
    scene.outline(found.map(({ k }) => wholes[k]).map((whole) => ({ pose: whole, kind: answer.classes[whole.class].name,
      members: answer.classes[whole.class].members, presence: whole.presence })).filter(({ presence }) => presence >= 0.02));
    const pick = (k) => { pinned = pinned === k ? null : k; showStep(); };
    showWholes($("shapes-wholes"), answer, index, { found, named: namedAt, pinned, pick });
    const left = unexplained.flatMap((share, part) => (share >= 0.05 ? [`${namedAt(part)} (${round(100 * share, 0)} %)`] : []));
    $("shapes-left").textContent = !routed.length ? "" : left.length ? `Left unexplained: ${left.join(", ")}.` : "Left unexplained: nothing.";
    say("shapes-sentence", sentenceOf(index));
    const pair = comparedPair(answer, { found, pinned, chosen: routed.findIndex(({ id }) => id === chosen) });
    charts.compare(pair);
    showGaps($("shapes-gaps"), $("shapes-why"), answer, pair, namedAt);
  }

  /** Sets a text that screen readers announce, if it changed. */
  function say(id, text) { if ($(id).textContent !== text) $(id).textContent = text; }

  function verdict() {
    if (!parts.length) return "Place a rectangle and a triangle.";
    const last = answer.steps[ITERATIONS - 1].wholes;
    const counts = answer.classes.map(({ name }, label) => [name, last.filter((whole) => whole.class === label && whole.presence >= PRESENT).length]);
    const words = counts.filter(([, count]) => count > 0).map(([name, count]) => (count === 1 ? withArticle(name) : `${COUNTS[count]} ${name}s`));
    return words.length ? `${sentence(words.join(" and "))}.` : "Neither a boat nor a house.";
  }

  function sentenceOf(index) {
    if (!found.length) return "No iteration finds a whole.";
    if (index === 0) return "The plain vote: each hypothesis counts all votes that agree with it, even for parts that another one needs.";
    const { wholes } = answer.steps[index];
    const lost = found.filter(({ k }) => answer.steps[0].wholes[k].presence >= PRESENT && wholes[k].presence < PRESENT);
    const words = lost.map(({ k, name }) => {
      const owners = found.flatMap((other) => voters(answer, k).filter((part) => other.k !== k && wholes[other.k].couplings[part] >= PRESENT)
        .map((part) => `${namedAt(part)} is part of ${other.name}`));
      return `${sentence(name)} is explained away: ${owners.join(" and ")}.`;
    });
    return words.length ? words.join(" ") : "The best hypotheses took their parts first, and no other one needed them.";
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    $("shapes-play").textContent = "Play";
  }

  function play() {
    if (timer !== null) return stop();
    slider.value = 1;
    showStep();
    $("shapes-play").textContent = "Stop";
    timer = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      showStep();
      if (Number(slider.value) === ITERATIONS) stop();
    }, PACE_MS);
  }

  const presets = Object.keys(PRESETS).map((name) => [name, h("button", { type: "button", "aria-pressed": "false", onclick: () => kinds && usePreset(name) }, name)]);
  $("shapes-presets").replaceChildren(...presets.map(([, button]) => button));
  for (const type of ["rectangle", "triangle"]) $(`shapes-add-${type}`).addEventListener("click", () => add(type));
  $("shapes-play").addEventListener("click", () => { if (answer) play(); });
  slider.addEventListener("input", () => { stop(); if (answer) showStep(); });
  addEventListener("hashchange", stop);

  return { update() { if (answer === null) request(); }, retry: request };
}
