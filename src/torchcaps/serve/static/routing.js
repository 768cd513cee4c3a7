// The Routing panel: which parts support which class, for each iteration.

import { latest } from "./api.js";
import { classBars } from "./bars.js";
import { lineChart } from "./charts.js";
import { $, h, round, roving } from "./dom.js";
import { paintHeat, spread } from "./heat.js";

export function routingPanel(page) {
  const { classes, grid, image: { height, width } } = page.model;
  const slider = $("iteration");
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

  slider.max = page.model.iterations;
  slider.value = page.model.iterations;

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
    if (!picked) part = strongestPart();
    part.type ??= longestType(part);      // a position chosen before the first response
    settle();
    show();
    if (!samePart(answer.part, part)) request();
  }, page.failed);

  const samePart = (a, b) => a !== null && a.type === b.type && a.row === b.row && a.column === b.column;
  const request = () => page.image && route({ image: page.image, model: page.model.name,
    part: part.type === null ? null : part });

  function longestType({ row, column }) {
    const lengths = answer.lengths_of_parts.map((rows) => rows[row][column]);
    return lengths.indexOf(Math.max(...lengths));
  }

  /** The part to show first: the longest one at the position with the most support for the winner. */
  function strongestPart() {
    const last = answer.steps[answer.steps.length - 1];
    const support = last.support[last.lengths.indexOf(Math.max(...last.lengths))].flat();
    const place = support.indexOf(Math.max(...support));
    const [row, column] = [Math.floor(place / grid.columns), place % grid.columns];
    return { type: longestType({ row, column }), row, column };
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

  function show() {
    if (!answer) return;
    const steps = answer.steps;
    const step = steps[slider.value - 1];
    const { lengths } = steps[steps.length - 1];
    const kept = pinned ?? lengths.indexOf(Math.max(...lengths));
    const chosen = hovered ?? kept;
    $("iteration-value").textContent = `${slider.value} of ${steps.length}`;
    $("routing-sentence").textContent = `${classes[step.lengths.indexOf(Math.max(...step.lengths))]} is longest: `
      + `${round(Math.max(...step.lengths))}. Normalised entropy of the couplings: ${step.entropy.toFixed(3)}.`;
    bars.show(step.lengths, { [chosen]: "won" });
    bars.choose(pinned, kept);

    $("heat-title").textContent = `Support for ${classes[chosen]}`;
    paintHeat(canvas, seen, maps[slider.value - 1][chosen], maxSupport, height, width);

    const coupling = step.coupling[chosen];
    const strongest = Math.max(...steps.flatMap((each) => each.coupling.flat(2)));
    cells.forEach((cell, i) => {
      const [row, column] = [Math.floor(i / grid.columns), i % grid.columns];
      cell.style.setProperty("--value", coupling[row][column] / strongest);
      cell.title = `coupling ${round(coupling[row][column])}`;
      cell.setAttribute("aria-pressed", String(row === part.row && column === part.column));
    });
    const most = Math.max(...steps.flatMap((each) => each.types.flat().map(Math.abs))) || 1;
    types.forEach((button, type) => {
      const value = step.types[chosen][type];
      button.style.setProperty("--value", Math.abs(value) / most);
      button.classList.toggle("against", value < 0);
      button.title = `type ${type + 1}: ${round(value)}`;
      button.setAttribute("aria-pressed", String(type === part.type));
    });
    showFrame();
    showPart();
    lineChart($("entropy"), { xs: steps.map((_, i) => i + 1), ticks: steps.map((_, i) => i + 1), label: "iteration",
      lines: [{ name: "entropy", kind: "strong", values: steps.map(({ entropy }) => entropy) }], dots: true, height: 130, low: floor(steps),
      title: `Entropy of the couplings: ${steps.map(({ entropy }) => round(entropy)).join(", ")}`, cursor: Number(slider.value) });
  }

  // The entropy stays near 1, so the axis starts a little below the lowest value.
  const floor = (steps) => Math.max(0, Math.floor(Math.min(...steps.map(({ entropy }) => entropy)) * 50 - 0.5) / 50);

  function showFrame() {
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
    const { couplings, votes, agreement } = given.steps[slider.value - 1];
    $("part-title").textContent = `Part of type ${given.type + 1} in row ${given.row + 1}, column ${given.column + 1}`
      + ` (length ${round(given.length)})`;
    const head = h("tr", {}, ...["votes for", "coupling", "vote", "agreement"].map((text) => h("th", { scope: "col" }, text)));
    const cell = (value, kind, most = 1) => {
      const bar = h("span", { class: `meter ${kind}` });
      bar.style.setProperty("--value", Math.min(1, Math.abs(value) / most));
      return h("td", {}, h("span", { class: "number" }, round(value)), bar);
    };
    const rows = classes.map((name, index) => h("tr", {}, h("th", { scope: "row" }, name), cell(couplings[index], "for"),
      cell(votes[index], "plain", Math.max(...votes, 1)), cell(agreement[index], agreement[index] < 0 ? "against" : "for")));
    $("votes").replaceChildren(h("thead", {}, head), h("tbody", {}, ...rows));
  }

  slider.addEventListener("input", show);
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
    bars.clear();
    bars.choose(null, 0);
    frame.hidden = true;
    canvas.getContext("2d").fillRect(0, 0, canvas.width, canvas.height);
    $("heat-title").textContent = "Support";
    $("part-title").textContent = "One part";
    $("routing-sentence").textContent = "Draw a digit to see its parts vote.";
    for (const id of ["votes", "entropy"]) $(id).replaceChildren();
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
