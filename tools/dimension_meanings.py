"""Name what each dimension of a class capsule encodes: how the reconstructed digit changes with it, over many digits.

python tools/dimension_meanings.py capsnet-mnist     writes meanings.json beside the weights

Only one dimension is changed at a time. In real digits, dimensions vary together; only the decoder shows which of them
changes a property.
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
from torchcaps.explain.require import require_decoder
from torchcaps.explain.sweep import SWEEP
from torchcaps.models import load
from torchcaps.models.evaluating import evaluating
from torchcaps.models.files import file_beside

PROPERTIES = ("width", "height", "slant", "thickness", "horizontal position", "vertical position")
MIN_CORRELATION = 0.6  # for a dimension to be named
MIN_LEAD = 0.15  # of that correlation over the next property's
DIGITS = 200  # of each class
SHIFT = 2  # maximum translation in pixels, as in training: centred digits would not vary in position


def properties(images_BHW: Tensor) -> Tensor:
    """Measure white digits on black, in pixels.

    Args:
        images_BHW: (B, H, W) in [0, 1].

    Returns:
        (B, 6) in the order of PROPERTIES: width and height of a box with the same second moments, the width without
        slant; slant to the right per pixel of height; stroke thickness, twice the area over the length of the outline;
        centre of mass, right of and below the image centre.
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
    slope = xy / yy.clamp_min(1e-6)  # y points down: a slant to the right has a negative slope
    width, height = ((12 * moment.clamp_min(0)).sqrt() for moment in (xx - slope * xy, yy))  # a box: side² / 12
    padded = F.pad(images_BHW, (1, 1, 1, 1))
    steps = padded[:, 1:, 1:] - padded[:, 1:, :-1], padded[:, 1:, 1:] - padded[:, :-1, 1:]
    outline = torch.hypot(*steps).sum((1, 2)).clamp_min(tiny)
    return torch.stack([width, height, -slope, 2 * ink / outline, right, below], dim=1)


def correlations(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Correlate the value of each dimension with each property of the reconstruction, over digits and a sweep.

    A dimension that changes a property by less than digits differ in it has a small correlation, even if the change is
    steady.

    Args:
        model: routes a grid of primary capsules and has a decoder.
        images: (N, C, H, W) in [0, 1].
        labels: (N,) class ids.

    Returns:
        (J, D, 6).
    """
    capsnet = require_decoder(model, "meanings")
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
    """Name a dimension if one property is well correlated with it, and clearly more so than any other."""
    strongest = correlations_P.abs().argsort(descending=True).tolist()
    rounded = [round(value, 3) for value in correlations_P.tolist()]
    first, second = (abs(rounded[index]) for index in strongest[:2])
    clear = first >= MIN_CORRELATION and first - second >= MIN_LEAD
    return {
        "name": PROPERTIES[strongest[0]] if clear else None,
        "correlation": rounded[strongest[0]],
        "others": {PROPERTIES[index]: rounded[index] for index in strongest[1:]},
    }


def write_meanings(name: str) -> Path:
    """Measure a saved model on a sample of its training digits, and write meanings.json beside its weights."""
    model = load(name)
    weights = file_beside(name, "model.safetensors")
    source = model.trained_by.get("data")
    if source is None or weights is None:
        raise UserError(f"meanings: {name} does not record what it was trained on")
    train = load_data(**source).train
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(train), generator=generator)
    if train.targets.ndim != 1:
        raise UserError(
            f"meanings: images of {source['source']} have several labels; only images of one digit can be measured"
        )
    labels = train.targets[order]
    chosen = torch.cat([order[labels == label][:DIGITS] for label in range(model.num_classes)])
    moved = augment(model.prepare(train.images[chosen]), generator, shift=SHIFT)
    found = correlations(model, moved, train.targets[chosen])
    content = {
        "made_by": f"python tools/dimension_meanings.py {name}",
        "data": f"{source['source']}, training images moved by up to {SHIFT} pixels",
        "n": train.targets[chosen].bincount().tolist(),
        "least": MIN_CORRELATION,
        "ahead": MIN_LEAD,
        "meanings": [[meaning(dimension) for dimension in capsule] for capsule in found],
    }
    path = weights.with_name("meanings.json")
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    written = write_meanings(sys.argv[1])
    named = [each["name"] for row in json.loads(written.read_text())["meanings"] for each in row]
    print(f"{written}: {len(named) - named.count(None)} of {len(named)} dimensions have a name")
