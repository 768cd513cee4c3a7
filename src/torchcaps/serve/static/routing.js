// The Routing panel: which parts support which class, for each iteration.

import { latest } from "./api.js";
import { classBars } from "./bars.js";
import { lineChart } from "./charts.js";
import { $, h, round, roving } from "./dom.js";
import { paintHeat, spread } from "./heat.js";
import { meaningsFor, networkPicture } from "./network.js";
import { VotePlanes } from "./votes.js";
import { explainWords } from "./words.js";

const ITERATIONS = 10;      // that can be chosen
const STEP_MS = 900;        // from one to the next while they play

export function routingPanel(page) {
  const { classes, grid, iterations: own, image: { height, width } } = page.routing;
  const [slider, play, off] = [$("iteration"), $("play"), $("routing-off")];
  const canvas = $("heat").querySelector("canvas");
  const frame = h("span", { class: "frame", hidden: true });
  $("heat").append(frame);
  let answer = null;         // response of /api/routing
  let seen = null;           // its image, decoded
  let maps = [];             // its support, spread over the image: maps[iteration][class]
  let maxSupport = 1;        // largest absolute value in the maps
  let requested = null;      // the image of the last request
  let pinned = null;         // the class that was clicked; null for the winner
  let hovered = null;
  let part = { type: null, row: 0, column: 0 };
  let picked = false;        // whether the user chose the part; until then one with much support is shown

  let playing = null;        // the timer of the play button

  $("routing-network").hidden = page.routing === page.model;
  $("routing-network").textContent = `This panel asks the network ${page.routing.name}. In its training agreement counts a hundred times, `
    + `so that couplings decide. Those of ${page.model.name}, which answers on the other panels, decide little.`;
  slider.max = ITERATIONS;
  slider.value = own;
  const network = networkPicture($("network"), page.routing);
  const planes = new VotePlanes($("planes"), classes, ({ type, row, column }) => choose({ type, row, column }));
  explainWords($("panel-routing"), meaningsFor(page.routing));

  const bars = classBars($("routing-classes"), classes, (index, how) => {
    if (how === "pin") pinned = pinned === index ? null : index;
    else hovered = how === "hover" ? index : null;
    show();
  });
  const cells = Array.from({ length: grid.rows * grid.columns }, (_, i) => {
    const [row, column] = [Math.floor(i / grid.columns), i % grid.columns];
    return h("button", { type: "button", "aria-label": `row ${row + 1}, column ${column + 1}`,
      onclick: () => choose({ row, column }), onfocus: () => choose({ row, column }) });
  });
  $("places").style.setProperty("--columns", grid.columns);
  $("places").replaceChildren(...cells);
  const types = Array.from({ length: grid.types }, (_, type) => h("button", { type: "button", "aria-label": `type ${type + 1}`,
    onclick: () => choose({ type }), onfocus: () => choose({ type }) }, h("span", { class: "fill" })));
  $("types").replaceChildren(...types);
  const placeFocus = roving(cells, grid.columns);
  const typeFocus = roving(types);

  const route = latest("api/routing", async (given) => {
    const image = new Image();
    image.src = given.seen;
    await image.decode();
    if (!page.image) return;      // cleared meanwhile
    [answer, seen] = [given, image];
    maps = given.steps.map(({ support }) => support.map((places) => spread(places, grid, height, width)));
    maxSupport = Math.max(...maps.flat().map((map) => map.reduce((most, value) => Math.max(most, Math.abs(value)), 0))) || 1;
    if (!picked) part = firstPart();
    part.type ??= longestType(part);      // a position chosen before the first response
    planes.load(given.votes, given.finding.parts);
    settle();
    show();
    if (!samePart(answer.part, part)) request();
  }, page.failed);

  const samePart = (a, b) => a !== null && a.type === b.type && a.row === b.row && a.column === b.column;
  const request = () => page.image && route({ image: page.image, model: page.routing.name,
    iterations: ITERATIONS, part: part.type === null ? null : part });

  function longestType({ row, column }) {
    const lengths = answer.lengths_of_parts.map((rows) => rows[row][column]);
    return lengths.indexOf(Math.max(...lengths));
  }

  /** The part to show first: of those that see ink, the one that supports the winner most. */
  function firstPart() {
    const { parts, couplings } = answer.votes;
    const step = Math.min(own, answer.steps.length) - 1;
    const support = parts.map((each, i) => (each.ink < 0.5 ? -Infinity : couplings[step][i][0] * each.votes[0][0]));
    const { type, row, column } = parts[support.indexOf(Math.max(...support))];
    return { type, row, column };
  }

  function choose(change) {
    if (Object.entries(change).every(([name, value]) => part[name] === value)) return;
    picked = true;
    part = { ...part, ...change };
    if (change.type === undefined && answer) part.type = longestType(part);
    settle();
    if (answer) show();
    request();
  }

  function settle() {
    placeFocus.settle(part.row * grid.columns + part.column);
    typeFocus.settle(part.type ?? 0);
  }

  const stepShown = () => (off.checked ? 0 : Number(slider.value) - 1);

  function show() {
    if (!answer) return;
    const { steps, finding } = answer;
    off.disabled = !finding.starts_uniform;      // some routings never have equal couplings
    if (off.disabled) off.checked = slider.disabled = play.disabled = false;
    const step = steps[stepShown()];
    const { lengths } = steps[Math.min(own, steps.length) - 1];
    const kept = pinned ?? lengths.indexOf(Math.max(...lengths));
    const chosen = hovered ?? kept;
    $("iteration-value").textContent = off.checked ? "off" : `${slider.value} of ${steps.length}`;
    slider.setAttribute("aria-valuetext", `${slider.value} of ${steps.length}`);
    $("iteration-own").textContent = off.checked ? "Equal couplings, as in iteration 1."
      : Number(slider.value) === own ? "The network’s own number." : `The network’s own number is ${own}.`;
    $("finding").dataset.kind = finding.kind;
    if ($("finding").textContent !== finding.sentence) $("finding").textContent = finding.sentence;
    $("routing-sentence").textContent = `${classes[step.lengths.indexOf(Math.max(...step.lengths))]} is longest: `
      + `${round(Math.max(...step.lengths))}. The couplings are ${(100 * step.entropy).toFixed(1)} % undecided; `
      + `${(100 * step.decided).toFixed(1)} % of the parts give more than half to one class.`;
    bars.show(step.lengths, { [chosen]: "won" });
    bars.choose(pinned, kept);

    $("heat-title").textContent = `Support for ${classes[chosen]}`;
    paintHeat(canvas, seen, maps[stepShown()][chosen], maxSupport, height, width);
    showCells(step.coupling[chosen]);
    showTypes(step.types[chosen]);
    planes.show(stepShown(), part);
    showFrame();
    showPart();
    network.show(answer.seen, step.lengths, samePart(answer.part, part) ? answer.part.steps[stepShown()].couplings : null);
    showEntropy();
  }

  // The colour of a cell is on a fixed scale from 0 to 1, so that couplings that hardly differ look as they are.
  function showCells(coupling) {
    cells.forEach((cell, i) => {
      const [row, column] = [Math.floor(i / grid.columns), i % grid.columns];
      cell.style.setProperty("--value", coupling[row][column]);
      cell.title = `coupling ${round(coupling[row][column])}`;
      cell.setAttribute("aria-pressed", String(row === part.row && column === part.column));
    });
    const all = coupling.flat();
    const equal = answer.finding.starts_uniform ? `; equal couplings are ${round(answer.steps[0].coupling[0][0][0], 3)}` : "";
    $("places-note").textContent = `From ${round(Math.min(...all), 3)} to ${round(Math.max(...all), 3)}${equal}.`;
  }

  function showTypes(values) {
    const most = Math.max(...answer.steps.flatMap((each) => each.types.flat().map(Math.abs))) || 1;
    types.forEach((button, type) => {
      const value = values[type];
      button.style.setProperty("--value", Math.abs(value) / most);
      button.classList.toggle("against", value < 0);
      button.title = `type ${type + 1}: ${round(value)}`;
      button.setAttribute("aria-pressed", String(type === part.type));
    });
    $("types-note").textContent = `Full height: a support of ${round(most)}, the most of any class and iteration.`;
  }

  function showEntropy() {
    const { steps } = answer;
    const [entropy, decided] = ["entropy", "decided"].map((name) => steps.map((each) => each[name]));
    const text = (values) => values.map((value) => round(value)).join(", ");
    lineChart($("entropy"), { xs: steps.map((_, i) => i + 1), ticks: steps.map((_, i) => i + 1), label: "iteration",
      lines: [{ name: "decided", kind: "runner-up dashed", values: decided }, { name: "entropy", kind: "strong", values: entropy }],
      dots: true, height: 170, left: 84, levels: [0, 0.5, 1],
      writeLevel: (value) => ({ 0: "0 decided", 1: "1 all equal" })[value] ?? String(value),
      title: `Entropy of the couplings: ${text(entropy)}; share of parts that decide: ${text(decided)}`, cursor: stepShown() + 1 });
  }

  function showFrame() {
    network.place(part.row, part.column);
    const share = (value, of) => `${(100 * Math.min(value, of)) / of}%`;
    frame.hidden = false;
    frame.style.setProperty("top", share(grid.offset + grid.stride * part.row, height));
    frame.style.setProperty("left", share(grid.offset + grid.stride * part.column, width));
    frame.style.setProperty("height", share(grid.field, height));
    frame.style.setProperty("width", share(grid.field, width));
  }

  // The coupling, vote length and agreement of the chosen part for every class.
  function showPart() {
    const given = answer.part;
    if (!samePart(given, part)) return;
    const { couplings, votes, agreement } = given.steps[stepShown()];
    $("part-title").textContent = `Part of type ${given.type + 1} in row ${given.row + 1}, column ${given.column + 1}`
      + ` (length ${round(given.length)})`;
    const longest = Math.max(...votes, 1);
    const head = h("tr", {}, ...["votes for", "coupling, 0 to 1", `length of the vote, 0 to ${round(longest, 1)}`, "agreement, −1 to 1"].map((text) => h("th", { scope: "col" }, text)));
    const cell = (value, kind, most = 1) => {
      const bar = h("span", { class: `meter ${kind}` });
      bar.style.setProperty("--value", Math.min(1, Math.abs(value) / most));
      return h("td", {}, h("span", { class: "number" }, round(value)), bar);
    };
    const rows = classes.map((name, index) => h("tr", {}, h("th", { scope: "row" }, name), cell(couplings[index], "for"),
      cell(votes[index], "plain", longest), cell(agreement[index], agreement[index] < 0 ? "against" : "for")));
    $("votes").replaceChildren(h("thead", {}, head), h("tbody", {}, ...rows));
  }

  slider.addEventListener("input", () => { stop(); show(); });
  off.addEventListener("change", () => {
    stop();
    slider.disabled = play.disabled = off.checked;
    show();
  });
  play.addEventListener("click", () => (playing === null ? start() : stop()));

  function start() {
    if (!answer) return;
    const ended = Number(slider.value) === ITERATIONS;
    play.textContent = "Pause";
    playing = setInterval(advance, STEP_MS);
    if (!ended) return advance();
    slider.value = 1;
    show();
  }

  function advance() {
    if (!answer || document.body.dataset.panel !== "routing") return stop();
    slider.value = Number(slider.value) + 1;
    show();
    if (Number(slider.value) === ITERATIONS) stop();
  }

  function stop() {
    clearInterval(playing);
    playing = null;
    play.textContent = "Play";
  }

  // The position whose receptive field has its centre nearest to the pointer.
  const nearest = (share, size, count) =>
    Math.min(count - 1, Math.max(0, Math.round((share * size - grid.offset - grid.field / 2) / grid.stride)));
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    choose({ row: nearest((event.clientY - box.top) / box.height, height, grid.rows),
      column: nearest((event.clientX - box.left) / box.width, width, grid.columns) });
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);

  function blank() {
    route.cancel();
    answer = null;
    delete $("finding").dataset.kind;
    bars.clear();
    bars.choose(null, 0);
    frame.hidden = true;
    stop();
    planes.clear();
    network.show(null, null, null);
    canvas.getContext("2d").fillRect(0, 0, canvas.width, canvas.height);
    $("heat-title").textContent = "Support";
    $("part-title").textContent = "One part";
    $("routing-sentence").textContent = "Draw a digit to see its parts vote.";
    for (const id of ["votes", "entropy"]) $(id).replaceChildren();
    for (const id of ["finding", "places-note", "types-note", "iteration-own"]) $(id).textContent = "";
    for (const button of [...cells, ...types]) {
      button.style.setProperty("--value", 0);
      button.title = "";
      button.setAttribute("aria-pressed", "false");
    }
  }

  return {
    update() {
      if (page.image !== requested) pinned = null;
      requested = page.image;
      if (page.image) request();
      else blank();
    },
  };
}
