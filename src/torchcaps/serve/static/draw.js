// The Draw panel: the length of each class capsule, and the reconstruction.

import { classBars } from "./bars.js";
import { $, h, round } from "./dom.js";
import { PARTS, placementOf, PoseMark } from "./placement.js";

const BLANK = "static/blank.svg";

/** Shows an image from a response, or a black square for null. */
export function picture(id, source) {
  $(id).src = source ?? BLANK;
}

export function drawPanel(page) {
  const bars = classBars($("draw-bars"), page.model.classes);
  const mark = page.model.kind === "poses" ? new PoseMark($("draw-posed"), page.model.image) : null;

  function showPlacement(answer) {
    const placement = answer ? placementOf(answer.placements, answer.winners[0]) : null;
    mark.show(placement);
    const name = answer && page.model.classes[answer.winners[0]];
    $("placement-title").textContent = !answer ? "Placement"
      : answer.classes.length ? `Placement of ${name}` : `Placement of the nearest class, ${name}`;
    const rows = Object.entries(PARTS).filter(([name]) => page.model.placement.includes(name))
      .map(([name, { label, write }]) => [label, placement && write(placement[name])]);
    rows.splice(1, 0, ["angle spread", placement && `${round(placement.spread, 1)}°`]);
    if (placement?.thickness !== undefined) rows.push(["stroke width", `${round(placement.thickness, 1)} px`]);
    $("draw-placement").replaceChildren(...rows.map(([label, value]) =>
      h("div", {}, h("dt", {}, label), h("dd", {}, value ?? "–"))));
  }

  /** The familiarity, if it is compared with a threshold, and the error of the reconstruction, if there is one. */
  function about({ familiarity, error }) {
    const parts = [];
    if (familiarity !== null) parts.push(`Familiarity ${round(familiarity)}. Below ${round(page.model.none_below)} the answer is “none of these”.`);
    if (error !== null) parts.push(`Mean squared error ${error.toFixed(4)}; the difference is shown brightened.`);
    return parts.join(" ");
  }

  return {
    update() {
      const answer = page.answer;
      const decoded = answer?.decoded[0];
      picture("draw-seen", answer?.seen);
      picture("draw-redrawn", decoded?.reconstruction);
      picture("draw-missing", answer?.missing);
      picture("draw-upright", decoded?.upright);
      if (mark) showPlacement(answer);
      $("draw-error").textContent = answer ? about(answer) : "";
      if (answer) bars.show(answer.lengths, answer.classes.length ? { [answer.winners[0]]: "won" } : {});
      else bars.clear();
    },
  };
}
