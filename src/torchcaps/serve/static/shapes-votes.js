// Votes as arrows in the space of poses, one chart for each class, with the hypotheses as rings.

import { h, round, sentence, svg } from "./dom.js";
import { apart, arrowPath, at, path } from "./shapes-geometry.js";
import { SIDE } from "./shapes-scene.js";

const MARGIN = 8;        // pixels around the scene, where votes may lie
const RING = 3.4;        // radius of a hypothesis at scale 1
const NEAR = { pixels: 4, degrees: 35 };      // a vote that may belong to a whole; farther ones add nothing

/** Whether a vote may be one of those that make up a whole. */
export function supports(vote, whole) {
  const { pixels, degrees } = apart(vote, whole);
  return vote.class === whole.class && pixels < NEAR.pixels && degrees < NEAR.degrees;
}

export const degreesText = (angle) => round(angle, 0).replace(/^−0$/, "0");

/** A vote in words. */
export const poseText = ({ x, y, angle, scale }) => `x ${round(x, 1)}, y ${round(y, 1)}, ${degreesText(angle)}°, ×${round(scale)}`;

export class VoteCharts {
  /** `named(index)` is the name of a part. */
  constructor(host, named) {
    Object.assign(this, { host, named, rings: [], arrows: [], gaps: [], answer: null });
  }

  /** Draws all votes of an answer to `parts`; the part at the position `chosen` stands out. */
  show(answer, parts, kinds, chosen) {
    Object.assign(this, { answer, rings: [], arrows: [], gaps: [] });
    this.host.replaceChildren(...answer.classes.map(({ name }, label) => {
      const votes = answer.votes.filter((vote) => vote.class === label);
      const outlines = parts.map((part, i) => svg("polygon", { class: i === chosen ? "outline chosen" : "outline",
        points: path(kinds[part.type].corners.map((corner) => at(part, corner))) }));
      const arrows = [...votes].sort((a, b) => (a.part === chosen) - (b.part === chosen)).map((vote) => this.#arrow(vote, parts, kinds, chosen));
      const rings = answer.steps[0].wholes.flatMap((whole, k) => (whole.class === label ? [this.#ring(k)] : []));
      const chart = svg("svg", { viewBox: `${-MARGIN - 0.5} ${-MARGIN - 0.5} ${SIDE + 2 * MARGIN} ${SIDE + 2 * MARGIN}`, role: "img",
        "aria-label": this.#summary(name, votes) }, svg("rect", { class: "frame-of-scene", x: -0.5, y: -0.5, width: SIDE, height: SIDE }),
      ...outlines, this.#gap(), ...arrows, ...rings);
      const own = votes.filter((vote) => vote.part === chosen);
      const words = chosen < 0 ? "Select a part to read its votes."
        : `${sentence(this.named(chosen))} votes for ${own.map(poseText).join("; or, turned by half: ")}.`;
      return h("figure", { class: `vote-chart ${name}` }, h("h3", {}, `Votes for a ${name}`), chart, h("figcaption", {}, words));
    }));
  }

  /** Shows the hypotheses of one iteration, and which votes they stand for. */
  step(index) {
    const { wholes } = this.answer.steps[index];
    for (const { ring, k } of this.rings) {
      const { x, y, scale, presence } = wholes[k];
      ring.style.setProperty("opacity", (0.14 + 0.86 * presence).toFixed(3));
      ring.style.setProperty("stroke-width", (0.25 + 0.75 * presence).toFixed(3));
      ring.style.setProperty("transform", `translate(${x.toFixed(2)}px, ${y.toFixed(2)}px)`);
      ring.style.setProperty("r", `${(RING * scale).toFixed(2)}px`);
      ring.dataset.presence = round(presence);
      ring.firstChild.textContent = `A hypothesis, presence ${round(presence)}`;
    }
    for (const { arrow, vote } of this.arrows) {
      arrow.classList.toggle("taken", wholes.some((whole) => whole.couplings[vote.part] >= 0.5 && supports(vote, whole)));
    }
  }

  /** Joins the votes of two parts that are compared, in each chart. */
  compare(pair) {
    this.gaps.forEach((line, label) => {
      const gap = pair && this.answer.gaps.find((each) => each.class === label && each.parts.every((part, i) => part === pair[i]));
      line.style.setProperty("display", gap ? "" : "none");
      if (!gap) return;
      const [one, other] = gap.votes.map((index) => this.answer.votes[index]);
      Object.entries({ x1: one.x, y1: one.y, x2: other.x, y2: other.y }).forEach(([name, value]) => line.setAttribute(name, value));
    });
  }

  #gap() {
    const line = svg("line", { class: "gap" });
    this.gaps.push(line);
    return line;
  }

  #ring(k) {
    const ring = svg("circle", { class: "ring", "data-whole": k }, svg("title", {}));
    this.rings.push({ ring, k });
    return ring;
  }

  #arrow(vote, parts, kinds, chosen) {
    const { type } = parts[vote.part];
    const size = 1.5 / Math.max(...kinds[type].corners.map(([x]) => x));
    const tall = type === "rectangle" ? 2.2 : 1.7;      // marks that can be told apart when they lie on each other
    const mark = kinds[type].corners.map(([x, y]) => at(vote, [(x * size) / vote.scale, (y * size * tall) / vote.scale]));
    const arrow = svg("g", { class: vote.part === chosen ? "vote chosen" : "vote", "data-part": vote.part },
      svg("title", {}, `${this.named(vote.part)}: ${poseText(vote)}`), svg("polygon", { points: path(mark) }), svg("path", { d: arrowPath(vote) }));
    arrow.style.setProperty("opacity", vote.weight);
    this.arrows.push({ arrow, vote });
    return arrow;
  }

  #summary(name, votes) {
    if (!votes.length) return `No votes for a ${name}`;
    return `Votes for a ${name}. ${votes.map((vote) => `${this.named(vote.part)}: ${poseText(vote)}`).join("; ")}`;
  }
}
