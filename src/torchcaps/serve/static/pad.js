// The drawing pad: mouse, touch, pen and keyboard draw strokes in a unit square, which are rendered at any size.

import { h } from "./dom.js";

const RESOLUTION = 560;      // of the canvas; twice its size on the page
const SENT = 140;            // side of the image that is sent: five times the network's input, and fast to encode
export const INKS = ["#ff8a3d", "#4dabf7"];
const STEP = 1 / 28;         // of the keyboard pen

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** Marks on a context of `size` pixels; `ink(layer)` gives the colour. */
function paint(context, size, marks, ink) {
  context.lineCap = context.lineJoin = "round";
  for (const mark of marks) {
    if (mark.picture) {
      context.drawImage(mark.picture, 0, 0, size, size);
      continue;
    }
    context.strokeStyle = ink(mark.layer);
    // One short line per segment, because pressure changes the width along a stroke.
    mark.points.forEach(([x, y, pressure], i) => {
      const [fromX, fromY] = mark.points[Math.max(i - 1, 0)];
      context.lineWidth = mark.width * (pressure ?? 1) * size;
      context.beginPath();
      context.moveTo(fromX * size, fromY * size);
      context.lineTo(x * size, y * size);
      context.stroke();
    });
  }
}

/** Marks as a data URL: white ink on black. */
export function pictureOf(marks) {
  const canvas = h("canvas", { width: SENT, height: SENT });
  const context = canvas.getContext("2d");
  context.fillRect(0, 0, SENT, SENT);
  paint(context, SENT, marks, () => "#fff");
  return canvas.toDataURL("image/png");
}

export class Pad {
  /** `changed(finished)` is called while a stroke is drawn (false) and after it (true). */
  constructor(host, { label, help, layers = 1, changed }) {
    this.changed = changed;
    this.layers = layers;
    this.layer = 0;
    this.brush = 0.085;
    this.marks = [];
    this.past = [];
    this.greeting = false;
    this.stroke = null;
    this.canvas = h("canvas", { width: RESOLUTION, height: RESOLUTION, tabindex: 0, role: "application",
      "aria-label": label, "aria-describedby": help });
    this.pen = h("span", { class: "pen", "aria-hidden": "true" });
    host.append(this.canvas, this.pen);
    this.#listenToPointer();
    this.#listenToKeys();
    this.#render();
  }

  /** Adds a centred frame that shows how large to draw, as a share of the pad's side. */
  guide(share) {
    const frame = h("span", { class: "guide", "aria-hidden": "true" });
    frame.style.setProperty("--share", share);
    this.canvas.parentElement.append(frame);
  }

  get empty() { return this.marks.length === 0; }

  /** Replaces the marks; this can be undone. The first stroke removes `greeting` marks. */
  replace(marks, { greeting = false, layer = null } = {}) {
    const kept = layer === null ? [] : this.marks.filter((mark) => mark.layer !== layer);
    this.#lift(false);
    this.#keep([...kept, ...marks]);
    this.greeting = greeting;
    this.changed(true);
  }

  clear() {
    if (!this.empty) this.replace([]);
  }

  undo() {
    if (this.past.length === 0) return;
    this.#lift(false);
    Object.assign(this, this.past.pop());
    this.#render();
    this.changed(true);
  }

  #keep(marks) {
    this.past.push({ marks: this.marks, greeting: this.greeting });
    this.past = this.past.slice(-100);
    this.marks = marks;
    this.#render();
  }

  #begin(point) {
    this.stroke = { layer: this.layer, width: this.brush, points: [point] };
    this.#keep(this.greeting ? [this.stroke] : [...this.marks, this.stroke]);
    this.greeting = false;
    this.changed(false);
    return this.stroke;
  }

  #extend(...points) {
    this.stroke.points.push(...points);
    this.#render();
    this.changed(false);
  }

  #lift(finished = true) {
    const drew = this.stroke !== null;
    this.stroke = null;
    this.pen.classList.remove("down");
    if (drew && finished) this.changed(true);
  }

  #listenToPointer() {
    const canvas = this.canvas;
    let active = null;
    let own = null;      // its stroke, which undo and clear may end early
    const where = (event) => {
      const box = canvas.getBoundingClientRect();
      const pressure = event.pointerType === "pen" && event.pressure > 0 ? 0.5 + event.pressure : 1;
      return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height, pressure];
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (active !== null || event.button !== 0) return;
      active = event.pointerId;
      canvas.setPointerCapture(active);
      this.#lift(false);
      own = this.#begin(where(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (event.pointerId !== active || this.stroke !== own) return;
      const between = event.getCoalescedEvents?.() ?? [];
      this.#extend(...(between.length ? between : [event]).map(where));
    });
    const end = (event) => {
      if (event.pointerId !== active) return;
      active = null;
      if (this.stroke === own) this.#lift();
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
  }

  #listenToKeys() {
    const held = new Set();
    let at = [0.5, 0.25];
    let own = null;      // the keyboard's stroke; a pointer may be drawing another
    const down = () => own !== null && this.stroke === own;
    const show = () => {
      this.pen.style.setProperty("--x", at[0]);
      this.pen.style.setProperty("--y", at[1]);
    };
    show();
    this.canvas.addEventListener("keydown", (event) => {
      const command = event.ctrlKey || event.metaKey;
      if (event.altKey || (command && event.key !== "z")) return;      // browser shortcuts, such as Alt and an arrow
      if (event.key === "Backspace" || (command && event.key === "z")) this.undo();
      else if (event.key === "Delete") this.clear();
      else if (event.key === "Escape" && down()) this.#lift();
      else if (event.key === " " && !event.repeat) {
        if (down()) this.#lift();
        else if (this.stroke === null) {
          own = this.#begin([...at, 1]);
          this.pen.classList.add("down");
        }
      } else if (event.key in STEPS) {
        held.add(event.key);      // two keys together move the pen diagonally
        const step = event.shiftKey ? STEP / 4 : STEP;
        const move = [...held].map((key) => STEPS[key]);
        at = at.map((value, axis) => Math.min(1, Math.max(0, value + step * move.reduce((sum, m) => sum + m[axis], 0))));
        show();
        if (down()) this.#extend([...at, 1]);
      } else return;
      event.preventDefault();
    });
    this.canvas.addEventListener("keyup", (event) => held.delete(event.key));
    this.canvas.addEventListener("blur", () => { held.clear(); if (down()) this.#lift(); });
  }

  #render() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = null;
      const context = this.canvas.getContext("2d");
      context.globalCompositeOperation = "source-over";
      context.fillRect(0, 0, RESOLUTION, RESOLUTION);
      if (this.layers === 1) return paint(context, RESOLUTION, this.marks, () => "#fff");
      // Colours add up where two digits overlap, but not within one: each layer is drawn first, then added.
      for (let layer = 0; layer < this.layers; layer += 1) {
        const sheet = h("canvas", { width: RESOLUTION, height: RESOLUTION });
        paint(sheet.getContext("2d"), RESOLUTION, this.marks.filter((mark) => mark.layer === layer), () => INKS[layer]);
        context.globalCompositeOperation = "lighter";
        context.drawImage(sheet, 0, 0);
      }
    });
  }
}
