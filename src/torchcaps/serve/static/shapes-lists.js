// The lists of the Shapes panel: parts with poses to edit, wholes with what they take, and how far votes are apart.

import { h, round, sentence, svg } from "./dom.js";
import { path, wrapped } from "./shapes-geometry.js";
import { SCALES, SIDE } from "./shapes-scene.js";
import { degreesText, supports } from "./shapes-votes.js";

export const PRESENT = 0.5;      // presence from which a whole counts as there
const SEEN = 0.05;               // presence in any iteration from which it is listed
const FIELDS = {
  x: { label: "x", min: 0, max: SIDE - 1, digits: 1 },
  y: { label: "y", min: 0, max: SIDE - 1, digits: 1 },
  angle: { label: "angle", min: -360, max: 360, digits: 0 },
  scale: { label: "scale", min: SCALES[0], max: SCALES[1], digits: 2 },
};

/** A small picture of a type of part. */
const icon = ({ corners }) => svg("svg", { class: "icon", viewBox: "-8 -6 16 12", "aria-hidden": "true" }, svg("polygon", { points: path(corners) }));

/** The table of parts: each has four numbers to edit, and a button to remove it. */
export class PartList {
  constructor(host, { changed, selected, removed, named, partOf }) {
    Object.assign(this, { changed, selected, removed, named, partOf, rows: new Map() });
    this.body = h("tbody", {});
    const heads = ["part", "x, px", "y, px", "angle, °", "scale, ×"].map((text) => h("th", { scope: "col" }, text));
    host.replaceChildren(h("thead", {}, h("tr", {}, ...heads, h("td", {}))), this.body);
  }

  show(parts, chosen, kinds) {
    for (const [id, { row }] of this.rows) {
      if (parts.some((part) => part.id === id)) continue;
      row.remove();
      this.rows.delete(id);
    }
    for (const part of parts) {
      if (!this.rows.has(part.id)) this.rows.set(part.id, this.#row(part, kinds));
      const { row, inputs } = this.rows.get(part.id);
      row.classList.toggle("chosen", part.id === chosen);
      row.querySelector("button").setAttribute("aria-pressed", String(part.id === chosen));
      for (const [name, input] of Object.entries(inputs)) {
        if (input !== document.activeElement) input.value = Number(part[name].toFixed(FIELDS[name].digits));
      }
    }
  }

  focus(id) { this.rows.get(id)?.row.querySelector(".remove").focus(); }

  #row(part, kinds) {
    const name = this.named(part);
    const inputs = Object.fromEntries(Object.entries(FIELDS).map(([field, { label, min, max, digits }]) => {
      const input = h("input", { type: "number", min, max, step: "any", "aria-label": `${sentence(name)}: ${label}`,
        oninput: () => { if (input.value !== "" && input.checkValidity()) this.changed(part.id, { [field]: Number(input.value) }); },
        onchange: () => { input.value = Number(this.partOf(part.id)[field].toFixed(digits)); } });
      return [field, input];
    }));
    const row = h("tr", {}, h("th", { scope: "row" }, h("button", { type: "button", "aria-label": `Select ${name}`,
      onclick: () => this.selected(part.id) }, h("span", {}, String(part.number)), icon(kinds[part.type]))),
    ...Object.values(inputs).map((input) => h("td", {}, input)),
    h("td", {}, h("button", { type: "button", class: "remove", "aria-label": `Remove ${name}`, onclick: () => this.removed(part.id) }, "×")));
    this.body.append(row);
    return { row, inputs };
  }
}

/** Hypotheses that are present in some iteration, with names such as "house 2": the most present at last come first. */
export function listed({ classes, steps }) {
  const last = steps[steps.length - 1].wholes;
  const found = last.map((whole, k) => ({ k, class: whole.class, presence: whole.presence,
    most: Math.max(...steps.map((step) => step.wholes[k].presence)) }))
    .filter(({ most }) => most >= SEEN).sort((a, b) => b.presence - a.presence || b.most - a.most);
  const count = (label) => found.filter((each) => each.class === label).length;
  const used = {};
  for (const each of found) {
    const { name } = classes[each.class];
    used[name] = (used[name] ?? 0) + 1;
    each.name = count(each.class) > 1 ? `${name} ${used[name]}` : name;
  }
  return found;
}

/** The parts that vote for a hypothesis. */
export const voters = (answer, k) => [...new Set(answer.votes
  .filter((vote) => supports(vote, answer.steps[0].wholes[k])).map(({ part }) => part))];

/** The wholes in one iteration. `pick(k)` is called for one that is clicked; that at `pinned` is marked. */
export function showWholes(host, answer, index, { found, named, pinned, pick }) {
  const step = answer.steps[index];
  const heads = ["whole", "presence", "x, px", "y, px", "angle, °", "scale, ×", "takes"];
  const rows = found.map(({ k, name }) => {
    const whole = step.wholes[k];
    const there = whole.presence >= PRESENT;
    const bar = h("span", { class: "meter" });
    bar.style.setProperty("--value", whole.presence);
    const taken = whole.couplings.flatMap((share, part) => (share >= SEEN ? [`${named(part)}${share < 0.995 ? ` (${round(100 * share, 0)} %)` : ""}`] : []));
    const instead = there ? "–" : `nothing; ${voters(answer, k).map(named).join(" and ")} voted for it`;
    return h("tr", { role: "row", class: `${answer.classes[whole.class].name}${there ? "" : " absent"}`, "data-whole": k },
      h("th", { role: "rowheader", scope: "row" }, h("button", { type: "button", "aria-pressed": String(k === pinned), onclick: () => pick(k) }, name)),
      h("td", { role: "cell", class: "presence" }, h("span", { class: "number" }, round(whole.presence)), bar),
      ...[round(whole.x, 1), round(whole.y, 1), degreesText(wrapped(whole.angle)), round(whole.scale)].map((text) => h("td", { role: "cell" }, text)),
      h("td", { role: "cell", class: "takes" }, taken.length ? taken.join(", ") : instead));
  });
  const none = h("tr", { role: "row" }, h("td", { role: "cell", class: "none", colspan: heads.length }, "No two votes agree: there is no whole."));
  // Roles, because on a phone rows are grids.
  host.replaceChildren(h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ...heads.map((text) => h("th", { role: "columnheader", scope: "col" }, text)))),
    h("tbody", { role: "rowgroup" }, ...(rows.length ? rows : [none])));
}

/** The two parts to compare: those of the pinned whole, of the chosen part, or of the most present whole. */
export function comparedPair(answer, { found, pinned, chosen }) {
  const { gaps } = answer;
  const best = (candidates) => [...candidates].sort((a, b) => b.presence - a.presence || a.pixels - b.pixels)[0]?.parts ?? null;
  const ofWhole = (each) => best(gaps.filter((gap) => gap.class === each.class && gap.parts.every((part) => voters(answer, each.k).includes(part))));
  if (pinned !== null) return ofWhole(found.find(({ k }) => k === pinned)) ?? best(gaps);
  const own = gaps.filter(({ parts }) => parts.includes(chosen));
  if (own.length) return best(own);
  return (found.length ? ofWhole(found[0]) : null) ?? best(gaps);
}

/** How far apart two parts vote, for each class, and whether that is one whole. */
export function showGaps(table, text, answer, pair, named) {
  table.replaceChildren();
  text.textContent = "Votes of a rectangle and of a triangle can agree: place both.";
  if (pair === null) return;
  const there = answer.steps[answer.steps.length - 1].wholes.filter(({ presence }) => presence >= PRESENT);
  const takes = (whole, part) => whole.couplings[part] >= PRESENT;
  const judged = answer.gaps.filter(({ parts }) => parts.every((part, i) => part === pair[i])).map((gap) => {
    const agree = gap.presence >= PRESENT;
    const away = agree && !there.some((whole) => whole.class === gap.class && pair.every((part) => takes(whole, part)));
    const taken = away ? pair.filter((part) => there.some((whole) => takes(whole, part))) : [];
    return { gap, agree, taken: taken.map(named), name: answer.classes[gap.class].name,
      verdict: !agree ? "do not agree" : away ? "agree, but explained away" : "agree" };
  });
  const cells = ({ gap, verdict }) => [`${round(gap.pixels, 1)} px`, `${round(gap.degrees, 0)}°`, `×${round(gap.scale)}`, verdict];
  table.replaceChildren(
    h("thead", {}, h("tr", {}, ...["as parts of a", "position", "angle", "scale", "the votes"].map((each) => h("th", { scope: "col" }, each)))),
    h("tbody", {}, ...judged.map((each) => h("tr", { class: `${each.name}${each.agree ? "" : " absent"}` }, h("th", { scope: "row" }, each.name),
      ...cells(each).map((cell) => h("td", {}, cell))))));
  text.textContent = gapsText(judged, pair.map(named), answer.tolerance);
}

function gapsText(judged, [one, other], { pixels, degrees, scale }) {
  const apart = ({ gap }) => `${round(gap.pixels, 1)} px and ${round(gap.degrees, 0)}° apart`;
  const won = judged.find(({ agree }) => agree);
  const both = `${sentence(one)} and ${other}`;
  const limits = `Votes for one whole are expected to be off by ${pixels} px, ${degrees}° and a factor of ${round(scale)} (standard deviations, at scale 1).`;
  if (!won) return `Why neither? ${both} vote for places ${judged.map((each) => `${apart(each)} as parts of a ${each.name}`).join(", and ")}. ${limits}`;
  const lost = judged.filter(({ agree }) => !agree)
    .map((each) => `Why is this ${won.name} not a ${each.name}? As parts of a ${each.name}, ${one} and ${other} vote for wholes ${apart(each)}.`);
  if (won.taken.length) lost.unshift(`${both} agree on a ${won.name}, but another whole has taken ${won.taken.join(" and ")}.`);
  return [...lost, limits].join(" ");
}
