#!/usr/bin/env python3
"""Judge whether an image has one digit or two, by the shipped network for pairs: the rule of the explorer's Overlap.

python benchmarks/second_digit.py [--data FOLDER] [--out benchmarks/results/second_digit.csv]

--data is the folder of the MNIST files, if that is not the data folder. Single digits are centred in 36×36 pixels;
pairs are two digits of different classes, each moved by up to four pixels. Each row is a threshold: the share of the
ink, in squared values, that the second reconstruction must explain beyond the first. `length` is the rule that it
replaces: the second capsule is at least 0.2 long. The threshold, 0.06, was chosen on training digits (--split train).
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data import load_data
from torchcaps.models import CapsuleModel, load

ABSENT = 0.2  # length of a capsule that is surely absent
THRESHOLDS = (0.04, 0.06, 0.08, 0.1)
MARGIN, MOVE = 4, 4  # pixels around a digit, and by which digits of a pair are moved


def padded(digit: Tensor, down: int, right: int) -> Tensor:
    """(H, W) → (H + 8, W + 8), moved."""
    side = digit.shape[-1] + 2 * MARGIN
    out = torch.zeros(side, side)
    out[MARGIN + down :, MARGIN + right :][: digit.shape[0], : digit.shape[1]] = digit
    return out


def images_of(digits: Tensor, labels: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """(n, 1, 36, 36) single digits, and pairs of which each has a digit of them and another class."""
    random = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(digits), generator=random)[: 2 * n]
    digits, labels = digits[chosen, 0].float() / 255, labels[chosen]
    moves = torch.randint(-MOVE, MOVE + 1, (n, 4), generator=random).tolist()
    singles = torch.stack([padded(digit, 0, 0) for digit in digits[:n]])
    pairs = [
        torch.maximum(padded(digits[i], *moves[i][:2]), padded(digits[n + i], *moves[i][2:]))
        for i in range(n)
        if labels[i] != labels[n + i]
    ]
    return singles[:, None], torch.stack(pairs)[:, None]


@torch.inference_mode()
def measure(model: CapsuleModel, images: Tensor) -> tuple[Tensor, Tensor]:
    """The length of the second capsule, and what its reconstruction adds to the better of the two."""
    lengths, added = [], []
    for batch in images.split(100):
        parents = model.classes(model.children_of(batch))
        longest = parents.activation.topk(2, dim=1)
        drawn = model.reconstruct_each(parents, longest.indices)
        ink = batch.square().sum((1, 2, 3))
        alone = (batch[:, None] - drawn).square().sum((2, 3, 4)).amin(1)
        both = (batch - drawn.sum(1).clamp(max=1)).square().sum((1, 2, 3))
        lengths.append(longest.values[:, 1])
        added.append((alone - both) / ink)
    return torch.cat(lengths), torch.cat(added)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", help="folder of the MNIST files")
    options.add_argument("--split", default="test", choices=("train", "test"))
    options.add_argument("--n", type=int, default=1000)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "second_digit.csv")
    given = options.parse_args()
    part = getattr(load_data("mnist", path=given.data), given.split)
    model = load("capsnet-multimnist")
    singles, pairs = images_of(part.images, part.targets, given.n)
    (length_1, added_1), (length_2, added_2) = measure(model, singles), measure(model, pairs)
    rows = [("length", length_1 >= ABSENT, length_2 >= ABSENT)]
    for threshold in THRESHOLDS:
        rules = [
            (length >= ABSENT) & (added >= threshold) for length, added in ((length_1, added_1), (length_2, added_2))
        ]
        rows.append((str(threshold), *rules))
    table = [
        (name, f"{100 * (1 - one.float().mean()):.1f}", f"{100 * two.float().mean():.1f}") for name, one, two in rows
    ]
    with given.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        head = (f"of {len(singles)} digits, % one", f"of {len(pairs)} pairs, % two")
        writer.writerows([("second digit if it adds", *head), *table])
    print(given.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
