"""report.html of a run that finds objects: what was found, and each object drawn by itself."""

from __future__ import annotations

from torchcaps.data import ObjectDataset
from torchcaps.detection import Detection, detect, outline_of
from torchcaps.explain.html import paragraph, picture, section, table
from torchcaps.explain.objects import figure_objects
from torchcaps.models import SceneCaps

EXAMPLES = 8


def detection_sections(model: SceneCaps, data: ObjectDataset, measured: bool) -> list[str]:
    """The sections about a model that finds objects.

    Args:
        model: to explain.
        data: held-out images with objects.
        measured: whether there are such images.
    """
    if not measured or not len(data):
        return [section("Test images", paragraph("There are no test images, so there is nothing to show."))]
    images = data.images[:EXAMPLES]
    found = detect(model, images)
    outlines = [[outline_of(each) for each in objects] for objects in found]
    labels = [", ".join(each.name for each in objects[:3]) or "nothing" for objects in found]
    boxes = picture(
        figure_objects(list(images.float() / 255), outlines, labels),
        "Images with a box around each object",
        "The first images. A box is turned as its object is; the thick side is its top.",
    )
    rows = [
        (str(number), each.name, f"{each.presence:.2f}", *_pose(each), ", ".join(part.name for part in each.parts))
        for number, objects in enumerate(found, start=1)
        for each in objects
    ]
    header = ("Image", "Class", "Presence", "x", "y", "Angle", "Scale", "Parts")
    return [section("Objects", boxes, table(rows, header, 16))]


def _pose(found: Detection) -> tuple[str, str, str, str]:
    return f"{found.x:.1f}", f"{found.y:.1f}", f"{found.angle:.1f}°", f"{found.scale:.2f}"
