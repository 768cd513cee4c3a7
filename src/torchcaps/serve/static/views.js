// The Views panel: the length of a class capsule in each view of the drawing, by angle and scale.

import { latest } from "./api.js";
import { classBars } from "./bars.js";
import { $, h, round, roving } from "./dom.js";
import { picture } from "./draw.js";
import { viewsPicture } from "./network.js";
import { PARTS, placementOf } from "./placement.js";

const turned = (angle) => `${Number(angle.toFixed(1))}°`.replace("-", "−");
const scaled = (scale) => `×${Number(scale.toFixed(2))}`;

export function viewsPanel(page) {
  const { classes, lattice: { angles, scales, full_circle: circle } } = page.model;
  let answer = null;      // response of /api/lattice
  let requested = null;   // the image of the last request
  let pinned = null;      // the class that was clicked; null for the winner
  let hovered = null;
  let chosen = null;      // the chosen cell as indices [angle, scale]; null for the longest capsule

  const network = viewsPicture($("views-network"), page.model);
  const bars = classBars($("views-classes"), classes, (index, how) => {
    if (how === "pin") pinned = pinned === index ? null : index;
    else hovered = how === "hover" ? index : null;
    show();
  });

  // The largest scale is the top row, as on the axis of a chart.
  const places = scales.map((_, row) => scales.length - 1 - row).flatMap((s) => angles.map((_, a) => [a, s]));
  const cells = places.map((place) => {
    const look = () => { chosen = place; show(); };
    return h("button", { type: "button", onclick: look, onfocus: look, onpointerenter: look });
  });
  const cross = h("span", { class: "cross", hidden: true });
  $("lattice").style.setProperty("--columns", angles.length);
  $("lattice").style.setProperty("--rows", scales.length);
  const every = Math.ceil(angles.length / 9);      // more than nine angles do not fit below the map
  $("lattice").replaceChildren(
    h("div", { class: "lattice-scales", "aria-hidden": "true" }, ...scales.map((_, row) => h("span", {}, scaled(scales[scales.length - 1 - row])))),
    h("div", { class: "cells", role: "group", "aria-label": "View to look through" }, ...cells, cross),
    h("div", { class: "lattice-angles", "aria-hidden": "true" }, ...angles.map((angle, a) => h("span", {}, a % every ? "" : turned(angle)))),
  );
  const focus = roving(cells, angles.length);

  const request = latest("api/lattice", (given) => {
    if (!page.image) return;      // cleared meanwhile
    answer = given;
    picture("views-seen", given.seen);
    show();
  }, page.failed);

  const longest = (values) => values.indexOf(Math.max(...values));

  function show() {
    if (!answer) return;
    const kept = pinned ?? longest(answer.presence);
    const index = hovered ?? kept;
    const lengths = answer.lengths[index];
    const best = places[longest(places.map(([a, s]) => lengths[a][s]))];
    const [a, s] = chosen ?? best;
    network.show(answer.seen, answer.presence);
    bars.show(answer.presence, { [index]: "won" });
    bars.choose(pinned, kept);
    $("lattice-title").textContent = `Length of ${classes[index]} in each view`;
    cells.forEach((cell, i) => {
      const [angle, scale] = places[i];
      const words = `angle ${turned(angles[angle])}, scale ${scaled(scales[scale])}: length ${round(lengths[angle][scale])}`;
      cell.style.setProperty("--value", Math.min(1, lengths[angle][scale]));
      cell.title = words;
      cell.setAttribute("aria-label", words);
      cell.setAttribute("aria-pressed", String(angle === a && scale === s));
    });
    focus.settle(places.findIndex(([angle, scale]) => angle === a && scale === s));
    showCross(placementOf(answer.placements, index));
    // A view at a pose rotates the drawing back by the angle and divides its size by the scale.
    $("views-picture").style.setProperty("--turn", `${angles[a]}deg`);
    $("views-picture").style.setProperty("--shrink", 1 / scales[s]);
    $("views-caption").textContent = `the drawing in the view at ${turned(angles[a])}, ${scaled(scales[s])}: length ${round(lengths[a][s])}`;
    const { angle, scale, spread } = placementOf(answer.placements, index);
    $("views-sentence").textContent = `Predicted for ${classes[index]} from all views that the network computes: `
      + `angle ${PARTS.angle.write(angle)}, spread ${round(spread, 1)}°, scale ${PARTS.scale.write(scale)}.`;
  }

  /** The position of a value on an axis of evenly spaced numbers, as a share of the map's side, clipped to its edges. */
  function along(values, value) {
    if (values.length === 1) return 0.5;
    const step = (values[values.length - 1] - values[0]) / (values.length - 1);
    return Math.min(1, Math.max(0, ((value - values[0]) / step + 0.5) / values.length));
  }

  function showCross({ angle, scale }) {
    const start = angles[0] - (angles[1] - angles[0]) / 2;      // the map of a full circle starts half a step before its first angle
    const around = circle ? start + ((((angle - start) % 360) + 360) % 360) : angle;
    cross.hidden = false;
    cross.style.setProperty("--x", along(angles, around));
    cross.style.setProperty("--y", 1 - along(scales.map(Math.log), Math.log(scale)));
  }

  function blank() {
    request.cancel();
    answer = null;
    bars.clear();
    bars.choose(null, 0);
    cross.hidden = true;
    picture("views-seen", null);
    network.show(null, null);
    $("lattice-title").textContent = "Length in each view";
    $("views-caption").textContent = "";
    $("views-sentence").textContent = "Draw a digit to see its views.";
    for (const cell of cells) {
      cell.style.setProperty("--value", 0);
      cell.title = "";
      cell.setAttribute("aria-pressed", "false");
    }
  }

  return {
    update() {
      if (page.image !== requested) pinned = chosen = null;
      requested = page.image;
      if (page.image) request({ image: page.image, model: page.model.name });
      else blank();
    },
  };
}
