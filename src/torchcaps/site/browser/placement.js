// Placements of pose capsules: what `encode` returns as numbers, and drawings put in their places.

import { affineOf, inverse, sample } from "./affine.js";
import { numbers } from "./numbers.js";
import { imageOf, strip } from "./pictures.js";
import { dataUrl } from "./png.js";
import { UserError } from "./prepare.js";

const PARTS = ["x", "y", "angle", "scale", "spread", "stretch", "shear", "thickness"];
const FACTORS = ["scale", "stretch"];      // a sweep multiplies these; it adds to the others

/** Outputs of `encode` that are parts of a placement. */
export const partsOf = (model) => PARTS.filter((name) => model.outputs.includes(name));

/** The placements of all classes in image `index` of a batch. */
export function placementsOf(model, found, index = 0) {
  const J = model.classes.length;
  const row = (name) => (model.outputs.includes(name) ? numbers(found[name].data.subarray(index * J, (index + 1) * J)) : null);
  return Object.fromEntries(PARTS.map((name) => [name, row(name)]));
}

/** The placement of one class of the only image. */
export const placementOf = (model, found, index) => Object.fromEntries(partsOf(model).map((name) => [name, found[name].data[index]]));

/** Moves an upright drawing to its place. */
export function placed({ image: { height, width } }, upright, { x, y, ...rest }) {
  return sample(upright, inverse(affineOf({ ...rest, x: x - (width - 1) / 2, y: y - (height - 1) / 2 })));
}

/** The placement of a request, by default upright in the centre. */
export function requestedPlacement(model, given) {
  const { height, width } = model.image;
  const { stretch = 1, shear = 0, ...rest } = given ?? { x: (width - 1) / 2, y: (height - 1) / 2 };
  const placement = { angle: 0, scale: 1, ...rest };
  for (const [name, value, neutral] of [["stretch", stretch, 1], ["shear", shear, 0]]) {
    if (model.placement.includes(name)) placement[name] = value;
    else if (value !== neutral) throw new UserError(`placement.${name}: this model does not predict it; omit it`);
  }
  return placement;
}

/** A capsule drawn with each part of its placement varied in turn. */
export async function sweepPlacement(model, capsule, index, placement, sweeps) {
  const upright = imageOf(await model.decode([capsule], [index]), 0);
  return Object.entries(sweeps).filter(([name]) => name in placement).map(([name, values]) => {
    const now = placement[name];
    const pictures = values.map((value) => placed(model, upright, { ...placement, [name]: FACTORS.includes(name) ? now * value : now + value }));
    return { name, values, picture: dataUrl(strip(pictures, values.length)) };
  });
}
