// Poses { x, y, angle, scale } of shapes, in pixels and in degrees counter-clockwise; preset scenes.

const radians = (degrees) => (degrees * Math.PI) / 180;

/** The angle within −180° … 180°. */
export const wrapped = (angle) => ((((angle + 180) % 360) + 360) % 360) - 180;

/** Where a pose puts a point of its own frame. */
export function at({ x, y, angle, scale }, [right, down]) {
  const [cos, sin] = [scale * Math.cos(radians(angle)), scale * Math.sin(radians(angle))];
  return [x + cos * right + sin * down, y + cos * down - sin * right];
}

/** The pose of a member in the image, from that of its whole and its own in the frame of the whole. */
export function compose(whole, member) {
  const [x, y] = at(whole, [member.x, member.y]);
  return { x, y, angle: wrapped(whole.angle + member.angle), scale: whole.scale * member.scale };
}

/** The pose of a whole, from that of a member: the vote of a part. */
function voteOf(part, member) {
  const whole = { x: 0, y: 0, angle: part.angle - member.angle, scale: part.scale / member.scale };
  const [x, y] = at(whole, [member.x, member.y]);
  return { ...whole, x: part.x - x, y: part.y - y };
}

export const path = (points) => points.map((point) => point.map((value) => value.toFixed(2)).join()).join(" ");

const SHAFT = 7;      // pixels of an arrow at scale 1

/** The path of an arrow from the origin of a pose to its upper side; longer for a larger scale. */
export function arrowPath({ angle, scale, x, y }) {
  const tip = [0, -SHAFT];
  const barb = 1.3 / scale;      // of the same size on all arrows
  const line = (...points) => `M${points.map((point) => at({ x, y, angle, scale }, point).map((v) => v.toFixed(2)).join(" ")).join("L")}`;
  return line([0, 0], tip) + line([-barb, -SHAFT + 1.4 * barb], tip, [barb, -SHAFT + 1.4 * barb]);
}

/** Pixels (of a whole at scale 1) and degrees between a vote and a whole. */
export const apart = (vote, whole) => ({
  pixels: Math.hypot(vote.x - whole.x, vote.y - whole.y) / whole.scale,
  degrees: Math.abs(wrapped(vote.angle - whole.angle)),
});

const place = (x, y, angle = 0, scale = 1) => ({ x, y, angle, scale });

const disturbed = (parts) => parts.map((part, i) => ({ ...part, x: part.x + (i % 2 ? 0.7 : -0.5), y: part.y + (i % 3 ? -0.5 : 0.5),
  angle: part.angle + (i % 2 ? 4 : -3), scale: part.scale * (i % 2 ? 1.03 : 0.97) }));

/** Scenes by name; each gets the classes with their members, and returns parts. */
export const PRESETS = {
  "A boat": (wholes) => wholes("boat", place(32, 34, 0, 2)),
  "A house": (wholes) => wholes("house", place(32, 34, 0, 2)),
  // The same two parts: the triangle stands on its corner, beside the rectangle.
  Neither: () => [{ type: "rectangle", ...place(29, 38, 0, 2) }, { type: "triangle", ...place(42, 22, 200, 2) }],
  // Slightly disturbed, so that votes agree without being equal.
  "Two boats": (wholes) => disturbed([...wholes("boat", place(25, 35, 12, 1.6)), ...wholes("boat", place(38, 30, -14, 1.6))]),
  // The triangle is the roof of a house, and would fit as the sail of a boat, whose hull stands a little off.
  "Shared triangle": (wholes, members) => {
    const [rectangle, triangle] = wholes("house", place(38, 38, 0, 1.25));
    const [hull, sail] = members("boat");
    const boat = voteOf(triangle, sail);
    const beside = { type: hull.type, ...compose({ ...boat, x: boat.x - 0.7, y: boat.y - 0.5 }, hull) };
    return [rectangle, triangle, beside, ...wholes("boat", place(12, 49, 10, 0.9)), ...wholes("house", place(15, 13, 25, 0.9))];
  },
  Neighbours: (wholes) => [10, 24.5, 39, 53.5].flatMap((x) => wholes("house", place(x, 34))),
};

/** The parts of a preset scene. */
export function presetParts(name, classes) {
  const members = (whole) => classes.find((each) => each.name === whole).members;
  const wholes = (whole, pose) => members(whole).map((member) => ({ type: member.type, ...compose(pose, member) }));
  return PRESETS[name](wholes, members);
}
