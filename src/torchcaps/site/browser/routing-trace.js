// Routing of one image over R iterations, and what its couplings decide. Arrays are flat, with the axes in their names.

import { argmax, range, rint, sum } from "./numbers.js";

const DECIDED = 0.5;      // a part whose largest coupling is above has decided for a class
const PRESENT = 0.5;      // length from which a class is present
const NEARLY_EQUAL = 0.9; // entropy of couplings that are nearly equal
const EQUAL = 1e-6;       // couplings that differ by less are equal

const norm = (vector) => Math.sqrt(vector.reduce((total, value) => total + value * value, 0));

export class RoutingTrace {
  /** From the outputs of `encode` for one image, with `iterations` of those that they have. */
  constructor({ parts, votes, couplings, poses, lengths }, iterations) {
    const [, I, J, D] = votes.dims;
    Object.assign(this, { I, J, D, R: iterations, parts: parts.data, votesIJD: votes.data,
      couplingsRIJ: couplings.data.subarray(0, iterations * I * J), posesRJD: poses.data.subarray(0, iterations * J * D),
      lengthsRJ: lengths.data.subarray(0, iterations * J) });
    this.voteLengthsIJ = Float64Array.from(range(I * J), (i) => norm(this.vote(i)));
    this.#compare();
  }

  vote(ij) { return this.votesIJD.subarray(ij * this.D, (ij + 1) * this.D); }
  pose(r, j) { return this.posesRJD.subarray((r * this.J + j) * this.D, (r * this.J + j + 1) * this.D); }
  lengths(r) { return this.lengthsRJ.subarray(r * this.J, (r + 1) * this.J); }
  coupling(r, i, j) { return this.couplingsRIJ[(r * this.I + i) * this.J + j]; }
  support(r, i, j) { return this.coupling(r, i, j) * this.alongRIJ[(r * this.I + i) * this.J + j]; }

  /** The cosine of a vote and the class capsule. */
  agreement(r, i, j) {
    return this.alongRIJ[(r * this.I + i) * this.J + j] / Math.max(this.voteLengthsIJ[i * this.J + j], 1e-12);
  }

  /** The component of each vote along the class capsule of each iteration. */
  #compare() {
    const { I, J, D, R } = this;
    this.alongRIJ = new Float64Array(R * I * J);
    for (let r = 0; r < R; r += 1) {
      for (let j = 0; j < J; j += 1) {
        const pose = this.pose(r, j);
        const length = Math.max(norm(pose), 1e-12);
        const direction = Float64Array.from(pose, (value) => value / length);
        for (let i = 0; i < I; i += 1) {
          let total = 0;
          for (let d = 0, at = (i * J + j) * D; d < D; d += 1) total += direction[d] * this.votesIJD[at + d];
          this.alongRIJ[(r * I + i) * J + j] = total;
        }
      }
    }
  }

  /** Normalised entropy of the couplings of each iteration; what leaky routing leaves uncoupled is one more class. */
  entropies() {
    const { I, J, R, parts } = this;
    const all = Math.max(sum(parts), Number.MIN_VALUE);
    const entropy = (share) => (share > 0 ? -share * Math.log(share) : 0);
    let leaks = false;
    const nats = range(R).map((r) => {
      let total = 0;
      for (let i = 0; i < I; i += 1) {
        let [own, coupled] = [0, 0];
        for (let j = 0; j < J; j += 1) {
          const share = this.coupling(r, i, j);
          own += entropy(share);
          coupled += share;
        }
        const kept = Math.max(0, 1 - coupled);
        if (kept > 1e-3) leaks = true;
        total += (parts[i] / all) * (own + (kept > 1e-6 ? entropy(kept) : 0));      // less is rounding
      }
      return total;
    });
    return nats.map((value) => Math.min(1, Math.max(0, value / Math.log(Math.max(2, J + (leaks ? 1 : 0))))));
  }

  /** How many parts give more than half of their coupling to one class. */
  decided(r) {
    const { I, J } = this;
    return range(I).filter((i) => Math.max(...this.couplingsRIJ.subarray((r * I + i) * J, (r * I + i + 1) * J)) > DECIDED).length;
  }

  get startsUniform() {
    const first = this.couplingsRIJ.subarray(0, this.I * this.J);
    return first.reduce((most, value) => Math.max(most, value), -Infinity) - first.reduce((least, value) => Math.min(least, value), Infinity) < EQUAL;
  }
}

/** What routing decides after `steps` iterations, as in explain/decisions.py. */
export function finding(trace, steps, classes, entropies) {
  const last = steps - 1;
  const winners = range(steps).map((r) => argmax(trace.lengths(r)));
  const supports = range(trace.I).map((i) => Math.max(0, trace.support(last, i, winners[last])));
  const total = sum(supports);
  const found = { winners, undecided: entropies[last], decided: trace.decided(last), parts: trace.I,
    strongest: total > 0 ? Math.max(...supports) / total : 0, starts_uniform: trace.startsUniform };
  const changes = range(steps).slice(1).filter((r) => winners[r] !== winners[r - 1]).map((r) => r + 1);
  const lengths = range(steps).map((r) => trace.lengths(r)[winners[last]]);
  const emerges = lengths[last] > PRESENT && !(lengths[0] > PRESENT) && found.undecided < NEARLY_EQUAL;
  const kind = changes.length > 0 ? "changed" : emerges ? "present" : 2 * found.decided >= found.parts ? "parts" : "none";
  return { kind, sentence: sentence({ ...found, kind, lengths, changed: changes.at(-1) }, classes), ...found };
}

const grouped = (count) => String(count).replace(/\B(?=(\d{3})+$)/g, ",");

function sentence({ kind, winners, lengths, changed, undecided, decided, parts, strongest, starts_uniform: uniform }, classes) {
  const [first, last, steps] = [classes[winners[0]], classes[winners.at(-1)], winners.length];
  const equal = uniform ? ", where all couplings are equal" : "";
  const head = kind === "parts" ? "Most parts decide, but not the answer" : "The couplings decide little here";
  const told = kind === "changed"
    ? `Routing changes the answer: ${first} is longest at iteration 1${equal}, ${last} from iteration ${changed} on.`
    : kind === "present" ? `Routing decides that there is a ${last}: with equal couplings, at iteration 1, its capsule is only `
      + `${lengths[0].toFixed(2)} long and no class is present. As votes that agree are coupled more, it grows to ${lengths.at(-1).toFixed(2)}.`
    : `${head}: ${last} is longest already at iteration 1${equal}${steps > 1 ? ", and stays so" : ""}.`;
  const share = strongest > 0 ? ` The strongest part alone gives ${rint(100 * strongest)} % of the support for ${last}.` : "";
  return `${told} After iteration ${steps} the couplings are ${(100 * undecided).toFixed(1)} % undecided (100 %: all equal), and `
    + `${grouped(decided)} of ${grouped(parts)} parts give more than half of their coupling to one class.${share}`;
}
