// Two digits as in the training images: each as large as in MNIST, the pair centred.

const DIGIT = 20 / 36;       // the longer side of a digit, as a share of the image
const WHOLE = 34 / 36;       // the longer side of the pair

/** The bounding box of marks, stroke width included: [[left, right], [top, bottom]]. */
function boxOf(marks) {
  return [0, 1].map((axis) => {
    const box = [Infinity, -Infinity];      // not Math.min(...): a long stroke has more points than a call may have arguments
    for (const { points, width } of marks) {
      for (const point of points) {
        box[0] = Math.min(box[0], point[axis] - width / 2);
        box[1] = Math.max(box[1], point[axis] + width / 2);
      }
    }
    return box;
  });
}

const longer = (box) => Math.max(...box.map(([low, high]) => high - low));

/** The same strokes, scaled until the larger digit has its size, and centred as a pair. */
export function arranged(marks) {
  if (marks.length === 0) return marks;
  const digits = [0, 1].map((layer) => marks.filter((mark) => mark.layer === layer)).filter((digit) => digit.length > 0);
  const box = boxOf(marks);
  const scale = Math.min(DIGIT / Math.max(...digits.map((digit) => longer(boxOf(digit)))), WHOLE / longer(box));
  const middle = box.map(([low, high]) => (low + high) / 2);
  return marks.map((mark) => ({ ...mark, width: mark.width * scale,
    points: mark.points.map(([x, y, pressure]) => [0.5 + (x - middle[0]) * scale, 0.5 + (y - middle[1]) * scale, pressure]) }));
}
