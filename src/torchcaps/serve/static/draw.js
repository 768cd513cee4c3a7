// Draw: how long each class capsule is, and what its decoder redraws.

import { classBars } from "./bars.js";
import { $ } from "./dom.js";

const BLANK = "static/blank.svg";

/** Shows a picture of an answer, or a black square where there is none. */
export function picture(id, source) {
  $(id).src = source ?? BLANK;
}

export function drawPanel(page) {
  const bars = classBars($("draw-bars"), page.model.classes);
  return {
    answered() {
      const answer = page.answer;
      const decoded = answer?.decoded[0];
      picture("draw-seen", answer?.seen);
      picture("draw-redrawn", decoded?.reconstruction);
      picture("draw-missing", answer?.missing);
      $("draw-error").textContent = !answer ? ""
        : `The difference is shown brighter than it is. Its mean square is ${answer.error.toFixed(4)} a pixel.`;
      if (answer) bars.show(answer.lengths, { [answer.winners[0]]: "won" });
      else bars.clear();
    },
  };
}
