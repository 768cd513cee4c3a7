// Routing by poses, as in ops/poses/reference.py, which has the formulas. Parts are `{ pose, presence, type }`; classes
// of wholes are `{ members: [{ type, pose, tolerance, missing }], bias }`; hypotheses are `{ pose, label }`.

import { argmax, descending, range, rint, sum } from "./numbers.js";
import { compose, exp, inverse, log, similarityOf, turnOf } from "./similarity.js";

const LOG_LEAST_TYPE = Math.log(1e-12);
const LEAST_WEIGHT = 1e-6;
const SAME = 0.5;
const TURN = 2 * Math.PI;

const sigmoid = (value) => 1 / (1 + Math.exp(-value));
const logVolume = (tolerance) => sum(tolerance.map(Math.log)) + 2 * Math.log(TURN);

/** A class of wholes with what only depends on it. */
export function classOf({ members, prior }, clutter) {
  const known = members.map((each) => {
    const away = inverse(each.pose);
    return { ...each, away, turn: turnOf(each.pose), growth: log(away)[3], volume: logVolume(each.tolerance) };
  });
  return { members: known, bias: prior - sum(known.map(({ volume }) => -volume - clutter)) / known.length, clutter };
}

/** Every part votes for every whole, as each of its members, in each of its equal ways: `[i][j][m][s]`, null for no vote. */
export function votes(parts, classes, symmetry) {
  const turns = Math.max(1, ...symmetry);
  return parts.map(({ pose, presence, type }) => classes.map(({ members }) => members.map(({ away }) => range(turns).map((s) =>
    (s < symmetry[type] && presence > 0 ? compose(compose(pose, similarityOf({ radians: (TURN * s) / symmetry[type] })), away) : null)))));
}

/** How far the votes of part i as member m are from a hypothesis, in its frame, with the turn that fits best: (I·M, 4). */
function residuals(parts, { members }, symmetry, hypothesis) {
  const back = inverse(hypothesis.pose);
  const residual = new Float64Array(4 * parts.length * members.length);
  let at = 0;
  for (const { pose, type } of parts) {
    const seen = compose(back, pose);
    const [x, y, radians, growth] = log(seen);
    const step = TURN / symmetry[type];
    for (const member of members) {
      const fitting = step * rint((radians - member.turn) / step);
      const [cos, sin] = fitting === 0 ? [seen[2], seen[3]] : turned(seen, -fitting);
      const [u, v] = member.away;
      residual[at] = cos * u + sin * v + x;
      residual[at + 1] = cos * v - sin * u + y;
      residual[at + 2] = radians - fitting - member.turn;
      residual[at + 3] = growth + member.growth;
      at += 4;
    }
  }
  return residual;
}

function turned([, , cos, sin], radians) {
  const [c, s] = [Math.cos(radians), Math.sin(radians)];
  return [cos * c - sin * s, cos * s + sin * c];
}

/** How much likelier part i is as member m than as clutter: (I·M). */
function logLikelihoods(parts, { members, clutter }, symmetry, residual) {
  const logs = new Float64Array(parts.length * members.length);
  let at = 0;
  for (const { type } of parts) {
    const turns = Math.log(symmetry[type]);
    for (const { tolerance, volume, type: expected } of members) {
      let square = 0;
      for (let k = 0; k < 4; k += 1) square += (residual[4 * at + k] / tolerance[k]) ** 2;
      logs[at] = (expected === type ? 0 : LOG_LEAST_TYPE) - 0.5 * square - volume - turns - clutter;
      at += 1;
    }
  }
  return logs;
}

/** A part is at most one member of a hypothesis: (I·M) softmax over the members. */
function rolesOf(logs, M) {
  const roles = new Float64Array(logs.length);
  for (let from = 0; from < logs.length; from += M) {
    let [most, all] = [-Infinity, 0];
    for (let m = 0; m < M; m += 1) most = Math.max(most, logs[from + m]);
    for (let m = 0; m < M; m += 1) all += roles[from + m] = Math.exp(logs[from + m] - most);
    for (let m = 0; m < M; m += 1) roles[from + m] /= all;
  }
  return roles;
}

/** Every member of a hypothesis chooses its part among those available, or none: `{ logOdds, found (I·M), claims (I) }`. */
function explain(parts, whole, symmetry, available, residual) {
  const [I, M] = [parts.length, whole.members.length];
  const logs = logLikelihoods(parts, whole, symmetry, residual);
  const roles = rolesOf(logs, M);
  const [found, claims] = [new Float64Array(I * M), new Float64Array(I)];
  let logOdds = whole.bias;
  for (let m = 0; m < M; m += 1) {
    const { missing } = whole.members[m];
    let largest = missing;
    for (let at = m; at < I * M; at += M) largest = Math.max(largest, logs[at]);
    const weight = (i) => available[i] * roles[i * M + m] * Math.exp(logs[i * M + m] - largest);
    let all = Math.exp(missing - largest);
    for (let i = 0; i < I; i += 1) all += weight(i);
    let [gain, taken] = [0, 0];
    for (let i = 0; i < I; i += 1) {
      const chosen = weight(i) / all;
      const share = available[i] * roles[i * M + m] * chosen;
      found[i * M + m] = share;
      claims[i] += roles[i * M + m] * chosen;
      gain += share * logs[i * M + m];
      taken += share;
    }
    logOdds += gain + (1 - taken) * missing;
  }
  return { logOdds, found, claims: claims.map((claim) => sigmoid(logOdds) * claim) };
}

/** Moves a hypothesis to the mean of its votes, in its own frame. */
function move({ members }, hypothesis, found, residual) {
  const step = range(4).map((k) => {
    let [total, weights] = [0, LEAST_WEIGHT];
    found.forEach((share, at) => {
      const weight = share / members[at % members.length].tolerance[k] ** 2;
      total += weight * residual[4 * at + k];
      weights += weight;
    });
    return total / weights;
  });
  return { ...hypothesis, pose: compose(hypothesis.pose, exp(step)) };
}

/** Explains the parts by each hypothesis and moves it: `{ seen, moved }` for each. */
function considered(parts, classes, symmetry, hypotheses, availableOf) {
  return hypotheses.map((hypothesis, k) => {
    const whole = classes[hypothesis.label];
    const residual = residuals(parts, whole, symmetry, hypothesis);
    const seen = explain(parts, whole, symmetry, availableOf(k), residual);
    return { seen, moved: move(whole, hypothesis, seen.found, residual) };
  });
}

/** The votes that the most other votes agree with, each moved to the middle of those; one for each whole, best first. */
function bestVotes(parts, classes, symmetry, count) {
  const seeds = votes(parts, classes, symmetry).flatMap((row) => row.flatMap((each, label) =>
    each.flat().filter((pose) => pose !== null).map((pose) => ({ pose, label }))));
  const presence = parts.map((part) => part.presence);
  const results = considered(parts, classes, symmetry, seeds, () => presence);
  const sorted = descending(results.map(({ seen }) => seen.logOdds)).map((k) => results[k]);
  const totals = sorted.map(({ seen }) => sum(seen.found));
  const shared = (k, other) => {
    const [one, two] = [sorted[k].seen.found, sorted[other].seen.found];
    let total = 0;
    for (let at = 0; at < one.length; at += 1) total += one[at] * two[at];
    return total / (totals[k] + LEAST_WEIGHT);
  };
  const repeats = (k) => range(k).some((other) => sorted[other].moved.label === sorted[k].moved.label && shared(k, other) > SAME);
  return range(sorted.length).filter((k) => !repeats(k)).slice(0, count).map((k) => sorted[k].moved);
}

/** The share of each part that the hypotheses before each one leave: the product of 1 - claims. */
function leftByBetter(claims) {
  let left = claims.length ? Float64Array.from(claims[0], () => 1) : null;
  return claims.map((row) => {
    const before = left;
    left = before.map((share, i) => share * Math.max(1 - row[i], Number.EPSILON));
    return before;
  });
}

/**
 * Every hypothesis in every iteration: `[{ wholes: [{ label, pose, presence, couplings }], unexplained }]`. The wholes
 * keep their places.
 */
export function wholeTrace(parts, classes, symmetry, iterations) {
  let hypotheses = bestVotes(parts, classes, symmetry, parts.length);
  const count = hypotheses.length;
  let places = range(count);      // of the hypotheses, best first, among those found first
  let left = hypotheses.map(() => parts.map(() => 1));
  return range(iterations).map(() => {
    const results = considered(parts, classes, symmetry, hypotheses, (k) => parts.map(({ presence }, i) => presence * left[k][i]));
    const order = descending(results.map(({ seen }) => seen.logOdds));
    hypotheses = order.map((k) => results[k].moved);
    places = order.map((k) => places[k]);
    const claims = order.map((k) => results[k].seen.claims);
    left = leftByBetter(claims);
    const wholes = new Array(count);
    places.forEach((place, k) => {
      wholes[place] = { ...hypotheses[k], presence: sigmoid(results[order[k]].seen.logOdds),
        couplings: claims[k].map((claim, i) => claim * left[k][i]) };
    });
    return { wholes, unexplained: parts.map((_, i) => 1 - sum(wholes.map(({ couplings }) => couplings[i]))) };
  });
}

/** How present a whole is near a pose, if it is the only one: it first moves to the mean of its votes. */
export function presenceNear(parts, classes, symmetry, pose, label) {
  const presence = parts.map((part) => part.presence);
  const [{ moved }] = considered(parts, classes, symmetry, [{ pose, label }], () => presence);
  const [{ seen }] = considered(parts, classes, symmetry, [moved], () => presence);
  return sigmoid(seen.logOdds);
}

/** The two votes, of `[m][s]` each, that are closest in units of the tolerance: `{ first, second, step }`, numbered flat. */
export function closest(one, other, tolerance) {
  const pairs = one.flat().flatMap((from, first) => other.flat().map((to, second) => ({ from, to, first, second })))
    .filter(({ from, to }) => from !== null && to !== null)
    .map(({ from, to, first, second }) => ({ first, second, step: log(compose(inverse(from), to)) }));
  return pairs[argmax(pairs.map(({ step }) => -sum(step.map((value, k) => (value / tolerance[k]) ** 2))))];
}
