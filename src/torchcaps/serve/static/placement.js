// Placements: their parameters with units, and a mark that shows one on an image.

import { round, svg } from "./dom.js";

const FRAME = 0.25;      // half the side of the mark's square, as a share of the image's shorter side

const wrapped = (angle) => ((((angle + 180) % 360) + 360) % 360) - 180;
const degrees = (value) => `${round(wrapped(value), 1)}°`;
const pixels = (value) => `${round(value, 1)} px`;
const factor = (value) => `×${round(value)}`;
const plus = { to: (change) => change, from: (offset) => offset, apply: (now, offset) => now + offset };
const times = { to: Math.log2, from: (offset) => 2 ** offset, apply: (now, offset) => now * 2 ** offset };

/**
 * The parameters in display order. `apply(value, offset)` changes one by a slider's offset; `to` converts the change of
 * a sweep (added, or a factor) to such an offset, `from` converts it back.
 */
export const PARTS = {
  angle: { label: "angle", ...plus, reach: () => 90, step: 1, write: degrees, change: (v) => `${v > 0 ? "+" : ""}${round(v, 0)}°` },
  scale: { label: "scale", ...times, reach: () => 1, step: 0.02, write: factor, change: factor },
  x: { label: "x", ...plus, reach: ({ width }) => width / 2, step: 0.25, write: pixels, change: (v) => `${v > 0 ? "+" : ""}${pixels(v)}` },
  y: { label: "y", ...plus, reach: ({ height }) => height / 2, step: 0.25, write: pixels, change: (v) => `${v > 0 ? "+" : ""}${pixels(v)}` },
  stretch: { label: "stretch", ...times, reach: () => 1, step: 0.02, write: factor, change: factor },
  shear: { label: "shear", ...plus, reach: () => 0.6, step: 0.02, write: (v) => round(v), change: (v) => `${v > 0 ? "+" : ""}${round(v)}` },
};

/** The placement of one class, with the parameters that the network predicts: { x, y, angle, scale, … }. */
export const placementOf = (placements, index) => Object.fromEntries(
  Object.entries(placements).filter(([, values]) => values !== null).map(([name, values]) => [name, values[index]]));

/** A dot at the centre, an arrow to the upper side, and the transformed square. */
export class PoseMark {
  constructor(host, { height, width }) {
    Object.assign(this, { height, width });
    this.square = svg("polygon", { class: "outline" });
    this.arrow = svg("path", { class: "arrow" });
    this.dot = svg("circle", { class: "dot", r: width / 40 });
    this.sheet = svg("svg", { class: "pose-mark", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
      this.square, this.arrow, this.dot);
    host.append(this.sheet);
    this.show(null);
  }

  show(placement) {
    this.sheet.toggleAttribute("hidden", placement === null);
    if (placement === null) return;
    const { x, y, angle, scale, stretch = 1, shear = 0 } = placement;
    const [cos, sin] = [Math.cos((angle * Math.PI) / 180), Math.sin((angle * Math.PI) / 180)];
    const [across, down] = [scale * Math.sqrt(stretch), scale / Math.sqrt(stretch)];
    const reach = FRAME * Math.min(this.height, this.width);
    // The same order as Affine.of in torchcaps/geometry.py: stretch, scale, shear, rotate, move. Pixel centres are at ½.
    const at = ([u, v]) => {
      const [right, low] = [(across * u - shear * down * v) * reach, down * v * reach];
      return [x + 0.5 + cos * right + sin * low, y + 0.5 - sin * right + cos * low];
    };
    const points = (...places) => places.map((place) => at(place).map((value) => value.toFixed(3)).join());
    this.square.setAttribute("points", points([-1, -1], [1, -1], [1, 1], [-1, 1]).join(" "));
    this.arrow.setAttribute("d", `M${points([0, 0], [0, -1]).join("L")}M${points([-0.25, -0.65], [0, -1], [0.25, -0.65]).join("L")}`);
    const [cx, cy] = at([0, 0]);
    this.dot.setAttribute("cx", cx);
    this.dot.setAttribute("cy", cy);
  }
}
