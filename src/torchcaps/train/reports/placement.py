"""Sections of report.html for models that read placements: reconstructions in place, views, sweeps, poses."""

from __future__ import annotations

import torch

from torchcaps import explain
from torchcaps.explain.html import paragraph, picture
from torchcaps.losses import multi_hot
from torchcaps.models import PoseCaps
from torchcaps.train.reports.report_data import ReportData, most_confident

EXAMPLES = 8  # images, before up to two mistakes
MAX_DRAWN = 10  # classes, if images have several
VIEWED = 2  # images whose views are shown
MAX_READ = 1000  # images in the histograms


def placed(model: PoseCaps, test: ReportData) -> list[str]:
    """Reconstruct the predicted classes in their placements."""
    chosen = test.examples(EXAMPLES)
    found = explain.predicted_classes(test.lengths[chosen], test.several, test.each)
    rows, classes = (part[:MAX_DRAWN] for part in found.nonzero().T)
    if not len(classes):
        return [paragraph("No class was predicted in the examples.")]
    positions = chosen[rows]
    reading = explain.read_placements(model, test.images[positions], classes)
    there = multi_hot(test.targets, len(test.names))[positions, classes]
    caption = (
        "Above the image: the predicted class and its length. Above the reconstruction: the angle with its spread over "
        "the views, the scale, the centre in pixels and, if it is read, the stroke width. "
        "The dot is the centre, the arrow points to the top of the class. "
        "Classes that are not in the image are marked."
    )
    if not test.several:
        caption += " The last columns are mistakes, if there are any."
    drawn = explain.draw_placed(model, reading)
    figure = explain.figure_placed(model, reading, drawn, test.names, true=there > 0, title="")
    return [picture(figure, "Images with the poses that were read, above reconstructions in these poses", caption)]


def views(model: PoseCaps, test: ReportData) -> list[str]:
    """Show the capsule lengths of two classes at each pose of the lattice."""
    about = (
        "An image transformed by each pose of the lattice. Bright poses give the class a long capsule; the cross is "
        "the pose that was read. Left: the longest class; right: the runner-up."
    )
    parts = [paragraph(about)]
    for index in most_confident(test.lengths, VIEWED):
        image, longest = test.images[index], test.lengths[index].topk(min(2, len(test.names))).indices
        reading = explain.read_placements(model, image.expand(len(longest), -1, -1, -1), longest)
        lengths_ASJ = explain.lattice_lengths(model, image)
        figure = explain.figure_lattice(lengths_ASJ, model.lattice, reading, test.names, title="")
        parts.append(picture(figure, f"Length by angle and scale. Class {test.names[int(longest[0])]}"))
    return parts


def sweeps(model: PoseCaps, test: ReportData) -> list[str]:
    """Reconstruct one class with its placement changed, then its capsule."""
    image, lengths = (part[most_confident(test.lengths, 1)[0]] for part in (test.images, test.lengths))
    target = int(lengths.argmax())
    figure = explain.figure_pose_sweep(
        explain.sweep_pose(model, image, target), explain.sweep_capsule(model, image, target), title=""
    )
    caption = (
        f"The capsule of class {test.names[target]}. Above, one part of its placement is changed at a time, in "
        "degrees, factors and pixels; below, one dimension of the capsule, by a share of its length."
    )
    return [picture(figure, f"Sweeps of the placement and the capsule of class {test.names[target]}", caption)]


def read_poses(model: PoseCaps, test: ReportData) -> list[str]:
    """Draw histograms of the angles, scales and stroke widths that were read."""
    read = explain.read_poses(model, test.images[:MAX_READ])
    found = explain.predicted_classes(read.lengths, test.several, test.each)
    if not found.any():
        return [paragraph("No class was predicted, so no pose was read.")]
    _, classes = found.nonzero().T
    angle, scale = read.placement.angle[found], read.placement.scale[found]
    middle = ", ".join(f"{float(torch.quantile(angle.float(), share)):.0f}°" for share in (0.05, 0.5, 0.95))
    caption = (
        f"Of the classes predicted in {len(read.lengths):,} test images. Shades are shares of a class. "
        f"5, 50 and 95 % of the angles lie below {middle}."
    ).replace("-", "−")
    thickness = None if read.placement.thickness is None else read.placement.thickness[found]
    if thickness is not None:
        caption += f" The median stroke width is {float(thickness.median()):.1f} pixels."
    figure = explain.figure_read_poses(angle, scale, classes, test.names, thickness)
    return [picture(figure, "Histograms of the poses that were read", caption)]
