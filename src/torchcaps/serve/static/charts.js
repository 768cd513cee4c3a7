// Line charts in SVG, styled by CSS.

import { svg } from "./dom.js";

const WIDTH = 360;
const MARGIN = { left: 34, right: 24, top: 18, bottom: 34 };

/**
 * Draws a chart and replaces the content of `host`.
 * xs      values on the x-axis
 * lines   [{ name, values, kind }]; a kind is a CSS class: "strong", "faint", …; later lines are drawn on top
 * ticks   values to label on the x-axis;  label   title of the x-axis
 * low     start of the y-axis;  high   its end;  levels  values to label on it, formatted by writeLevel
 * unit    what the y-axis shows;
 * left    width of those labels;  band    [from, to] range of the x-axis to shade, or null
 * jump    points that differ by more than this are not connected
 * cursor  x to mark, or null;  onpick(x)  called on a click
 */
export function lineChart(host, { xs, lines, ticks, label, title, cursor = null, height = 190, low = 0, high = 1, dots = false,
  write = String, levels = [low, (high + low) / 2, high], writeLevel = (value) => String(Number(value.toFixed(3))),
  left = MARGIN.left, unit = "", band = null, jump = Infinity, onpick = null }) {
  const [first, last] = [xs[0], xs[xs.length - 1]];
  const x = (value) => left + ((value - first) / (last - first || 1)) * (WIDTH - left - MARGIN.right);
  const y = (value) => height - MARGIN.bottom
    - ((Math.min(Math.max(low, high), Math.max(Math.min(low, high), value)) - low) / (high - low)) * (height - MARGIN.top - MARGIN.bottom);
  const text = (content, at, kind = "tick") => svg("text", { class: kind, ...at }, content);
  const shade = band === null ? [] : [svg("rect", { class: "band", x: x(band[0]), width: x(band[1]) - x(band[0]), y: y(high), height: y(low) - y(high) })];
  const grid = levels.flatMap((value) => [
    svg("line", { class: "grid", x1: left, x2: WIDTH - MARGIN.right, y1: y(value), y2: y(value) }),
    text(writeLevel(value), { x: left - 8, y: y(value) + 4, "text-anchor": "end" }),
  ]);
  const axis = ticks.map((value) => text(write(value), { x: x(value), y: height - MARGIN.bottom + 16, "text-anchor": "middle" }));
  axis.push(text(label, { x: (left + WIDTH - MARGIN.right) / 2, y: height - 3, "text-anchor": "middle" }, "axis"));
  if (unit) axis.push(text(unit, { x: 4, y: 10, "text-anchor": "start" }));
  const curves = lines.flatMap(({ name, values, kind }) => {
    const pieces = [[]];
    values.forEach((value, i) => {
      if (i > 0 && Math.abs(value - values[i - 1]) > jump) pieces.push([]);
      pieces[pieces.length - 1].push(`${x(xs[i]).toFixed(1)},${y(value).toFixed(1)}`);
    });
    const curve = pieces.map((points) => svg("polyline", { class: `line ${kind}`, points: points.join(" "), "data-name": name }));
    const dot = (value, i) => svg("circle", { class: `dot ${kind}`, cx: x(xs[i]), cy: y(value), r: 3.5 });
    return dots ? [...curve, ...values.map(dot)] : curve;
  });
  const names = lines.filter(({ name, kind }) => name !== "" && kind !== "faint" && !dots).map(({ name, values, kind }) => {
    const peak = peakOf(values);
    const side = peak > values.length * 0.9 ? "end" : peak < values.length * 0.1 ? "start" : "middle";
    return text(name, { x: x(xs[peak]), y: Math.max(y(values[peak]) - 5, 9), "text-anchor": side }, `name ${kind}`);
  });
  const mark = cursor === null ? [] : [svg("line", { class: "cursor", x1: x(cursor), x2: x(cursor), y1: y(high), y2: y(low) })];
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": title },
    ...shade, ...grid, ...mark, ...curves, ...names, ...axis);
  if (onpick) {
    chart.addEventListener("pointerdown", (event) => {
      const box = chart.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * WIDTH;
      const share = (at - left) / (WIDTH - left - MARGIN.right);
      onpick(first + Math.min(1, Math.max(0, share)) * (last - first));
    });
  }
  host.replaceChildren(chart);
}

/** Index of the maximum; of several, the one nearest to the middle. */
function peakOf(values) {
  const most = Math.max(...values) - 0.005;
  const off = (i) => Math.abs(i - (values.length - 1) / 2);
  return values.reduce((best, value, i) => (value >= most && (best < 0 || off(i) < off(best)) ? i : best), -1);
}

/** Position of a point of the x-axis, both as a share from 0 to 1: of the axis, and of the chart's width. */
export const alongChart = (share) => (MARGIN.left + share * (WIDTH - MARGIN.left - MARGIN.right)) / WIDTH;

/** Interpolates a curve linearly. */
export function valueAt(xs, values, at) {
  const right = Math.max(1, xs.findIndex((x) => x >= at));
  const share = (at - xs[right - 1]) / (xs[right] - xs[right - 1] || 1);
  return values[right - 1] + (values[right] - values[right - 1]) * Math.min(1, Math.max(0, share));
}

