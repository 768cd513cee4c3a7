// Two reconstructions in one image, and their values at the pixel under the pointer or chosen with the arrow keys.

import { h, round } from "./dom.js";
import { toPicture } from "./pixels.js";

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class Probe {
  constructor(host, text, height, width) {
    Object.assign(this, { text, height, width, at: [Math.floor(width / 2), Math.floor(height / 2)], values: null });
    this.image = h("img", { class: "picture", alt: "" });
    Object.entries({ tabindex: 0, role: "application", "aria-describedby": text.id,
      "aria-label": "Both reconstructions, each in its colour. Arrow keys select a pixel." })
      .forEach(([name, value]) => host.setAttribute(name, value));
    this.mark = h("span", { class: "pixel", hidden: true });
    this.mark.style.setProperty("--size", width);
    host.append(this.image, this.mark);
    const point = (event) => {
      const box = this.image.getBoundingClientRect();
      this.#move([Math.floor(((event.clientX - box.left) / box.width) * width),
        Math.floor(((event.clientY - box.top) / box.height) * height)]);
    };
    this.image.addEventListener("pointermove", point);
    this.image.addEventListener("pointerdown", point);
    host.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      this.#move(this.at.map((value, axis) => value + step[axis]));
    });
  }

  show(colours, values, names) {
    Object.assign(this, { values, names });
    this.image.src = toPicture(colours, this.height, this.width);
    // Start where both have the most ink, or the only one.
    const meet = names.every(Boolean) ? Math.min : Math.max;
    const both = Array.from(values.first, (value, i) => meet(value, values.second[i]));
    const most = both.indexOf(Math.max(...both));
    this.#move([most % this.width, Math.floor(most / this.width)]);
  }

  blank() {
    this.values = null;
    this.mark.hidden = true;
    this.text.textContent = "";
    this.image.src = toPicture(Array.from({ length: this.height * this.width }, () => [0, 0, 0]), this.height, this.width);
  }

  #move([x, y]) {
    if (!this.values) return;
    this.at = [Math.min(this.width - 1, Math.max(0, x)), Math.min(this.height - 1, Math.max(0, y))];
    this.mark.hidden = false;
    this.mark.style.setProperty("--x", this.at[0]);
    this.mark.style.setProperty("--y", this.at[1]);
    const i = this.at[1] * this.width + this.at[0];
    const { drawn, first, second } = this.values;
    this.text.textContent = `Row ${this.at[1] + 1}, column ${this.at[0] + 1}: input ${round(drawn[i])}; `
      + `${[first, second].flatMap((part, k) => (this.names[k] ? [`the ${this.names[k]} explains ${round(part[i])}`] : [])).join(", ")}.`;
  }
}
