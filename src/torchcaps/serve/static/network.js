// The network as a picture, with the numbers of the model that is served: image, parts, votes, classes.

import { h, round, svg } from "./dom.js";
import { explainWords } from "./words.js";

const SHEETS = 4;      // of types that are drawn
const LINES = 12;      // of a grid that are drawn, and classes that are named
const whole = (number) => number.toLocaleString("en");

/** What the words of the panel mean, for this model. */
export function meaningsFor(model) {
  const { classes, grid, iterations, part_pose: K, pose: D } = model;
  const equal = round(1 / classes.length, classes.length > 50 ? 3 : 2);
  return {
    part: `A capsule of the first layer: ${K} numbers computed from ${grid.field} × ${grid.field} pixels. Its length says `
      + "how clearly the network sees there what the part stands for.",
    type: `Parts of one type have the same weights at every place, so they look for the same thing. This network has ${grid.types} types.`,
    place: `A position from which parts look at the image. There are ${grid.rows} × ${grid.columns}, ${grid.stride} pixels apart, `
      + "each with one part of every type.",
    vote: `What a part predicts for the capsule of a class: its ${K} numbers times a learned matrix of ${D} × ${K}.`,
    coupling: `How much of its vote a part gives to a class, from 0 to 1. The couplings of a part add up to 1 over the ${classes.length} `
      + `classes; if all are equal, each is ${equal}.`,
    support: "Coupling times how far the vote reaches in the direction of the class capsule. Together the supports make the capsule long.",
    iteration: "One round of routing: the class capsules are computed from the couplings, then the couplings rise where votes agree "
      + `with a capsule. In the first round all couplings are equal. This network was trained with ${iterations}.`,
    entropy: "How undecided the couplings are: 1 if every part couples to all classes equally, 0 if every part chose one class. "
      + "Longer parts count more.",
    length: "How present a class is, from 0 to 1. Every class is judged by itself, so lengths need not add up to one.",
  };
}

const drawing = (label, ...children) => svg("svg", { viewBox: "0 0 120 120", role: "img", "aria-label": label }, ...children);
const word = (name, text = name) => h("span", { "data-word": name }, text);

function stages(host, pictures, captions, meanings) {
  host.replaceChildren(...Object.entries(pictures).map(([name, picture]) =>
    h("figure", { class: "stage-of", "data-stage": name }, picture, h("figcaption", {}, ...captions[name]))));
  explainWords(host, meanings);
}

/** The dots of the class capsules with their names, and a function that shows lengths. */
function classDots(classes) {
  const names = classes.slice(0, LINES);
  const at = (index) => 12 + (96 * (index + 0.5)) / names.length;
  const dots = names.map((_, index) => svg("circle", { class: "class-dot", cx: 22, cy: at(index), r: 1 }));
  const labels = names.map((name, index) => svg("text", { class: "tick", x: 34, y: at(index) + 3 },
    name.length > 12 ? `${name.slice(0, 11)}…` : name));
  const show = (lengths) => dots.forEach((dot, index) =>
    dot.setAttribute("r", (1 + 9 * Math.sqrt(Math.max(0, lengths?.[index] ?? 0))).toFixed(2)));
  return { at, names, show, picture: drawing("The class capsules, as dots: the larger, the longer", ...dots, ...labels),
    few: classes.length > names.length ? ` (${names.length} are drawn)` : "" };
}

const frame = () => svg("rect", { class: "black", x: 10, y: 10, width: 100, height: 100 });
const imageAt = (attributes) => svg("image", { x: 10, y: 10, width: 100, height: 100, preserveAspectRatio: "none", ...attributes });
const setSource = (image, source) => (source === null ? image.removeAttribute("href") : image.setAttribute("href", source));
const sizeOf = ({ height, width, channels }) => ` ${height} × ${width} pixels${channels > 1 ? `, ${channels} channels` : ""}`;

/** The picture of a network with routing. */
export function networkPicture(host, model) {
  const { classes, grid, part_pose: K, pose: D, image } = model;
  const parts = grid.types * grid.rows * grid.columns;
  const seen = imageAt();
  const capsules = classDots(classes);
  const lines = capsules.names.map((_, index) => svg("line", { class: "vote-line", x1: 14, y1: 60, x2: 106, y2: capsules.at(index) }));
  const cell = svg("rect", { class: "chosen-place" });
  const pictures = {
    image: drawing("The image", frame(), seen),
    parts: drawing(`Sheets of parts, one for each type, each with ${grid.rows} × ${grid.columns} places`, ...sheets(grid), cell),
    votes: drawing("The couplings of the chosen part to every class, as lines: the thicker, the larger", ...lines,
      svg("circle", { class: "part-dot", cx: 14, cy: 60, r: 5 })),
    classes: capsules.picture,
  };
  const captions = {
    image: [h("strong", {}, "Image"), sizeOf(image)],
    parts: [h("strong", {}, `${whole(parts)} `, word("part", "parts")), ` ${grid.types} `, word("type", "types"), " × ",
      `${grid.rows} × ${grid.columns} `, word("place", "places"), `, ${K} numbers each`],
    votes: [h("strong", {}, `${whole(parts * classes.length)} `, word("vote", "votes")), ` one for each part and class, ${D} numbers each, through `,
      `${whole(parts * classes.length * D * K)} weights; each with a `, word("coupling")],
    classes: [h("strong", {}, `${classes.length} classes`), ` one capsule of ${D} numbers each; its `, word("length"), " is the answer", capsules.few],
  };
  stages(host, pictures, captions, meaningsFor(model));

  return {
    /** The image, the lengths of the classes, and the couplings of the part that is chosen; null for none. */
    show(source, lengths, couplings) {
      setSource(seen, source);
      capsules.show(lengths);
      lines.forEach((line, index) => line.setAttribute("stroke-width", (0.3 + 9 * (couplings?.[index] ?? 0)).toFixed(2)));
    },
    place(row, column) {
      const [width, height] = [80 / grid.columns, 80 / grid.rows];
      for (const [name, value] of Object.entries({ x: 8 + column * width, y: 32 + row * height, width, height })) {
        cell.setAttribute(name, value.toFixed(2));
      }
    },
  };
}

/** The picture of a network that looks at an image in several views. */
export function viewsPicture(host, model) {
  const { classes, lattice, part_pose: K, part_types: T, pose: D, image, placement } = model;
  const angles = lattice.angles.filter((_, i) => i % Math.ceil(lattice.angles.length / 5) === 0);
  const small = angles.map((angle, i) => imageAt({ x: 44, y: 6 + 24 * i - 12 * (angles.length - 5), width: 22, height: 22,
    transform: `rotate(${angle} 55 ${17 + 24 * i - 12 * (angles.length - 5)})` }));
  const seen = imageAt();
  const capsules = classDots(classes);
  const types = Array.from({ length: Math.min(T, LINES) }, (_, i) => svg("rect", { class: "sheet", x: 20, y: 8 + i * 9, width: 70, height: 6 }));
  const pictures = { image: drawing("The image", frame(), seen), views: drawing("The image in some of its views", ...small),
    parts: drawing("Parts, one bar for each type", ...types), classes: capsules.picture };
  const captions = {
    image: [h("strong", {}, "Image"), sizeOf(image)],
    views: [h("strong", {}, `${lattice.searched} `, word("view", "views")), ` are computed; the map has ${lattice.angles.length} angles × ${lattice.scales.length} scales`],
    parts: [h("strong", {}, `${T} `, word("type", "types"), " of ", word("part", "parts")), ` at every place of every view, ${K} numbers each`],
    classes: [h("strong", {}, `${classes.length} classes`), ` one capsule of ${D} numbers each, a `, word("presence"), " and a ", word("placement"), capsules.few],
  };
  stages(host, pictures, captions, {
    view: "The image turned and scaled. In the view that makes an object upright, its class capsule is longest.",
    type: `Parts of one type look for the same thing, with the same weights at every place and in every view. This network has ${T} types.`,
    part: `A capsule of the first layer: ${K} numbers that say how something small looks at one place. Every part votes for every class.`,
    presence: "How present a class is, from 0 to 1: near the length of its capsule in the views where that is longest.",
    placement: `Where and how the class stands: ${placement.join(", ")}. Every view gives an estimate; the placement is their mean, weighted by length.`,
  });
  return { show(source, presence) { for (const each of [seen, ...small]) setSource(each, source); capsules.show(presence); } };
}

/** The front sheet with its grid, and a few sheets behind it. */
function sheets(grid) {
  const behind = Array.from({ length: Math.min(SHEETS, grid.types) - 1 }, (_, i) => i + 1).reverse()
    .map((depth) => svg("rect", { class: "sheet", x: 8 + 8 * depth, y: 32 - 8 * depth, width: 80, height: 80 }));
  const steps = (count) => (count > LINES ? [] : Array.from({ length: count - 1 }, (_, i) => (80 * (i + 1)) / count));
  const rows = steps(grid.rows).map((y) => svg("line", { class: "sheet-line", x1: 8, x2: 88, y1: 32 + y, y2: 32 + y }));
  const columns = steps(grid.columns).map((x) => svg("line", { class: "sheet-line", x1: 8 + x, x2: 8 + x, y1: 32, y2: 112 }));
  return [...behind, svg("rect", { class: "sheet", x: 8, y: 32, width: 80, height: 80 }), ...rows, ...columns];
}

