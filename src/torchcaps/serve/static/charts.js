// Line charts in SVG. Colours and type come from the style sheet.

import { svg } from "./dom.js";

const WIDTH = 360;
const MARGIN = { left: 34, right: 24, top: 18, bottom: 34 };

/**
 * Draws into `host`, replacing what is there.
 * xs      the values along the axis
 * lines   [{ name, values, kind }]; a kind is a class name: "strong", "faint", …; later ones lie above
 * ticks   the values to write below the axis; label, what they are
 * low     where the upright axis begins; it ends at 1
 * cursor  a value to mark, or null;  onpick(x), called where somebody points
 */
export function lineChart(host, { xs, lines, ticks, label, title, cursor = null, height = 190, low = 0, dots = false,
  write = String, onpick = null }) {
  const [first, last] = [xs[0], xs[xs.length - 1]];
  const x = (value) => MARGIN.left + ((value - first) / (last - first || 1)) * (WIDTH - MARGIN.left - MARGIN.right);
  const y = (value) => height - MARGIN.bottom - ((value - low) / (1 - low)) * (height - MARGIN.top - MARGIN.bottom);
  const text = (content, at, kind = "tick") => svg("text", { class: kind, ...at }, content);
  const grid = [low, (1 + low) / 2, 1].flatMap((value) => [
    svg("line", { class: "grid", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: y(value), y2: y(value) }),
    text(String(Number(value.toFixed(3))), { x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }),
  ]);
  const axis = ticks.map((value) => text(write(value), { x: x(value), y: height - MARGIN.bottom + 16, "text-anchor": "middle" }));
  axis.push(text(label, { x: (MARGIN.left + WIDTH - MARGIN.right) / 2, y: height - 3, "text-anchor": "middle" }, "axis"));
  const curves = lines.flatMap(({ name, values, kind }) => {
    const points = values.map((value, i) => `${x(xs[i]).toFixed(1)},${y(value).toFixed(1)}`);
    const curve = svg("polyline", { class: `line ${kind}`, points: points.join(" "), "data-name": name });
    const dot = (value, i) => svg("circle", { class: `dot ${kind}`, cx: x(xs[i]), cy: y(value), r: 3.5 });
    return dots ? [curve, ...values.map(dot)] : [curve];
  });
  const names = lines.filter(({ kind }) => kind !== "faint" && !dots).map(({ name, values, kind }) => {
    const peak = peakOf(values);
    const side = peak > values.length * 0.9 ? "end" : peak < values.length * 0.1 ? "start" : "middle";
    return text(name, { x: x(xs[peak]), y: Math.max(y(values[peak]) - 5, 9), "text-anchor": side }, `name ${kind}`);
  });
  const mark = cursor === null ? [] : [svg("line", { class: "cursor", x1: x(cursor), x2: x(cursor), y1: y(1), y2: y(low) })];
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": title },
    ...grid, ...mark, ...curves, ...names, ...axis);
  if (onpick) {
    chart.addEventListener("pointerdown", (event) => {
      const box = chart.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * WIDTH;
      const share = (at - MARGIN.left) / (WIDTH - MARGIN.left - MARGIN.right);
      onpick(first + Math.min(1, Math.max(0, share)) * (last - first));
    });
  }
  host.replaceChildren(chart);
}

/** Where a line is highest; of several such places, the one nearest to the middle. */
function peakOf(values) {
  const most = Math.max(...values) - 0.005;
  const off = (i) => Math.abs(i - (values.length - 1) / 2);
  return values.reduce((best, value, i) => (value >= most && (best < 0 || off(i) < off(best)) ? i : best), -1);
}

/** How far along a chart's width, from 0 to 1, a share of its axis lies. */
export const alongChart = (share) => (MARGIN.left + share * (WIDTH - MARGIN.left - MARGIN.right)) / WIDTH;

/** Where a curve stands at a value between two of its points. */
export function valueAt(xs, values, at) {
  const right = Math.max(1, xs.findIndex((x) => x >= at));
  const share = (at - xs[right - 1]) / (xs[right] - xs[right - 1] || 1);
  return values[right - 1] + (values[right] - values[right - 1]) * Math.min(1, Math.max(0, share));
}

