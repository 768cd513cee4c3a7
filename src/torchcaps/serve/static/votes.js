// Votes for the longest classes as dots, each class in a plane of its own, with the class capsule among them.

import { $, h, round, svg } from "./dom.js";

const SIDE = 200;
const REACH = 88;      // from the middle to the last vote
const largest = (values) => Math.max(...values.map(Math.abs));

export class VotePlanes {
  /** `pick(part)` is called with the part whose dot was clicked. */
  constructor(host, classes, pick) {
    this.host = host;
    this.classes = classes;
    this.pick = pick;
  }

  clear() {
    this.planes = [];
    this.host.replaceChildren();
    $("planes-note").textContent = "";
  }

  /** Draws the planes of a response; `show` then moves to an iteration. */
  load(votes, parts) {
    this.votes = votes;
    const most = largest([...votes.parts.flatMap((part) => part.votes.flat()), ...votes.capsules.flat(2)]) || 1;
    const along = (value) => SIDE / 2 + (value / most) * REACH;
    const up = (value) => SIDE / 2 - (value / most) * REACH;
    this.point = ([x, y]) => [along(x).toFixed(1), up(y).toFixed(1)];
    this.planes = votes.classes.map((index, m) => this.#plane(index, m, most));
    this.host.replaceChildren(...this.planes.map(({ figure }) => figure));
    const kept = votes.kept.map((share, m) => `${Math.round(100 * share)} % for ${this.classes[votes.classes[m]]}`).join(", ");
    $("planes-note").textContent = `Each dot is the vote of one part: of ${parts.toLocaleString("en")} parts the ${votes.parts.length} `
      + "that are longest where there is ink. Area: coupling. Right of the middle: for the class; left: against it. Diamond: the "
      + `class capsule, which is at most 1 long. The planes show ${kept} of the votes’ squared length.`;
  }

  #plane(index, m, most) {
    const dots = this.votes.parts.map((part) => {
      const [cx, cy] = this.point(part.votes[m]);
      return svg("circle", { class: `vote-dot ${part.votes[m][0] < 0 ? "against" : "for"}`, cx, cy, r: 0, onclick: () => this.pick(part) });
    });
    const trail = svg("polyline", { class: "trail" });
    const stem = svg("line", { class: "stem", x1: SIDE / 2, y1: SIDE / 2 });
    const capsule = svg("path", { class: "capsule-mark" });
    const text = (content, x, y, anchor = "middle") => svg("text", { class: "tick", x, y, "text-anchor": anchor }, content);
    const middle = SIDE / 2;
    const plane = svg("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, role: "img" },
      svg("line", { class: "grid", x1: 4, x2: SIDE - 4, y1: middle, y2: middle }),
      svg("line", { class: "grid", x1: middle, x2: middle, y1: 4, y2: SIDE - 4 }),
      text("0", middle - 3, middle + 13, "end"), text(round(most, 1), SIDE - 4, middle + 13, "end"), text(round(-most, 1), 4, middle + 13, "start"),
      ...dots, stem, trail, capsule);
    const caption = h("figcaption", {});
    return { figure: h("figure", { class: "plane" }, plane, caption), plane, caption, dots, stem, trail, capsule, index, m };
  }

  /** Shows iteration `step` (from 0), with the chosen part outlined. */
  show(step, chosen) {
    for (const { plane, caption, dots, stem, trail, capsule, index, m } of this.planes) {
      const name = this.classes[index];
      dots.forEach((dot, i) => {
        const part = this.votes.parts[i];
        dot.setAttribute("r", (12 * Math.sqrt(this.votes.couplings[step][i][m])).toFixed(2));
        dot.classList.toggle("chosen", part.type === chosen.type && part.row === chosen.row && part.column === chosen.column);
      });
      const path = this.votes.capsules.slice(0, step + 1).map((each) => this.point(each[m]));
      trail.setAttribute("points", path.map((each) => each.join(",")).join(" "));
      const [x, y] = path[step];
      stem.setAttribute("x2", x);
      stem.setAttribute("y2", y);
      capsule.setAttribute("d", `M${x} ${y - 7} l6 7 l-6 7 l-6 -7 Z`);
      const share = this.#shareFor(step, m);
      caption.textContent = `Votes for ${name}: agreement ${round(this.votes.agreement[step][m])}`;
      plane.setAttribute("aria-label", `Votes for ${name}: ${Math.round(100 * share)} % of their coupling is on votes for the class; `
        + `its capsule reaches ${round(this.votes.capsules[step][m][0])}`);
    }
  }

  /** The share of the coupling that lies on votes that point towards the class capsule. */
  #shareFor(step, m) {
    const couplings = this.votes.couplings[step].map((row) => row[m]);
    const sum = (keep) => couplings.reduce((total, value, i) => total + (keep(i) ? value : 0), 0);
    return sum((i) => this.votes.parts[i].votes[m][0] > 0) / (sum(() => true) || 1);
  }
}
