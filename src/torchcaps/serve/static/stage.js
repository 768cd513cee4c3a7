// The transformed image, with a frame and handles that move with it.

import { h, svg } from "./dom.js";
import { picture } from "./draw.js";

const SIDE = 28;      // handles use the coordinates of an image of this side
const HALF = 9;       // half the side of the frame in these units: about the size of a digit

const radians = (value) => (value * Math.PI) / 180;

export class Stage {
  /** `changed({ rotate: …, … })` is called while a handle is dragged. */
  constructor(host, { height, width }, changed) {
    Object.assign(this, { unit: SIDE / width, height: (SIDE * height) / width, width: SIDE, changed, setting: null });
    this.centre = [this.width / 2, this.height / 2];
    this.image = h("img", { class: "picture", id: "stage-picture", alt: "The drawing after the change" });
    this.outline = svg("polygon", { class: "outline" });
    this.stem = svg("line", { class: "outline" });
    this.handles = {
      shift: this.#handle("shift", "Drag to move", "circle", { r: 1.15 }),
      rotate: this.#handle("rotate", "Drag to rotate", "circle", { r: 1.15 }),
      scale: this.#handle("scale", "Drag to scale", "rect", { x: -1, y: -1, width: 2, height: 2 }),
      shear: this.#handle("shear", "Drag to shear", "path", { d: "M-1.6 0 L0 -1 L1.6 0 L0 1 Z" }),
    };
    this.sheet = svg("svg", { viewBox: `0 0 ${this.width} ${this.height}`, "aria-hidden": "true" }, this.outline, this.stem,
      ...Object.values(this.handles));
    host.append(this.image, this.sheet);
  }

  show(source) { picture("stage-picture", source); }

  /** Maps a point of the frame, relative to its centre, to the image: scale, shear, rotate counter-clockwise, move. */
  #at([x, y]) {
    const { rotate, scale, shear } = this.setting;
    const [left, top] = this.#middle(this.setting);
    const [u, v] = [(x - shear * y) * scale, y * scale];
    const [cos, sin] = [Math.cos(radians(rotate)), Math.sin(radians(rotate))];
    return [left + cos * u + sin * v, top - sin * u + cos * v];
  }

  #middle({ shift_x, shift_y }) {
    return [this.centre[0] + shift_x * this.unit, this.centre[1] + shift_y * this.unit];
  }

  place(setting) {
    this.setting = { ...setting };
    const corners = [[-HALF, -HALF], [HALF, -HALF], [HALF, HALF], [-HALF, HALF]].map((corner) => this.#at(corner));
    this.outline.setAttribute("points", corners.map((corner) => corner.join()).join(" "));
    const lollipop = this.#at([0, -HALF - 3 / setting.scale]);
    const places = { shift: this.#at([0, 0]), rotate: lollipop, scale: corners[2], shear: this.#at([0, HALF]) };
    for (const [name, [x, y]] of Object.entries(places)) {
      // Handles stay inside the image.
      const [kx, ky] = [Math.min(this.width - 1.2, Math.max(1.2, x)), Math.min(this.height - 1.2, Math.max(1.2, y))];
      this.handles[name].setAttribute("transform", `translate(${kx} ${ky})`);
    }
    const top = this.#at([0, -HALF]);
    Object.entries({ x1: top[0], y1: top[1], x2: lollipop[0], y2: lollipop[1] }).forEach(([k, v]) => this.stem.setAttribute(k, v));
  }

  #handle(name, title, shape, attributes) {
    const handle = svg("g", { class: `handle ${name}` }, svg("title", {}, title),
      svg("circle", { class: "reach", r: 2.2 }), svg(shape, attributes));
    let begun = null;
    handle.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      handle.setPointerCapture(event.pointerId);
      begun = { from: this.#where(event), setting: { ...this.setting } };
    });
    handle.addEventListener("pointermove", (event) => { if (begun) this.changed(this.#dragged(name, begun, this.#where(event))); });
    for (const end of ["pointerup", "pointercancel"]) handle.addEventListener(end, () => { begun = null; });
    return handle;
  }

  #where(event) {
    const box = this.sheet.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * this.width, ((event.clientY - box.top) / box.height) * this.height];
  }

  #dragged(name, { from, setting }, to) {
    if (name === "shift") {
      const [right, down] = [0, 1].map((axis) => (to[axis] - from[axis]) / this.unit);
      return { shift_x: setting.shift_x + right, shift_y: setting.shift_y + down };
    }
    const middle = this.#middle(setting);
    const [a, b] = [from, to].map(([x, y]) => [x - middle[0], y - middle[1]]);
    if (name === "rotate") {
      const turned = ((Math.atan2(b[1], b[0]) - Math.atan2(a[1], a[0])) * 180) / Math.PI;
      return { rotate: ((setting.rotate - turned + 540) % 360) - 180 };
    }
    if (name === "scale") return { scale: (setting.scale * Math.hypot(...b)) / Math.max(Math.hypot(...a), 0.5) };
    // Shear: how far the lower edge was dragged along itself.
    const angle = radians(-setting.rotate);
    const pulled = (b[0] - a[0]) * Math.cos(angle) + (b[1] - a[1]) * Math.sin(angle);
    return { shear: setting.shear - pulled / (HALF * setting.scale) };
  }
}
