// The answer to `transform`: how predictions change when an image is turned, moved, scaled or sheared.

import { transformed } from "./affine.js";
import { comparisonOf, modelOf, constants } from "./models.js";
import { linspace, numbers, range, rint } from "./numbers.js";
import { partsOf, placementsOf } from "./placement.js";
import { dataUrl } from "./png.js";
import { prepared } from "./prepare.js";

const MAX_CURVE_PICTURES = 7;
const MAX_BATCH_IMAGES = 2;      // other requests run between batches
const NEUTRAL = { rotate: 0, shift_x: 0, shift_y: 0, scale: 1, shear: 0 };

export async function transform({ image, model: name, along = null, steps = 25, ...given }) {
  const model = await modelOf(name);
  const other = await comparisonOf(model);
  const picture = await prepared(model, image);
  const { transform_ranges: ranges } = await constants();
  const setting = { ...NEUTRAL, ...given };
  const values = along === null ? [] : curveValues(along, steps, ranges);
  const images = [setting, ...values.map((value) => ({ ...setting, [along]: value }))].map((each) => transformed(picture, each));
  const { lengths, placements } = await read(model, images);
  const compared = other === null ? null : (await read(other, images)).lengths;
  return { model: model.name, seen: dataUrl(images[0]), lengths: lengths[0], placements: placements && placements[0],
    comparison: other && { name: other.name, probabilities: compared[0] },
    curve: along === null ? null : curve(along, values, images.slice(1), { lengths, compared, placements }) };
}

function curve(along, values, images, { lengths, compared, placements }) {
  const count = Math.min(MAX_CURVE_PICTURES, values.length);
  const shown = linspace(0, values.length - 1, count).map(rint);
  return { along, values, lengths: lengths.slice(1), comparison: compared && compared.slice(1),
    placements: placements && placements.slice(1), pictures: shown.map((index) => dataUrl(images[index])),
    pictured: shown.map((index) => values[index]) };
}

/** Evenly spaced values over a parameter's range; scales are spaced evenly on a logarithmic axis. */
function curveValues(along, steps, ranges) {
  return along === "scale" ? linspace(-2, 2, steps).map((power) => 2 ** power) : linspace(...ranges[along], steps);
}

/** Lengths and placements of all classes in each image. */
async function read(model, images) {
  const poses = model.kind === "poses";
  const J = model.classes.length;
  const [lengths, placements] = [[], poses ? [] : null];
  for (let from = 0; from < images.length; from += MAX_BATCH_IMAGES) {
    const batch = images.slice(from, from + MAX_BATCH_IMAGES);
    const found = await model.encode(batch, ["lengths", ...(poses ? partsOf(model) : [])]);
    const skipped = model.kind === "capsules" ? (model.iterations - 1) * batch.length : 0;      // lengths are (R, B, J)
    for (const i of range(batch.length)) {
      lengths.push(numbers(found.lengths.data.subarray((skipped + i) * J, (skipped + i + 1) * J)));
      placements?.push(placementsOf(model, found, i));
    }
  }
  return { lengths, placements };
}
