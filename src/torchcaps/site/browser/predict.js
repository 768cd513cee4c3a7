// The answers to `predict`, `reconstruct` and `lattice`.

import { argmax, descending, numbers, range } from "./numbers.js";
import { modelOf, constants } from "./models.js";
import { coloured, imageOf, missing, strip, total } from "./pictures.js";
import { partsOf, placed, placementOf, placementsOf, requestedPlacement, sweepPlacement } from "./placement.js";
import { dataUrl } from "./png.js";
import { prepared, UserError } from "./prepare.js";

const PRESENT = 0.5;

/** The longest capsules, longest first. */
const longest = (lengths, top) => descending(lengths).slice(0, top);

/** Lengths and capsules of one image: `{ lengths, pose(index), placements, placement(index), familiarity }`. */
async function encoded(model, picture, iterations) {
  const [J, D] = [model.classes.length, model.pose];
  if (model.kind === "cnn") return { lengths: (await model.encode([picture], ["lengths"])).lengths.data };
  if (model.kind === "capsules") {
    const found = await model.encode([picture], ["lengths", "poses"]);
    const step = (iterations ?? model.iterations) - 1;
    return { lengths: found.lengths.data.subarray(step * J, (step + 1) * J),
      pose: (index) => found.poses.data.subarray((step * J + index) * D, (step * J + index + 1) * D) };
  }
  const found = await model.encode([picture], model.outputs.filter((name) => name !== "in_views"));
  return { lengths: found.lengths.data, pose: (index) => found.poses.data.subarray(index * D, (index + 1) * D),
    placements: placementsOf(model, found), placement: (index) => placementOf(model, found, index),
    familiarity: found.familiarity?.data[0] ?? null };
}

/** How present each class is in an image, and the image as its capsules reconstruct it. */
export async function predict({ image, model: name, top = 1, decode = null, iterations = null, reject = null }) {
  const model = await modelOf(name);
  checkClasses(model, decode ?? []);
  if (iterations !== null && model.kind === "poses") throw new UserError(`iterations: ${model.name} has no routing; omit it`);
  if (model.kind === "cnn" && (decode !== null || iterations !== null)) {
    throw new UserError(`${model.name} has no routed capsules; use a model of kind capsules`);
  }
  const picture = await prepared(model, image);
  const found = await encoded(model, picture, iterations);
  const chosen = model.kind === "cnn" ? [] : decode ?? longest(found.lengths, top);
  const drawn = await reconstructions(model, found, chosen);
  const familiarity = reject === null && model.none_below !== null ? found.familiarity : null;
  return {
    model: model.name, seen: dataUrl(picture), lengths: numbers(found.lengths), winners: longest(found.lengths, top),
    classes: familiarity !== null && familiarity < model.none_below ? [] : predictedClasses(model, found.lengths, reject),
    familiarity: familiarity === null ? null : numbers(familiarity),
    placements: found.placements ?? null,
    decoded: chosen.map((index, rank) => ({
      class: index, length: numbers(found.lengths[index]), pose: numbers(found.pose(index)),
      reconstruction: drawn && dataUrl(drawn.pictures[rank]),
      coloured: drawn && dataUrl(coloured(drawn.pictures[rank], rank)),
      upright: drawn && drawn.upright && dataUrl(drawn.upright[rank]),
    })),
    ...comparison(picture, drawn?.pictures ?? null),
  };
}

/** Each of these classes drawn alone; null without a decoder. */
async function reconstructions(model, found, classes) {
  if (!model.decoder || classes.length === 0) return null;
  const batch = await model.decode(classes.map(found.pose), classes);
  const pictures = classes.map((_, rank) => imageOf(batch, rank));
  if (model.kind !== "poses") return { pictures, upright: null };
  return { upright: pictures, pictures: pictures.map((upright, rank) => placed(model, upright, found.placement(classes[rank]))) };
}

function comparison(picture, pictures) {
  if (pictures === null) return { together: null, missing: null, error: null };
  const whole = total(pictures);
  const squares = picture.data.reduce((sum, value, i) => sum + (value - whole.data[i]) ** 2, 0);
  const together = pictures.reduce((sheet, each, rank) => coloured(each, rank, sheet), undefined);
  return { together: dataUrl(together), missing: dataUrl(missing(picture, whole)), error: numbers(squares / picture.data.length) };
}

/** The classes that `torchcaps predict` would return, longest first. */
function predictedClasses({ labels_each: each, multi_label: several }, lengths, reject) {
  const order = descending(lengths);
  const found = each !== null ? order.slice(0, each) : several ? order.filter((index) => lengths[index] >= PRESENT) : [argmax(lengths)];
  return found.filter((index) => lengths[index] >= (reject ?? 0));
}

/** The image decoded from a capsule; on request also with each dimension varied in turn. */
export async function reconstruct({ class: index, pose, model: name, placement = null, sweep = false, compare = null }) {
  const model = await modelOf(name);
  checkClasses(model, [index]);
  const seen = compare === null ? null : await prepared(model, compare);
  if (pose.length !== model.pose) throw new UserError(`pose: a capsule of ${model.name} has ${model.pose} dimensions, got ${pose.length}`);
  if (!model.decoder) throw new UserError(`${model.name} has no decoder and cannot reconstruct images`);
  const poses = model.kind === "poses";
  if (!poses && placement !== null) throw new UserError(`placement: ${model.name} does not predict placements; omit it`);
  const { sweep: values, pose_sweep: sweeps } = await constants();
  const shifts = sweep ? pose.flatMap((_, d) => values.map((value) => pose.map((own, k) => (k === d ? own + value : own)))) : [];
  const capsules = [pose, ...shifts];
  const batch = await model.decode(capsules, capsules.map(() => index));
  const upright = capsules.map((_, i) => imageOf(batch, i));
  const place = poses ? requestedPlacement(model, placement) : null;
  const pictures = poses ? upright.map((each) => placed(model, each, place)) : upright;
  return {
    reconstruction: dataUrl(pictures[0]), upright: poses ? dataUrl(upright[0]) : null,
    difference: seen && dataUrl(missing(seen, pictures[0])),
    sweep: sweep ? { values, dimensions: pose.length, picture: dataUrl(strip(pictures.slice(1), values.length)),
      height: model.image.height, width: model.image.width,
      parts: poses ? await sweepPlacement(model, pose, index, place, sweeps) : [] } : null,
  };
}

/** The length of each class capsule in each view of an image. */
export async function lattice({ image, model: name }) {
  const model = await modelOf(name);
  if (model.kind !== "poses") throw new UserError(`${model.name} does not predict placements; use a model of kind poses`);
  const picture = await prepared(model, image);
  const [J, G] = [model.classes.length, model.views.length];
  const { poses: views, shape: [A, S, ...rest] } = model.lattice_views;
  const lengths = new Float32Array(views.length * J);
  for (let from = 0; from < views.length; from += G) {
    const some = range(G).map((i) => views[Math.min(from + i, views.length - 1)]);      // the last ones may be repeated
    const { in_views: found } = await model.encode([picture], ["in_views"], some);
    lengths.set(found.data.subarray(0, Math.min(G, views.length - from) * J), from * J);
  }
  const found = await model.encode([picture], ["lengths", ...partsOf(model)]);
  const each = rest[0] * rest[1];      // stretches and shears, of which the largest counts
  const most = (j, a, s) => Math.max(...range(each).map((k) => lengths[((a * S + s) * each + k) * J + j]));
  return { model: model.name, seen: dataUrl(picture), angles: model.lattice.angles, scales: model.lattice.scales,
    lengths: range(J).map((j) => range(A).map((a) => range(S).map((s) => numbers(most(j, a, s))))),
    presence: numbers(found.lengths.data), placements: placementsOf(model, found) };
}

function checkClasses(model, classes) {
  const count = model.classes.length;
  if (classes.some((index) => index >= count)) throw new UserError(`class: the model has ${count} classes, numbered from 0`);
}
