// Draw: how long each class capsule is, and what its decoder redraws.

import { classBars } from "./bars.js";
import { $, h, round } from "./dom.js";
import { PARTS, placementOf, PoseMark } from "./placement.js";

const BLANK = "static/blank.svg";

/** Shows a picture of an answer, or a black square where there is none. */
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
    $("placement-title").textContent = !answer ? "How it stands"
      : answer.classes.length ? `How the ${name} stands` : `How the nearest class, ${name}, would stand`;
    const rows = Object.entries(PARTS).filter(([name]) => page.model.placement.includes(name))
      .map(([name, { label, write }]) => [label, placement && write(placement[name])]);
    rows.splice(1, 0, ["spread of the angle", placement && `${round(placement.spread, 1)}°`]);
    if (placement?.thickness !== undefined) rows.push(["width of strokes", `${round(placement.thickness, 1)} px`]);
    $("draw-placement").replaceChildren(...rows.map(([label, value]) =>
      h("div", {}, h("dt", {}, label), h("dd", {}, value ?? "–"))));
  }

  /** How familiar the drawing is, if that decides, and how far the reconstruction is from it, if there is one. */
  function about({ familiarity, error }) {
    const parts = [];
    if (familiarity !== null) parts.push(`Familiarity ${round(familiarity)}. Below ${round(page.model.none_below)} the answer is “none of these”.`);
    if (error !== null) parts.push(`The difference is shown brighter than it is. Its mean square is ${error.toFixed(4)} a pixel.`);
    return parts.join(" ");
  }

  return {
    answered() {
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
