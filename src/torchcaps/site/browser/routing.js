// The answer to `routing`: couplings and support by place and type, what they decide, and the votes in a plane.

import { modelOf } from "./models.js";
import { numbers, range, sum } from "./numbers.js";
import { dataUrl } from "./png.js";
import { prepared, UserError } from "./prepare.js";
import { finding, RoutingTrace } from "./routing-trace.js";
import { votePlanes } from "./vote-plane.js";

const OUTPUTS = ["parts", "votes", "couplings", "poses", "lengths"];

export async function routing({ image, model: name, iterations = null, part = null }) {
  const model = await modelOf(name);
  if (model.kind !== "capsules") throw new UserError(`${model.name} has no routed capsules; use a model of kind capsules`);
  const { types, rows, columns } = model.grid;
  if (part !== null && !(part.type < types && part.row < rows && part.column < columns)) {
    throw new UserError(`part: ${model.name} has ${types} types of parts in ${rows} rows and ${columns} columns`);
  }
  const picture = await prepared(model, image);
  const trace = new RoutingTrace(await model.encode([picture], OUTPUTS), iterations ?? model.iterations);
  const entropies = trace.entropies();
  const found = finding(trace, Math.min(model.iterations, trace.R), model.classes, entropies);
  return {
    model: model.name, seen: dataUrl(picture),
    lengths_of_parts: inGrid(model, (type, place) => numbers(trace.parts[type * rows * columns + place])),
    steps: range(trace.R).map((r) => step(model, trace, r, entropies[r])),
    finding: { ...found, undecided: numbers(found.undecided), strongest: numbers(found.strongest) },
    votes: votePlanes(model, picture, trace),
    part: part && partAnswer(model, trace, part),
  };
}

/** Values [type][row][column]. */
const inGrid = ({ grid: { types, rows, columns } }, value) =>
  range(types).map((type) => range(rows).map((row) => range(columns).map((column) => value(type, row * columns + column))));

function step(model, trace, r, entropy) {
  const { types, rows, columns } = model.grid;
  const places = rows * columns;
  const byPlace = (value) => range(rows).map((row) => range(columns).map((column) => numbers(value(row * columns + column))));
  const members = (place) => range(types).map((type) => type * places + place);
  const classes = range(trace.J);
  const lengths = range(places).map((place) => Math.max(sum(members(place).map((i) => trace.parts[i])), 1e-12));
  return {
    lengths: numbers(trace.lengths(r)), entropy: numbers(entropy), decided: numbers(trace.decided(r) / trace.I),
    support: classes.map((j) => byPlace((place) => sum(members(place).map((i) => trace.support(r, i, j))))),
    types: classes.map((j) => range(types).map((type) => numbers(sum(range(places).map((place) => trace.support(r, type * places + place, j)))))),
    coupling: classes.map((j) => byPlace((place) => sum(members(place).map((i) => trace.coupling(r, i, j) * trace.parts[i])) / lengths[place])),
  };
}

function partAnswer(model, trace, { type, row, column }) {
  const { rows, columns } = model.grid;
  const i = (type * rows + row) * columns + column;
  const pixels = ({ start, stride, field }, position, side) => {
    const first = start + position * stride;
    return [Math.max(0, first), Math.min(side, first + field)];
  };
  const [top, bottom] = pixels(model.fields[0], row, model.image.height);
  const [left, right] = pixels(model.fields[1], column, model.image.width);
  const classes = range(trace.J);
  const votes = classes.map((j) => numbers(trace.voteLengthsIJ[i * trace.J + j]));
  return { type, row, column, length: numbers(trace.parts[i]), box: [top, left, bottom, right],
    steps: range(trace.R).map((r) => ({ couplings: classes.map((j) => numbers(trace.coupling(r, i, j))), votes,
      agreement: classes.map((j) => numbers(trace.agreement(r, i, j))) })) };
}
