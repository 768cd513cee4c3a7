// Votes for the longest classes, each class in a plane of its own, as in explain/vote_plane.py.

import { descending, median, numbers, range, sum } from "./numbers.js";
import { grey } from "./pictures.js";

const MAX_PARTS = 120;
const MAX_CLASSES = 3;
const ROTATIONS = 60;      // of all pairs of axes, at most

/** The `votes` of the answer to `routing`. */
export function votePlanes(model, picture, trace) {
  const { types, rows, columns } = model.grid;
  const places = rows * columns;
  const ink = inkAtPlaces(model, picture);
  const inkOf = (part) => ink[part % places];
  const seen = descending(range(types * places).map((part) => Math.fround(inkOf(part) * trace.parts[part]))).slice(0, MAX_PARTS);
  const parts = descending(seen.map(inkOf)).map((i) => seen[i]);
  const last = Math.min(model.iterations, trace.R) - 1;
  const classes = descending(trace.lengths(last)).slice(0, MAX_CLASSES);
  const planes = classes.map((j) => planeOf(parts.map((i) => trace.vote(i * trace.J + j)), trace.pose(last, j)));
  const flat = (vector, m) => planes[m].map((axis) => dot(axis, vector));
  const votes = parts.map((i) => classes.map((j, m) => flat(trace.vote(i * trace.J + j), m)));
  return {
    classes,
    kept: classes.map((j, m) => numbers(sum(votes.map((each) => dot(each[m], each[m])))
      / Math.max(sum(parts.map((i) => trace.voteLengthsIJ[i * trace.J + j] ** 2)), 1e-12))),
    parts: parts.map((part, n) => ({ type: Math.floor(part / places), row: Math.floor((part % places) / columns),
      column: part % columns, ink: numbers(inkOf(part)), votes: numbers(votes[n]) })),
    couplings: range(trace.R).map((r) => parts.map((i) => classes.map((j) => numbers(trace.coupling(r, i, j))))),
    capsules: range(trace.R).map((r) => classes.map((j, m) => numbers(flat(trace.pose(r, j), m)))),
    agreement: range(trace.R).map((r) => classes.map((j) => numbers(meanAgreement(trace, r, j)))),
  };
}

/** The mean cosine of all votes and the class capsule, by their couplings and lengths. */
function meanAgreement(trace, r, j) {
  let [total, weights] = [0, 0];
  for (let i = 0; i < trace.I; i += 1) {
    const weight = trace.coupling(r, i, j) * trace.voteLengthsIJ[i * trace.J + j];
    total += weight * trace.agreement(r, i, j);
    weights += weight;
  }
  return total / Math.max(weights, 1e-12);
}

/** How much the middle of each place's receptive field differs from the image's border; 1 at the place with the most. */
function inkAtPlaces(model, picture) {
  const { height, width, data } = grey(picture);
  const column = (x) => range(height).map((y) => data[y * width + x]);
  const border = median([...data.subarray(0, width), ...data.subarray((height - 1) * width), ...column(0), ...column(width - 1)]);
  const { rows, columns } = model.grid;
  const [down, across] = [middles(model.fields[0], rows, height), middles(model.fields[1], columns, width)];
  const ink = range(rows * columns).map((place) => {
    const [weightsY, weightsX] = [down[Math.floor(place / columns)], across[place % columns]];
    let total = 0;
    for (const [y, byY] of weightsY) for (const [x, byX] of weightsX) total += byY * byX * Math.abs(data[y * width + x] - border);
    return total;
  });
  const most = Math.max(...ink, 1e-12);
  return ink.map((value) => Math.fround(Number((value / most).toPrecision(6))));      // places that see as much stay in their order
}

/** For each place the pixels [position, weight] of the middle half of its receptive field; weights sum to 1. */
function middles({ start, stride, field }, count, side) {
  return range(count).map((place) => {
    const centre = place * stride + start + (field - 1) / 2;
    const near = range(side).map((pixel) => [pixel, Math.max(0, 1 - Math.abs(pixel - centre) / Math.max(1, field / 4))]);
    const all = Math.max(sum(near.map(([, weight]) => weight)), 1e-12);
    return near.filter(([, weight]) => weight > 0).map(([pixel, weight]) => [pixel, weight / all]);
  });
}

const dot = (one, other) => { let total = 0; for (let d = 0; d < one.length; d += 1) total += one[d] * other[d]; return total; };

function normalised(vector) {
  const length = Math.max(Math.sqrt(dot(vector, vector)), 1e-12);
  return Array.from(vector, (value) => value / length);
}

/** Two axes: the direction of the pose, and the first principal component of what is left of the votes. */
function planeOf(votes, pose) {
  const along = normalised(pose);
  const without = (vector) => { const part = dot(vector, along); return Array.from(vector, (value, d) => value - part * along[d]); };
  const rest = votes.map(without);
  const mean = along.map((_, d) => sum(rest.map((each) => each[d])) / rest.length);
  const centred = rest.map((each) => each.map((value, d) => value - mean[d]));
  const scatter = along.map((_, a) => along.map((__, b) => sum(centred.map((each) => each[a] * each[b]))));
  const across = normalised(without(principalAxis(scatter)));
  const strongest = across[descending(across.map(Math.abs))[0]];
  return [along, across.map((value) => value * Math.sign(strongest))];      // else the picture could be mirrored by chance
}

/** The eigenvector of the largest eigenvalue of a symmetric matrix, by Jacobi's rotations. */
function principalAxis(matrix) {
  const n = matrix.length;
  const a = matrix.map((row) => [...row]);
  const axes = range(n).map((i) => range(n).map((k) => (i === k ? 1 : 0)));
  const size = sum(a.flat().map((value) => value * value));
  for (let turn = 0; turn < ROTATIONS; turn += 1) {
    const off = sum(range(n).flatMap((i) => range(i).map((k) => a[i][k] ** 2)));
    if (off <= 1e-30 * size) break;
    for (let p = 0; p < n; p += 1) for (let q = p + 1; q < n; q += 1) rotate(a, axes, p, q);
  }
  const first = descending(range(n).map((i) => a[i][i]))[0];
  return axes.map((row) => row[first]);
}

/** Makes the element (p, q) zero. */
function rotate(a, axes, p, q) {
  if (a[p][q] === 0) return;
  const theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
  const tan = (theta >= 0 ? 1 : -1) / (Math.abs(theta) + Math.sqrt(theta * theta + 1));
  const cos = 1 / Math.sqrt(tan * tan + 1);
  const sin = tan * cos;
  for (const row of [...a, ...axes]) [row[p], row[q]] = [cos * row[p] - sin * row[q], sin * row[p] + cos * row[q]];
  for (let k = 0; k < a.length; k += 1) [a[p][k], a[q][k]] = [cos * a[p][k] - sin * a[q][k], sin * a[p][k] + cos * a[q][k]];
}
