// The Pose panel: sliders for the pose of the winning capsule, and the digit decoded from it.

import { latest } from "./api.js";
import { $, h, round, slider } from "./dom.js";
import { picture } from "./draw.js";
import { PARTS, placementOf } from "./placement.js";

const REACH = 0.3;      // range of a slider to either side; the paper's figure uses 0.25

export function posePanel(page) {
  if (!page.model.decoder) return { update() {} };      // the panel shows a message
  const offsets = new Array(page.model.pose).fill(0);
  const parts = Object.entries(PARTS).filter(([name]) => page.model.placement?.includes(name));
  const moves = Object.fromEntries(parts.map(([name]) => [name, 0]));      // offset of each parameter from the network's prediction
  let capsule = null;      // { class, pose, placement } as predicted
  let shown = null;        // the response that the sliders show

  const reconstruct = latest("api/reconstruct", (answer, body) => {
    picture("pose-redrawn", answer.reconstruction);
    picture("pose-upright", answer.upright);
    if (body.sweep) showSweep(answer.sweep);
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

  // Figure 4 of the paper: a row for each dimension, a column for each offset from the sliders' pose.
  function showSweep({ values, picture: strip, parts: swept }) {
    const choose = (dimension, offset) => {
      offsets[dimension] = Math.min(REACH, Math.max(-REACH, offsets[dimension] + offset));
      sliders[dimension].set(offsets[dimension]);
      redraw();
    };
    const image = h("img", { src: strip, class: "strip", title: "Click an image to use its pose",
      alt: `The digit decoded with each of ${offsets.length} dimensions varied, one per row` });
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
  // A row for one placement parameter, with its own values.
  function sweptPart({ name, values, picture: strip }) {
    const { label: words, to, change } = PARTS[name];
    const { input, set } = partSliders[name];
    const row = h("img", { src: strip, class: "strip", title: "Click an image to use its placement", alt: `The digit decoded with its ${words} varied` });
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

  $("pose-note").textContent = "The centre of each slider is the network’s value."
    + (page.model.meanings ? " Named dimensions correlate with a property measured on many digits; r is the correlation." : "");
  $("pose-reset").addEventListener("click", () => { reset(); redraw(); });
  $("pose-sweep").addEventListener("click", () => {
    const open = !sweeping();
    $("pose-sweep").setAttribute("aria-expanded", String(open));
    $("sweep").hidden = !open;
    if (open) redraw();
  });

  return {
    update() {
      if (shown === page.answer && shown !== null) return;
      shown = page.answer;
      const decoded = page.answer?.decoded[0] ?? null;
      const same = decoded && capsule?.class === decoded.class && decoded.pose.every((value, i) => value === capsule.pose[i]);
      if (same) return;      // a repeated request: keep the sliders where they are
      const placed = page.answer?.placements ?? null;
      capsule = decoded && { class: decoded.class, pose: decoded.pose, placement: placed && placementOf(placed, decoded.class) };
      reconstruct.cancel();
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
    retry: redraw,
  };
}
