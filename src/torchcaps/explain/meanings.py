"""What a dimension of a class capsule does: how the digit that it draws changes with it, measured over many digits.

python -m torchcaps.explain.meanings capsnet-mnist     writes meanings.json beside the weights

The other dimensions are held while one is changed. Over real digits alone, dimensions that vary together would borrow
each other's meaning: which one of them moves the ink, only the decoder can tell.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.data import augment, load_data
from torchcaps.errors import UserError
from torchcaps.explain.needs import needs_decoder
from torchcaps.explain.sweep import SWEEP
from torchcaps.models import load
from torchcaps.models.evaluating import evaluating
from torchcaps.models.files import file_beside

PROPERTIES = ("width", "height", "slant", "thickness", "horizontal position", "vertical position")
LEAST = 0.6  # correlation from which on a dimension may be named
AHEAD = 0.15  # by which it must exceed that of the next property
DIGITS = 200  # of each class
SHIFT = 2  # pixels by which digits are moved, as in training: centred ones would have no position to speak of


def properties(images_BHW: Tensor) -> Tensor:
    """(B, 6): what can be measured of white ink on black, in pixels, in the order of PROPERTIES.

    width, height  of a box with the same second moments; the width is that of the digit set upright
    slant          to the right, in pixels for each pixel of height
    thickness      of the stroke: twice its area over the length of its outline
    position       of the centre of mass, right of and below the middle
    """
    _, H, W = images_BHW.shape
    x_W, y_H1 = torch.arange(W) - (W - 1) / 2, (torch.arange(H) - (H - 1) / 2)[:, None]
    tiny = torch.finfo(images_BHW.dtype).tiny
    ink = images_BHW.sum((1, 2))
    mass = ink.clamp_min(tiny)

    def mean(values: Tensor) -> Tensor:
        return (images_BHW * values).sum((1, 2)) / mass

    right, below = mean(x_W), mean(y_H1)
    across, down = x_W - right[:, None, None], y_H1 - below[:, None, None]
    xx, yy, xy = mean(across.square()), mean(down.square()), mean(across * down)
    slope = xy / yy.clamp_min(1e-6)  # y counts downwards: what leans to the right goes left on its way down
    width, height = ((12 * moment.clamp_min(0)).sqrt() for moment in (xx - slope * xy, yy))  # a box: side² / 12
    padded = F.pad(images_BHW, (1, 1, 1, 1))
    steps = padded[:, 1:, 1:] - padded[:, 1:, :-1], padded[:, 1:, 1:] - padded[:, :-1, 1:]
    outline = torch.hypot(*steps).sum((1, 2)).clamp_min(tiny)
    return torch.stack([width, height, -slope, 2 * ink / outline, right, below], dim=1)


def correlations(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """(J, D, 6): of a dimension's value with each property of what is drawn, over digits and the values of a sweep.

    A property's spread among digits counts, too: a dimension that changes it less than digits differ in it anyway has
    a small correlation, however steady the change.

    images  (N, C, H, W) in [0, 1]
    labels  (N,)
    """
    capsnet = needs_decoder(model, "meanings")
    J, D = capsnet.num_classes, capsnet.classes.out_dim
    steps_V = torch.tensor(SWEEP)
    found_JDP = torch.zeros(J, D, len(PROPERTIES))
    with evaluating(capsnet):
        for label in range(J):
            digits = images[labels == label]
            if not len(digits):
                raise UserError(f"meanings: there is no image of class {capsnet.class_names[label]}")
            answers = [capsnet.classes(capsnet.children_of(some)) for some in digits.split(50)]
            poses_ND = torch.cat([parents.pose[:, label] for parents in answers])
            for dimension in range(D):
                masked_NVJD = poses_ND.new_zeros(len(poses_ND), len(steps_V), J, D)
                masked_NVJD[:, :, label] = poses_ND[:, None]
                masked_NVJD[:, :, label, dimension] += steps_V
                drawn = capsnet.decoder(masked_NVJD.flatten(0, 1))  # type: ignore[misc]
                found_JDP[label, dimension] = _correlation(steps_V.repeat(len(poses_ND)), properties(drawn.mean(1)))
    return found_JDP


def _correlation(values_B: Tensor, measured_BP: Tensor) -> Tensor:
    values, measured = values_B - values_B.mean(), measured_BP - measured_BP.mean(0)
    return values @ measured / (values.norm() * measured.norm(dim=0)).clamp_min(1e-12)


def meaning(correlations_P: Tensor) -> dict[str, Any]:
    """A name where one property is well correlated, and clearly more so than any other."""
    strongest = correlations_P.abs().argsort(descending=True).tolist()
    rounded = [round(value, 3) for value in correlations_P.tolist()]
    first, second = (abs(rounded[index]) for index in strongest[:2])
    clear = first >= LEAST and first - second >= AHEAD
    return {
        "name": PROPERTIES[strongest[0]] if clear else None,
        "correlation": rounded[strongest[0]],
        "others": {PROPERTIES[index]: rounded[index] for index in strongest[1:]},
    }


def write_meanings(name: str) -> Path:
    """Measure a saved model on a sample of its own training digits, and write meanings.json beside its weights."""
    model = load(name)
    weights = file_beside(name, "model.safetensors")
    source = model.trained_by.get("data")
    if source is None or weights is None:
        raise UserError(f"meanings: {name} does not say what it was trained on")
    train = load_data(**source).train
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(train), generator=generator)
    if train.targets.ndim != 1:
        raise UserError(
            f"meanings: images of {source['source']} carry several labels; a digit must be alone to measure"
        )
    labels = train.targets[order]
    chosen = torch.cat([order[labels == label][:DIGITS] for label in range(model.num_classes)])
    moved = augment(model.prepare(train.images[chosen]), generator, shift=SHIFT)
    found = correlations(model, moved, train.targets[chosen])
    content = {
        "made_by": f"python -m torchcaps.explain.meanings {name}",
        "data": f"{source['source']}, training images moved by up to {SHIFT} pixels",
        "n": train.targets[chosen].bincount().tolist(),
        "least": LEAST,
        "ahead": AHEAD,
        "meanings": [[meaning(dimension) for dimension in capsule] for capsule in found],
    }
    path = weights.with_name("meanings.json")
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    written = write_meanings(sys.argv[1])
    named = [each["name"] for row in json.loads(written.read_text())["meanings"] for each in row]
    print(f"{written}: {len(named) - named.count(None)} of {len(named)} dimensions have a name")
