"""Sections of report.html for a model that says how each class stands: drawings in place, views, sweeps, poses."""

from __future__ import annotations

import torch

from torchcaps import explain
from torchcaps.explain.html import paragraph, picture
from torchcaps.losses import multi_hot
from torchcaps.models import PoseCaps
from torchcaps.train.reports.tested import Tested, surest

EXAMPLES = 8  # images whose classes are drawn in place, before up to two mistakes
MAX_DRAWN = 10  # classes drawn, where images have several
VIEWED = 2  # images whose views are shown
MAX_READ = 1000  # images whose poses are counted


def placed(model: PoseCaps, test: Tested) -> list[str]:
    """Draw the classes that were found where and how they stand."""
    chosen = test.shown(EXAMPLES)
    found = explain.predicted_classes(test.lengths[chosen], test.several, test.each)
    rows, classes = (part[:MAX_DRAWN] for part in found.nonzero().T)
    if not len(classes):
        return [paragraph("No class was found in the examples.")]
    positions = chosen[rows]
    stands = explain.stand(model, test.images[positions], classes)
    there = multi_hot(test.targets, len(test.names))[positions, classes]
    caption = (
        "The class that was found and its length, above the image; angle with the spread of the views, scale, "
        "centre in pixels and, if it is read, the width of strokes, above what the decoder draws. "
        "The dot is the centre, the arrow points to the upper side. "
        "Classes that are not in the image are marked."
    )
    if not test.several:
        caption += " The last columns are mistakes, where there are any."
    drawn = explain.draw_placed(model, stands)
    figure = explain.figure_placed(model, stands, drawn, test.names, true=there > 0, title="")
    return [picture(figure, "Images with the poses that were read, above drawings in these poses", caption)]


def views(model: PoseCaps, test: Tested) -> list[str]:
    """Show how long the capsules of two classes are in each view."""
    about = (
        "An image seen through each pose of the lattice. Bright is where the capsule of the class is long; the cross "
        "is the pose that was read. Left the longest class, right the runner-up."
    )
    parts = [paragraph(about)]
    for index in surest(test.lengths, VIEWED):
        image, longest = test.images[index], test.lengths[index].topk(min(2, len(test.names))).indices
        stands = explain.stand(model, image.expand(len(longest), -1, -1, -1), longest)
        lengths_ASJ = explain.lattice_lengths(model, image)
        figure = explain.figure_lattice(lengths_ASJ, model.lattice, stands, test.names, title="")
        parts.append(picture(figure, f"Length by angle and scale. Class {test.names[int(longest[0])]}"))
    return parts


def sweeps(model: PoseCaps, test: Tested) -> list[str]:
    """Draw one class with its pose changed, then its capsule."""
    image, lengths = (part[surest(test.lengths, 1)[0]] for part in (test.images, test.lengths))
    target = int(lengths.argmax())
    figure = explain.figure_pose_sweep(
        explain.sweep_pose(model, image, target), explain.sweep_capsule(model, image, target), title=""
    )
    caption = (
        f"The capsule of class {test.names[target]}. Above, one part of its pose is changed at a time, by degrees, "
        "factors and pixels; below, one dimension of the capsule, by a share of its length."
    )
    return [picture(figure, f"Sweeps of the pose and the capsule of class {test.names[target]}", caption)]


def read_poses(model: PoseCaps, test: Tested) -> list[str]:
    """Count the angles, scales and widths of strokes that were read."""
    read = explain.read_poses(model, test.images[:MAX_READ])
    found = explain.predicted_classes(read.lengths, test.several, test.each)
    if not found.any():
        return [paragraph("No class was found, so no pose was read.")]
    _, classes = found.nonzero().T
    angle, scale = read.placement.angle[found], read.placement.scale[found]
    middle = ", ".join(f"{float(torch.quantile(angle.float(), share)):.0f}°" for share in (0.05, 0.5, 0.95))
    caption = (
        f"Of the classes found in {len(read.lengths):,} test images. Shades are shares of a class. "
        f"5, 50 and 95 % of the angles lie below {middle}."
    ).replace("-", "−")
    thickness = None if read.placement.thickness is None else read.placement.thickness[found]
    if thickness is not None:
        caption += f" The median width of strokes is {float(thickness.median()):.1f} pixels."
    figure = explain.figure_read_poses(angle, scale, classes, test.names, thickness)
    return [picture(figure, "Histograms of the poses that were read", caption)]
