// The Transform panel: the drawing rotated, moved, scaled and sheared, and the predictions of both networks.

import { latest } from "./api.js";
import { alongChart, lineChart, valueAt } from "./charts.js";
import { $, h, round, slider, withArticle } from "./dom.js";
import { PARTS, placementOf } from "./placement.js";
import { Stage } from "./stage.js";

const degrees = (value) => `${value}°`.replace("-", "−");
const pixels = (value) => `${round(value, 1)} px`;
// `to` converts a value to the slider's unit, `from` converts it back: scales are logarithmic, the others unchanged.
const same = (value) => value;
const KNOBS = {
  rotate: { label: "rotation", min: -180, max: 180, step: 1, neutral: 0, write: degrees, ticks: [-180, -90, 0, 90, 180] },
  shift_x: { label: "shift x", min: -14, max: 14, step: 0.5, neutral: 0, write: pixels, ticks: [-14, -7, 0, 7, 14] },
  shift_y: { label: "shift y", min: -14, max: 14, step: 0.5, neutral: 0, write: pixels, ticks: [-14, -7, 0, 7, 14] },
  scale: { label: "scale", min: -2, max: 2, step: 0.1, neutral: 1, write: (v) => `×${Number(v.toFixed(2))}`,
    ticks: [0.25, 0.5, 1, 2, 4], to: Math.log2, from: (v) => 2 ** v },
  shear: { label: "shear", min: -1, max: 1, step: 0.02, neutral: 0, write: (v) => round(v), ticks: [-1, -0.5, 0, 0.5, 1] },
};

const MAX_VIEWS_FULL_CURVE = 30;      // views per image; above that a curve has fewer points

// The placement parameter to plot for each change: the first of these that the network predicts.
const PREDICTED = { rotate: ["angle"], shift_x: ["x"], shift_y: ["y"], scale: ["scale"], shear: ["shear", "angle"] };

export function transformPanel(page) {
  const { classes, lattice, image: { height, width } } = page.model;
  const setting = Object.fromEntries(Object.entries(KNOBS).map(([name, { neutral }]) => [name, neutral]));
  const steps = lattice !== null && lattice.searched > MAX_VIEWS_FULL_CURVE ? 9 : 25;      // points of a curve
  let along = "rotate";
  let curve = null;
  const drawnClass = () => page.answer?.winners[0] ?? 0;

  const stage = new Stage($("stage"), page.model.image, (change) => turn(change));
  const transform = latest("api/transform", show, page.failed);
  // What a curve depends on: everything but the parameter on its x-axis. Curves with the same basis are not requested again.
  const basis = (body, axis) => JSON.stringify({ ...body, along: axis, [axis]: null });
  let curveBasis = null;

  const current = () => ({ image: page.image, model: page.model.name, steps, ...setting });

  function request() {
    if (!page.image) return;
    const body = current();
    transform(basis(body, along) === curveBasis ? body : { ...body, along });
    showCurves();
  }

  function turn(change) {
    for (const [name, value] of Object.entries(change)) {
      const { min, max, step, to = same, from = same } = KNOBS[name];
      const kept = Math.min(max, Math.max(min, Math.round(to(value) / step) * step));
      setting[name] = Number(from(kept).toFixed(4));
      knobs[name].set(kept);
    }
    stage.place(setting);
    request();
  }

  const knobs = {};
  const rows = Object.entries(KNOBS).map(([name, { label, min, max, step, neutral, write, to = same, from = same }]) => {
    knobs[name] = slider({ id: `knob-${name}`, label, min, max, step, value: to(neutral), show: (value) => write(from(value)),
      oninput: (value) => turn({ [name]: from(value) }) });
    const radio = h("input", { type: "radio", name: "along", id: `along-${name}`, checked: name === along,
      "aria-label": `curves along ${label}`, onchange: () => { along = name; request(); } });
    return h("div", { class: "knob" }, radio, knobs[name].element);
  });
  const reset = () => turn(Object.fromEntries(Object.entries(KNOBS).map(([name, { neutral }]) => [name, neutral])));
  $("knobs").replaceChildren(h("p", { class: "note" }, "The selected parameter is the x-axis of the curves."), ...rows,
    h("p", { class: "buttons" }, h("button", { type: "button", onclick: reset }, "Reset")));
  stage.place(setting);

  function show(answer, body) {
    stage.show(answer.seen);
    if (answer.curve) {
      curve = answer.curve;
      curveBasis = basis(body, curve.along);
      showFilm();
      // Meanwhile the user may have gone back to a setting whose curve this one has replaced.
      if (basis(current(), along) !== curveBasis) request();
    }
    showCurves();
    const drawn = drawnClass();
    const other = answer.comparison && `${answer.comparison.name} ${round(answer.comparison.probabilities[drawn])}`;
    const read = answer.placements && placementOf(answer.placements, drawn);
    $("transform-note").textContent = `Class ${classes[drawn]}: ${page.model.name} ${round(answer.lengths[drawn])}`
      + (other ? `, ${other}.` : ".")
      + (read ? ` Predicted: angle ${PARTS.angle.write(read.angle)}, spread ${round(read.spread, 1)}°, scale ${PARTS.scale.write(read.scale)}, `
        + `x ${PARTS.x.write(read.x)}, y ${PARTS.y.write(read.y)}.` : "");
  }

  function showCurves() {
    if (!curve) return;
    const { label, write, ticks, to = same, from = same } = KNOBS[curve.along];
    const xs = curve.values.map(to);
    const at = to(setting[curve.along]);
    const drawn = drawnClass();
    const chart = (id, name, unit, values) => {
      if (!values) return $(id).replaceChildren(h("p", { class: "note" }, "No network to compare with is served."));
      const order = classes.map((_, index) => index).sort((a, b) => (a === drawn) - (b === drawn));
      const lines = order.map((index) => {
        const own = values.map((each) => each[index]);
        return { name: classes[index], values: own, kind: index === drawn ? "strong" : Math.max(...own) > 0.5 ? "runner-up" : "faint" };
      });
      const here = valueAt(xs, values.map((each) => each[drawn]), at);
      lineChart($(id), { xs, lines, ticks: ticks.map(to), label, unit, write: (value) => write(from(value)), cursor: at,
        title: `${name}: class ${classes[drawn]} along ${label}, ${round(here)} at ${write(from(at))}`,
        onpick: (value) => turn({ [curve.along]: from(value) }) });
    };
    chart("curve-capsules", page.model.name, page.model.kind === "poses" ? "presence" : "length", curve.lengths);
    chart("curve-cnn", page.comparison?.name ?? "no network", "probability", curve.comparison);
    if (curve.placements) showRead(xs, at);
  }

  // The predicted parameter along the change; dashed, a prediction that follows the change exactly.
  function showRead(xs, at) {
    const { label, neutral, write, ticks, to = same, from = same } = KNOBS[curve.along];
    const name = PREDICTED[curve.along].find((part) => page.model.placement.includes(part));
    const part = PARTS[name];
    const values = curve.placements.map((each) => placementOf(each, drawnClass())[name]);
    const scale = name === "scale";
    const own = scale ? Math.log2 : same;      // logarithmic
    const start = valueAt(xs, values.map(own), to(neutral));
    const follows = (PREDICTED[curve.along][0] === name) && xs.map((x) => start + x - to(neutral));
    const sides = { angle: [-180, 180, 360 / 4], x: [0, width - 1, (width - 1) / 2], y: [0, height - 1, (height - 1) / 2],
      scale: [-2, 2, 2], shear: [-1, 1, 1] };
    const [low, high, step] = sides[name];
    const levels = Array.from({ length: Math.round((high - low) / step) + 1 }, (_, i) => low + i * step);
    // The lowest level has no label, which would touch the first label of the x-axis.
    const writeLevel = (value) => (value === low ? "" : scale ? write(2 ** value) : name === "angle" ? degrees(value) : String(Number(value.toFixed(1))).replace("-", "−"));
    const inside = follows && follows.map((value) => (name === "angle" ? ((((value + 180) % 360) + 360) % 360) - 180 : value));
    const lines = [...(inside ? [{ name: "", values: inside, kind: "exact" }] : []), { name: "", values: values.map(own), kind: "strong" }];
    const ranges = { rotate: !lattice.full_circle && lattice.angles, scale: lattice.scales.map(Math.log2) };
    const range = ranges[curve.along];
    const band = range && range.length > 1 ? [range[0], range[range.length - 1]] : null;
    const here = from(at);
    const read = valueAt(xs, values.map(own), at);
    lineChart($("curve-read"), { xs, lines, ticks: ticks.map(to), label: `${label} applied`, unit: `${name} predicted`, write: (value) => write(from(value)), cursor: at,
      low, high, levels, writeLevel, left: 48, band, jump: name === "angle" ? 180 : Infinity,
      title: `${name} predicted for class ${classes[drawnClass()]} along ${label}: ${part.write(scale ? 2 ** read : read)} at ${write(here)}`,
      onpick: (value) => turn({ [curve.along]: from(value) }) });
    $("curve-read-title").textContent = `Predicted ${name} of ${classes[drawnClass()]}`;
    $("curve-read-note").textContent = [inside && "Dashed: a prediction that follows the change exactly.",
      band && "Shaded: the range of the views in training."].filter(Boolean).join(" ");
  }

  // The same thumbnails below both charts, each at its position on the x-axis.
  function showFilm() {
    const { to = same } = KNOBS[curve.along];
    const [first, last] = [curve.values[0], curve.values[curve.values.length - 1]].map(to);
    for (const id of curve.comparison ? ["film-capsules", "film-cnn"] : ["film-capsules"]) {
      $(id).replaceChildren(...curve.pictures.map((source, i) => {
        const image = h("img", { src: source, alt: "" });
        image.style.setProperty("--at", alongChart((to(curve.pictured[i]) - first) / (last - first)));
        return image;
      }));
    }
  }

  if (page.comparison) $("curve-cnn-title").textContent = `Convolutional network (${page.comparison.name})`;
  $("curve-capsules-title").textContent = `Capsule network (${page.model.name})`;

  return {
    update() {
      $("transform-class").textContent = withArticle(page.answer ? classes[drawnClass()] : "digit");
      if (page.image) return request();
      transform.cancel();
      curve = curveBasis = null;
      stage.show(null);
      for (const id of ["curve-capsules", "curve-read", "curve-cnn", "film-capsules", "film-cnn"]) $(id).replaceChildren();
      $("curve-read-note").textContent = "";
      $("transform-note").textContent = "Draw a digit to transform it.";
    },
  };
}
