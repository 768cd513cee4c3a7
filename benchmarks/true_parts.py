#!/usr/bin/env python3
"""Parse crowded scenes from their true parts, disturbed: how much routing gains over the plain vote.

python benchmarks/true_parts.py [--out benchmarks/results/true_parts.csv]

Each row is one disturbance: normal errors of position, angle and log scale of each part, in the image; parts left out
at random; and further rectangles and triangles that belong to no whole. A whole counts as found if class, place (1.5
pixels) and angle (5 degrees) are right. Tolerances are twice the errors, and at least 0.5 pixels, 3 degrees and 0.05.
f1_3 is F1 in percent after three iterations; one is the plain vote. In float64 on a CPU, with one seed.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.data import Objects, draw_shapes, frozen_set
from torchcaps.data.datasets.shapes.known import known_wholes
from torchcaps.data.datasets.shapes.sets import FROZEN_SETS
from torchcaps.ops import Wholes
from torchcaps.similarity import Similarity

# Pixels, degrees, log scale, share of parts left out, further parts.
DISTURBANCES = [(0, 0, 0, 0, 0), (0, 0, 0, 0, 12), (0.3, 2, 0.03, 0, 0), (0.3, 2, 0.03, 0, 12)]
DISTURBANCES += [(0.5, 3, 0.05, 0, 0), (0.5, 3, 0.05, 0, 12), (0.5, 3, 0.05, 0.1, 0), (1, 6, 0.1, 0, 0)]
ITERATIONS = (1, 2, 3, 5)
FURTHER = {"distractor_parts": ("rectangle", "triangle")}


def disturbed(parts: Objects, pixels: float, degrees: float, log_scale: float, left_out: float) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    x, y, turn, size = torch.randn(4, *parts.label.shape, generator=g, dtype=torch.float64)
    presence = parts.present & (torch.rand(parts.label.shape, generator=g) >= left_out)
    pose = Similarity.of(
        x=parts.x.double() + pixels * x,
        y=parts.y + pixels * y,
        angle=parts.angle + degrees * turn,
        scale=parts.scale * (log_scale * size).exp(),
    )
    return [pose.numbers, presence.double(), functional.one_hot(parts.label, len(parts.names)).double()]


def right(found: Wholes, truth: Objects, pixels: float = 1.5, degrees: float = 5.0) -> int:
    """How many true wholes are found; each one once."""
    pose = Similarity(found.pose)[:, :, None]
    far = torch.hypot(pose.x - truth.x[:, None], pose.y - truth.y[:, None])
    turned = ((pose.angle - truth.angle[:, None] + 180) % 360 - 180).abs()
    same = (found.label[:, :, None] == truth.label[:, None]) & truth.present[:, None]
    matches = same & (far <= pixels) & (turned <= degrees) & (found.presence > 0.5)[..., None]
    count = 0
    for image in matches.tolist():
        taken: set[int] = set()
        for row in image:
            taken |= set([n for n, match in enumerate(row) if match and n not in taken][:1])
        count += len(taken)
    return count


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path)
    out = options.parse_args().out
    known = FROZEN_SETS["crowded"]
    rows = []
    for pixels, degrees, log_scale, left_out, further in DISTURBANCES:
        scenes = frozen_set("crowded")
        if further:  # the same wholes, with other parts behind them
            more = {**known.parameters, **FURTHER, "distractors": (further, further)}
            scenes = draw_shapes(known.images, known.seed, dtype=torch.float64, **more)
        tolerance = (max(0.5, 2 * pixels), max(3.0, 2 * degrees), max(0.05, 2 * log_scale))
        layer = known_wholes(scenes.wholes.names, tolerance)
        parts = disturbed(scenes.parts, pixels, degrees, log_scale, left_out)
        row = {"pixels": pixels, "degrees": degrees, "log_scale": log_scale, "left_out": left_out, "further": further}
        for iterations in ITERATIONS:
            with torch.no_grad():
                found = layer(*parts, iterations=iterations)
            total = int((found.presence > 0.5).sum() + scenes.wholes.present.sum())
            row[f"f1_{iterations}"] = round(200 * right(found, scenes.wholes) / total, 2)
        rows.append(row)
        print(row, flush=True)
    with open(out, "w", newline="", encoding="utf-8") if out else sys.stdout as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
