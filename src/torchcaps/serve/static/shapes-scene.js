// The scene of the Shapes panel: parts to drag, turn and scale, on an image of 64×64 pixels.

import { h, svg } from "./dom.js";
import { arrowPath, at, compose, path, wrapped } from "./shapes-geometry.js";

export const SIDE = 64;
export const SCALES = [0.4, 3];
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const TURN = 5;             // degrees of a key
const GROWTH = 1.05;        // factor of a key
const LABEL = [5, 4.2];     // pixels that a number takes on a phone, where it is largest
const TURN_KEYS = { "[": TURN, "]": -TURN, "{": TURN / 5, "}": -TURN / 5 };
const SCALE_KEYS = { "+": GROWTH, "=": GROWTH, "-": 1 / GROWTH, _: 1 / GROWTH };

/** A part within the limits of the scene. */
export function limited({ x, y, angle, scale, ...rest }) {
  const within = (value, low, high) => Math.min(high, Math.max(low, value));
  const tidy = (value) => Math.round(value * 1000) / 1000;
  return { ...rest, x: tidy(within(x, 0, SIDE - 1)), y: tidy(within(y, 0, SIDE - 1)), angle: tidy(wrapped(angle)),
    scale: tidy(within(scale, ...SCALES)) };
}

export class Scene {
  /**
   * `changed(id, part)` is called for a part that was moved, turned or scaled, `selected(id)` for one that was chosen,
   * `removed(id)` for one to remove. `named(part)` is its name, `described(part)` its name and pose in words.
   */
  constructor(host, { changed, selected, removed, described }) {
    Object.assign(this, { changed, selected, removed, described, kinds: {}, nodes: new Map(), chosen: null, parts: [] });
    this.image = h("canvas", { width: SIDE, height: SIDE, "aria-hidden": "true" });
    this.ghosts = svg("g", { class: "ghosts", "aria-hidden": "true" });
    this.group = svg("g", {});
    this.labels = svg("g", { class: "numbers", "aria-hidden": "true" });
    this.stem = svg("line", { class: "stem" });
    this.handles = svg("g", { class: "handles", "aria-hidden": "true" }, this.stem,
      this.#handle("turn", "Drag to turn", svg("circle", { r: 1.5 })),
      this.#handle("scale", "Drag to scale", svg("rect", { x: -1.4, y: -1.4, width: 2.8, height: 2.8 })));
    // Pixel centres are at whole numbers.
    this.sheet = svg("svg", { viewBox: `-0.5 -0.5 ${SIDE} ${SIDE}`, role: "application", "aria-label": "Scene of 64 by 64 pixels",
      "aria-describedby": "shapes-help" }, this.group, this.ghosts, this.handles, this.labels);
    this.sheet.addEventListener("pointerdown", (event) => { if (event.target === this.sheet) this.selected(null); });
    host.append(this.image, this.sheet);
  }

  /** Shows parts { id, number, type, x, y, angle, scale }, of which the one with the id `chosen` has handles. */
  show(parts, chosen, kinds) {
    Object.assign(this, { parts, chosen, kinds });
    for (const [id, node] of this.nodes) {
      if (parts.some((part) => part.id === id)) continue;
      node.remove();
      this.nodes.delete(id);
    }
    for (const part of parts) {
      if (!this.nodes.has(part.id)) this.nodes.set(part.id, this.#node(part));
      const node = this.nodes.get(part.id);
      node.querySelector("polygon").setAttribute("points", path(this.#corners(part)));
      node.setAttribute("aria-label", this.described(part));
      node.classList.toggle("chosen", part.id === chosen);
    }
    this.#paint();
    this.#placeHandles();
    this.#placeNumbers();
  }

  focus(id) { this.nodes.get(id)?.focus({ preventScroll: true }); }

  /** Outlines the members of wholes [{ pose, members, kind, presence }], with an arrow to their upper side. */
  outline(wholes) {
    this.ghosts.replaceChildren(...wholes.map(({ pose, members, kind, presence }) => {
      const ghost = svg("g", { class: `ghost ${kind}` },
        ...members.map((member) => svg("polygon", { points: path(this.#corners({ type: member.type, ...compose(pose, member) })) })),
        svg("path", { d: arrowPath(pose) }), svg("circle", { cx: pose.x, cy: pose.y, r: 0.7 }));
      ghost.style.setProperty("opacity", presence);
      return ghost;
    }));
  }

  #corners(part) { return this.kinds[part.type].corners.map((corner) => at(part, corner)); }

  #node(part) {
    const node = svg("g", { class: "shape", tabindex: 0, role: "img", "data-id": part.id }, svg("polygon", {}));
    let begun = null;
    const now = () => this.parts.find(({ id }) => id === part.id);
    node.addEventListener("focus", () => { if (this.chosen !== part.id) this.selected(part.id); });
    node.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      node.setPointerCapture(event.pointerId);
      this.selected(part.id);
      begun = { from: this.#where(event), part: now() };
    });
    node.addEventListener("pointermove", (event) => {
      if (!begun) return;
      const to = this.#where(event);
      this.changed(part.id, { x: begun.part.x + to[0] - begun.from[0], y: begun.part.y + to[1] - begun.from[1] });
    });
    for (const end of ["pointerup", "pointercancel"]) node.addEventListener(end, () => { begun = null; });
    node.addEventListener("keydown", (event) => this.#key(event, now()));
    this.group.append(node);
    return node;
  }

  #key(event, part) {
    if (event.ctrlKey !== event.altKey || event.metaKey) return;      // both are AltGr, which some keyboards need for [ and ]
    const { key } = event;
    if (key in STEPS) {
      const step = event.shiftKey ? 0.2 : 1;
      this.changed(part.id, { x: part.x + step * STEPS[key][0], y: part.y + step * STEPS[key][1] }, true);
    } else if (key in TURN_KEYS) this.changed(part.id, { angle: part.angle + TURN_KEYS[key] }, true);
    else if (key in SCALE_KEYS) this.changed(part.id, { scale: part.scale * SCALE_KEYS[key] }, true);
    else if (key === "Delete" || key === "Backspace") this.removed(part.id);
    else return;
    event.preventDefault();
  }

  #where(event) {
    const box = this.sheet.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * SIDE - 0.5, ((event.clientY - box.top) / box.height) * SIDE - 0.5];
  }

  #handle(name, title, mark) {
    const handle = svg("g", { class: `handle ${name}` }, svg("title", {}, title), svg("circle", { class: "reach", r: 2.8 }), mark);
    let begun = null;
    const polar = (event, { x, y }) => {
      const [right, down] = this.#where(event).map((value, axis) => value - [x, y][axis]);
      return { angle: (Math.atan2(-down, right) * 180) / Math.PI, distance: Math.max(0.5, Math.hypot(right, down)) };
    };
    handle.addEventListener("pointerdown", (event) => {
      event.preventDefault();      // the part keeps the focus
      handle.setPointerCapture(event.pointerId);
      const part = this.parts.find(({ id }) => id === this.chosen);
      begun = { part, ...polar(event, part) };
    });
    handle.addEventListener("pointermove", (event) => {
      if (!begun) return;
      const { angle, distance } = polar(event, begun.part);
      this.changed(begun.part.id, name === "turn" ? { angle: begun.part.angle + angle - begun.angle }
        : { scale: (begun.part.scale * distance) / begun.distance });
    });
    for (const end of ["pointerup", "pointercancel"]) handle.addEventListener(end, () => { begun = null; });
    return handle;
  }

  /** The handles of the chosen part: to turn above or below it, to scale at a corner; where the scene has room. */
  #placeHandles() {
    const part = this.parts.find(({ id }) => id === this.chosen);
    this.handles.toggleAttribute("hidden", part === undefined);
    this.handles.style.setProperty("display", part === undefined ? "none" : "");
    if (part === undefined) return;
    const reach = Math.max(...this.kinds[part.type].corners.map(([, y]) => Math.abs(y))) + 5 / part.scale;
    const inside = ([x, y]) => x >= 1 && y >= 1 && x <= SIDE - 2 && y <= SIDE - 2;
    const held = (point) => point.map((value) => Math.min(SIDE - 2.5, Math.max(1.5, value)));
    const choose = (points) => points.find(inside) ?? held(points[0]);
    const corners = this.#corners(part);
    const [turn, scale] = [choose([[0, -reach], [0, reach]].map((point) => at(part, point))), choose(corners.slice(1).concat([corners[0]]))];
    const [, first, second] = this.handles.children;
    first.setAttribute("transform", `translate(${turn.join(" ")})`);
    second.setAttribute("transform", `translate(${scale.join(" ")})`);
    Object.entries({ x1: part.x, y1: part.y, x2: turn[0], y2: turn[1] }).forEach(([name, value]) => this.stem.setAttribute(name, value));
  }

  /** The numbers of the parts, at their centroids or as near as no other number is. */
  #placeNumbers() {
    const taken = [];
    const free = ([x, y]) => x > 1.5 && y > 1.5 && x < SIDE - 2.5 && y < SIDE - 2.5
      && taken.every(([u, v]) => Math.abs(x - u) >= LABEL[0] || Math.abs(y - v) >= LABEL[1]);
    this.labels.replaceChildren(...this.parts.map((part) => {
      const rings = [0, 4.4, 8.8, 13.2].flatMap((radius) => Array.from({ length: radius ? 12 : 1 }, (_, i) =>
        [part.x + radius * Math.cos((i * Math.PI) / 6), part.y + radius * Math.sin((i * Math.PI) / 6)]));
      const spot = rings.find(free) ?? rings[0];
      taken.push(spot);
      return svg("text", { x: spot[0], y: spot[1] }, String(part.number));
    }));
  }

  #paint() {
    const context = this.image.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0.5, 0.5);
    context.clearRect(-1, -1, SIDE + 1, SIDE + 1);
    context.fillStyle = "#6b7280";
    for (const part of this.parts) {
      context.beginPath();
      for (const [x, y] of this.#corners(part)) context.lineTo(x, y);
      context.fill();
    }
  }
}
