// The answer to `shapes`: votes of placed parts, hypotheses in each iteration, and how far votes are apart.

import { numbers, range } from "./numbers.js";
import { scaleOf, similarityOf, turnOf } from "./similarity.js";
import { classOf, closest, presenceNear, votes, wholeTrace } from "./whole-routing.js";

let loading = null;

/** What the layer knows; the file is written by site/folder.py. */
function knowledge() {
  loading ??= (async () => {
    const response = await fetch(new URL("../models/shapes.json", import.meta.url));
    const { layer, ...described } = await response.json();
    return { ...layer, described, classes: layer.classes.map((each) => classOf(each, layer.clutter)) };
  })().catch(() => {
    loading = null;
    throw Object.assign(new Error("shapes.json"), { name: "HostUnavailable" });
  });
  return loading;
}

const shown = (pose) => ({ x: numbers(pose[0]), y: numbers(pose[1]), angle: numbers((turnOf(pose) * 180) / Math.PI), scale: numbers(scaleOf(pose)) });

export async function shapes({ parts: given, iterations = 5 }) {
  return found(await knowledge(), given, iterations);
}

/** The answer, given what the layer knows. */
export function found({ described, types, symmetry, classes, tolerance }, given, iterations) {
  const parts = given.map(({ type, x, y, angle = 0, scale = 1, presence = 1 }) =>
    ({ pose: similarityOf({ x, y, radians: (angle * Math.PI) / 180, scale }), presence, type: types.indexOf(type) }));
  const voted = votes(parts, classes, symmetry).map((row, i) => row.map((each, j) =>
    each.map((turns, m) => (classes[j].members[m].type === parts[i].type ? turns : turns.map(() => null)))));
  const listed = [];      // the votes that count
  const places = voted.map((row, part) => row.map((each, label) => each.map((turns) => turns.map((pose) =>
    (pose === null ? null : listed.push({ part, class: label, weight: numbers(parts[part].presence), ...shown(pose) }) - 1)))));
  const steps = wholeTrace(parts, classes, symmetry, iterations);
  return {
    ...described, votes: listed, gaps: gaps({ parts, voted, places, classes, symmetry, tolerance }),
    steps: steps.map(({ wholes, unexplained }) => ({ unexplained: numbers(unexplained),
      wholes: wholes.map(({ label, pose, presence, couplings }) => (
        { class: label, presence: numbers(presence), couplings: numbers(couplings), ...shown(pose) })) })),
  };
}

/** Compares the votes of every two parts that may be two members of one class. */
function gaps({ parts, voted, places, classes, symmetry, tolerance }) {
  const pairs = range(parts.length).flatMap((i) => range(parts.length).slice(i + 1).map((k) => [i, k]))
    .filter(([i, k]) => parts[i].presence > 0 && parts[k].presence > 0 && parts[i].type !== parts[k].type);
  return pairs.flatMap(([i, k]) => classes.map((_, label) => {
    const { first, second, step } = closest(voted[i][label], voted[k][label], tolerance);
    const whole = voted[i][label].flat()[first];
    return { parts: [i, k], votes: [places[i][label].flat()[first], places[k][label].flat()[second]], class: label,
      pixels: numbers(Math.hypot(step[0], step[1]) * scaleOf(whole)), degrees: numbers((Math.abs(step[2]) * 180) / Math.PI),
      scale: numbers(Math.exp(Math.abs(step[3]))), presence: numbers(presenceNear([parts[i], parts[k]], classes, symmetry, whole, label)) };
  }));
}
