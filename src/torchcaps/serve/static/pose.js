// Pose: the numbers of the winning capsule as sliders, and the digit redrawn from them.

import { latest } from "./api.js";
import { $, h, round, slider } from "./dom.js";
import { picture } from "./draw.js";

const REACH = 0.3;      // how far a slider goes to either side; the paper's figure goes 0.25

export function posePanel(page) {
  const offsets = new Array(page.model.pose).fill(0);
  let capsule = null;      // { class, pose } as the network gave it
  let shown = null;        // the answer that the sliders stand for

  const reconstruct = latest("api/reconstruct", (answer, question) => {
    picture("pose-redrawn", answer.reconstruction);
    if (question.sweep) showSweep(answer.sweep);
  }, page.failed);

  const sliders = offsets.map((_, dimension) => slider({
    id: `pose-${dimension}`, label: "", min: -REACH, max: REACH, step: 0.01, value: 0,
    show: (offset) => round((capsule?.pose[dimension] ?? 0) + offset),
    oninput: (offset) => { offsets[dimension] = offset; redraw(); },
  }));
  $("pose-sliders").replaceChildren(...sliders.map(({ element }) => element));

  const meaning = (dimension) => page.model.meanings?.[capsule?.class]?.[dimension] ?? null;
  const label = (dimension) => meaning(dimension)?.name ?? `dimension ${dimension + 1}`;
  const evidence = (dimension) => (meaning(dimension)?.name ? `r = ${round(meaning(dimension).correlation)}` : "");

  const sweeping = () => $("pose-sweep").getAttribute("aria-expanded") === "true";

  function redraw() {
    if (!capsule) return;
    const pose = capsule.pose.map((value, dimension) => value + offsets[dimension]);
    reconstruct({ class: capsule.class, pose, model: page.model.name, sweep: sweeping() });
  }

  function reset() {
    offsets.fill(0);
    sliders.forEach(({ set }) => set(0));
  }

  // The strip of the paper's figure 4: a row for each dimension, every column a step away from the pose of the sliders.
  function showSweep({ values, picture: strip }) {
    const choose = (dimension, offset) => {
      offsets[dimension] = Math.min(REACH, Math.max(-REACH, offsets[dimension] + offset));
      sliders[dimension].set(offsets[dimension]);
      redraw();
    };
    const image = h("img", { src: strip, class: "strip", title: "Click a picture to take its numbers",
      alt: `${offsets.length} rows, one for each dimension, of the digit redrawn with that number less or more` });
    image.addEventListener("click", (event) => {
      const box = image.getBoundingClientRect();
      const column = Math.floor(((event.clientX - box.left) / box.width) * values.length);
      choose(Math.floor(((event.clientY - box.top) / box.height) * offsets.length), values[column]);
    });
    $("sweep").replaceChildren(
      h("div", { class: "offsets", "aria-hidden": "true" }, ...[0, 5, 10].map((i) => h("span", {}, signed(values[i])))),
      h("ol", { class: "rows" }, ...offsets.map((_, dimension) => h("li", {}, label(dimension)))),
      image,
    );
  }
  const signed = (value) => (value > 0 ? `+${round(value)}` : round(value));

  $("pose-note").textContent = "In the middle, each number is as the network said it."
    + (page.model.meanings ? " One is named where it goes with something measured on many digits: r says how closely." : "");
  $("pose-reset").addEventListener("click", () => { reset(); redraw(); });
  $("pose-sweep").addEventListener("click", () => {
    const open = !sweeping();
    $("pose-sweep").setAttribute("aria-expanded", String(open));
    $("sweep").hidden = !open;
    if (open) redraw();
  });

  return {
    answered() {
      if (shown === page.answer && shown !== null) return;
      shown = page.answer;
      const decoded = page.answer?.decoded[0] ?? null;
      const same = decoded && capsule?.class === decoded.class && decoded.pose.every((value, i) => value === capsule.pose[i]);
      if (same) return;      // asked again after the server was away: what the sliders were moved to is kept
      capsule = decoded && { class: decoded.class, pose: decoded.pose };
      reconstruct.forget();
      reset();
      sliders.forEach(({ text, input }, dimension) => {
        text.replaceChildren(h("span", { class: "meaning" }, label(dimension)), h("span", { class: "evidence" }, evidence(dimension)));
        text.classList.toggle("known", evidence(dimension) !== "");
        input.disabled = capsule === null;
      });
      picture("pose-seen", page.answer?.seen);
      picture("pose-redrawn", decoded?.reconstruction);
      if (capsule === null) $("sweep").replaceChildren();
      if (sweeping()) redraw();
    },
    again: redraw,
  };
}
