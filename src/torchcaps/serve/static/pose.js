// Pose: the numbers of the winning capsule as sliders, and the digit redrawn from them.

import { latest } from "./api.js";
import { $, h, round, slider } from "./dom.js";
import { picture } from "./draw.js";
import { PARTS, placementOf } from "./placement.js";

const REACH = 0.3;      // how far a slider goes to either side; the paper's figure goes 0.25

export function posePanel(page) {
  if (!page.model.decoder) return { answered() {} };      // the panel says so itself
  const offsets = new Array(page.model.pose).fill(0);
  const parts = Object.entries(PARTS).filter(([name]) => page.model.placement?.includes(name));
  const moves = Object.fromEntries(parts.map(([name]) => [name, 0]));      // how far each part is from what the network said
  let capsule = null;      // { class, pose, placement } as the network gave it
  let shown = null;        // the answer that the sliders stand for

  const reconstruct = latest("api/reconstruct", (answer, question) => {
    picture("pose-redrawn", answer.reconstruction);
    picture("pose-upright", answer.upright);
    if (question.sweep) showSweep(answer.sweep);
  }, page.failed);

  const sliders = offsets.map((_, dimension) => slider({
    id: `pose-${dimension}`, label: "", min: -REACH, max: REACH, step: 0.01, value: 0,
    show: (offset) => round((capsule?.pose[dimension] ?? 0) + offset),
    oninput: (offset) => { offsets[dimension] = offset; redraw(); },
  }));
  $("pose-sliders").replaceChildren(...sliders.map(({ element }) => element));
  const partSliders = Object.fromEntries(parts.map(([name, { label: words, reach, step, write, apply }]) => [name, slider({
    id: `part-${name}`, label: words, min: -reach(page.model.image), max: reach(page.model.image), step, value: 0,
    show: (offset) => (capsule ? write(apply(capsule.placement[name], offset)) : "–"),
    oninput: (offset) => { moves[name] = offset; redraw(); },
  })]));
  $("pose-parts").replaceChildren(...Object.values(partSliders).map(({ element }) => element));

  const meaning = (dimension) => page.model.meanings?.[capsule?.class]?.[dimension] ?? null;
  const label = (dimension) => meaning(dimension)?.name ?? `dimension ${dimension + 1}`;
  const evidence = (dimension) => (meaning(dimension)?.name ? `r = ${round(meaning(dimension).correlation)}` : "");

  const sweeping = () => $("pose-sweep").getAttribute("aria-expanded") === "true";

  function redraw() {
    if (!capsule) return;
    const pose = capsule.pose.map((value, dimension) => value + offsets[dimension]);
    const placement = capsule.placement
      && Object.fromEntries(parts.map(([name, { apply }]) => [name, apply(capsule.placement[name], moves[name])]));
    reconstruct({ class: capsule.class, pose, placement, model: page.model.name, sweep: sweeping() });
  }

  function reset() {
    offsets.fill(0);
    sliders.forEach(({ set }) => set(0));
    for (const [name] of parts) {
      moves[name] = 0;
      partSliders[name].set(0);
    }
  }

  // The strip of the paper's figure 4: a row for each dimension, every column a step away from the pose of the sliders.
  function showSweep({ values, picture: strip, parts: swept }) {
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
      ...swept.flatMap(sweptPart),
      h("div", { class: "offsets", "aria-hidden": "true" }, ...[0, 5, 10].map((i) => h("span", {}, signed(values[i])))),
      h("ol", { class: "rows" }, ...offsets.map((_, dimension) => h("li", {}, label(dimension)))),
      image,
    );
  }
  // A row for a part of the placement, each with values of its own.
  function sweptPart({ name, values, picture: strip }) {
    const { label: words, to, change } = PARTS[name];
    const { input, set } = partSliders[name];
    const row = h("img", { src: strip, class: "strip", title: "Click a picture to take its pose", alt: `The digit redrawn with its ${words} changed` });
    row.addEventListener("click", (event) => {
      const box = row.getBoundingClientRect();
      const column = Math.min(values.length - 1, Math.floor(((event.clientX - box.left) / box.width) * values.length));
      set(Math.min(Number(input.max), Math.max(Number(input.min), moves[name] + to(values[column]))));
      moves[name] = Number(input.value);
      redraw();
    });
    return [h("div", { class: "offsets", "aria-hidden": "true" }, ...[0, 5, 10].map((i) => h("span", {}, change(values[i])))),
      h("p", { class: "rows" }, words), row];
  }
  const signed = (value) => (value > 0 ? `+${round(value)}` : round(value));

  $("pose-note").textContent = `In the middle, each ${parts.length ? "slider" : "number"} is as the network said it.`
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
      const placed = page.answer?.placements ?? null;
      capsule = decoded && { class: decoded.class, pose: decoded.pose, placement: placed && placementOf(placed, decoded.class) };
      reconstruct.forget();
      reset();
      sliders.forEach(({ text, input }, dimension) => {
        text.replaceChildren(h("span", { class: "meaning" }, label(dimension)), h("span", { class: "evidence" }, evidence(dimension)));
        text.classList.toggle("known", evidence(dimension) !== "");
        input.disabled = capsule === null;
      });
      for (const { input } of Object.values(partSliders)) input.disabled = capsule === null;
      picture("pose-seen", page.answer?.seen);
      picture("pose-redrawn", decoded?.reconstruction);
      picture("pose-upright", decoded?.upright);
      if (capsule === null) $("sweep").replaceChildren();
      if (sweeping()) redraw();
    },
    again: redraw,
  };
}
