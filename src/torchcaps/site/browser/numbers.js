// Arithmetic as the server does it: rounding, sorting, and small sums over arrays.

/** Rounds to the nearest integer, halves to the even one. */
export function rint(value) {
  const low = Math.floor(value);
  const rest = value - low;
  if (rest !== 0.5) return Math.round(value);
  return low % 2 === 0 ? low : low + 1;
}

const rounded = (value) => rint(value * 1e6) / 1e6;

/** Numbers with six decimals, in arrays as deep as `values`. */
export const numbers = (values) => (typeof values === "number" ? rounded(values) : Array.from(values, numbers));

export const sum = (values) => values.reduce((total, value) => total + value, 0);

/** Positions of the largest values first, equal ones in their order. */
export const descending = (values) => Array.from(values, (_, i) => i).sort((a, b) => values[b] - values[a] || a - b);

export const argmax = (values) => values.reduce((best, value, i) => (value > values[best] ? i : best), 0);

/** The lower of the two middle values, if their number is even. */
export const median = (values) => Float32Array.from(values).sort()[(values.length - 1) >> 1];

/** `count` values from `low` to `high`, evenly spaced and symmetric in their rounding. */
export function linspace(low, high, count) {
  const step = (high - low) / (count - 1);
  return Array.from({ length: count }, (_, i) => (i < count / 2 ? low + step * i : high - step * (count - 1 - i)));
}

export const range = (count) => Array.from({ length: count }, (_, i) => i);
