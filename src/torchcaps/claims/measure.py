"""Measure a trained network on test digits, with one number for each claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.capsules import length
from torchcaps.data import load_data
from torchcaps.data.datasets.affnist import FRAME, affnist_like, expand, place
from torchcaps.data.datasets.affnist import PLACE_SEED as PLACES
from torchcaps.explain.familiarity import scores
from torchcaps.losses import reconstruction_loss
from torchcaps.metrics import rounded
from torchcaps.metrics.classification import accuracy
from torchcaps.metrics.detection import KEPT, auroc_and_fpr95
from torchcaps.metrics.equivariance import linearity
from torchcaps.metrics.predictions import BATCH, predict_batches
from torchcaps.models import ImageModel, PoseCaps
from torchcaps.models.evaluating import evaluating
from torchcaps.robustness import attack, perturb
from torchcaps.robustness.suites import crowding, unfamiliar

NUM_SLOW = 1000  # test digits for the slow measurements: attacks, unfamiliar images, poses
EPS, PGD_STEPS = 0.1, 20
COVERED_PIXELS = 10  # side of the square that covers a part of a digit
ROTATIONS = (-40, -30, -20, -10, 10, 20, 30, 40)  # degrees
SHIFTS = ((3.5, 0.0), (0.0, -2.25), (-4.0, 3.0), (1.0, 1.0))  # pixels right and down
SCALES = (0.8, 0.9, 1.1, 1.25)


class Digits(NamedTuple):
    """MNIST's test digits in [0, 1].

    Attributes:
        small: (N, 1, 28, 28) unchanged.
        centred: (N, 1, 40, 40) in the centre of a larger image.
        placed: (N, 1, 40, 40) at random positions in it, as in training.
        targets: (N,) classes.
        affine: (4N, 1, 40, 40) the fixed affNIST-like test set.
        affine_targets: (4N,) its classes.
    """

    small: Tensor
    centred: Tensor
    placed: Tensor
    targets: Tensor
    affine: Tensor
    affine_targets: Tensor


def read_digits() -> Digits:
    """Read MNIST's test digits and derive the test sets of the claims from them."""
    test = load_data(source="mnist", validation=0).test
    assert test is not None
    transformed = affnist_like(test)
    sets = (test, expand(test), place(test, PLACES), transformed)
    small, centred, placed, affine = (each.images.float() / 255 for each in sets)
    return Digits(small, centred, placed, test.targets, affine, transformed.targets)


def measure(model: ImageModel, digits: Digits, *, slow: int = NUM_SLOW, seed: int = 0) -> dict[str, float]:
    """Measure one network for every row in the table of claims.

    Accuracies and shares are in percent. Results for detecting unfamiliar images are named "WHAT by SCORE".

    Args:
        model: A network for images of 40×40.
        digits: The test digits.
        slow: Number of digits for the slow measurements.
        seed: Seed for noise, occlusion, pairs and attacks.

    Returns:
        Each result by its name.
    """
    found = accuracies(model, digits, seed)
    chosen = torch.randperm(len(digits.targets), generator=torch.Generator().manual_seed(seed))[:slow]
    small, centred, targets = digits.small[chosen], digits.centred[chosen], digits.targets[chosen]
    found |= shuffled(model, small, centred, seed)
    found |= two_digits(model, centred, targets, seed)
    found |= attacked(model, centred, targets, seed)
    found |= unfamiliar_images(model, centred, targets, seed)
    if isinstance(model, PoseCaps):
        found |= follow(model, centred, targets)
        found |= equivariance_error(model, centred, targets)
    else:
        found |= pose_follows_turns(model, centred, targets)
    return {name: rounded(value) for name, value in found.items()}


def accuracies(model: ImageModel, digits: Digits, seed: int = 0) -> dict[str, float]:
    """Accuracy in percent on all test digits, for each change in the table of claims."""

    def rotated(degrees: float) -> list[Tensor]:
        return [perturb.rotate(digits.centred, sign * degrees) for sign in (1, -1)]

    generator = torch.Generator().manual_seed(seed)
    changed: dict[str, Callable[[], list[Tensor]]] = {
        "as in training": lambda: [digits.placed],
        "turned 30": lambda: rotated(30),
        "turned 45": lambda: rotated(45),
        "scaled": lambda: [perturb.scale(digits.centred, factor) for factor in (0.7, 1.3)],
        "noise": lambda: [perturb.noise(digits.centred, 0.2, generator)],
        "blur": lambda: [perturb.blur(digits.centred, 1.0)],
        "covered": lambda: [in_frame(perturb.occlude(digits.small, COVERED_PIXELS, generator))],
    }
    found = {}
    for name, make in changed.items():
        parts = [accuracy_percent(model, images, digits.targets) for images in make()]
        found[name] = sum(parts) / len(parts)
    return {"affine": accuracy_percent(model, digits.affine, digits.affine_targets), **found}


def accuracy_percent(model: ImageModel, images: Tensor, targets: Tensor) -> float:
    """Accuracy in percent on images (N, 1, H, W)."""
    return 100 * accuracy(predict_batches({"": model}, images)[""].lengths, targets)


def shuffled(model: ImageModel, small: Tensor, centred: Tensor, seed: int = 0) -> dict[str, float]:
    """Percent of digits with shuffled quadrants that are rejected when 95 % of the intact digits are accepted."""
    parts = perturb.scramble(small, torch.Generator().manual_seed(seed))
    known, other = score(model, centred), score(model, in_frame(parts))
    return {
        f"shuffled rejected by {name}": 100 * (1 - auroc_and_fpr95(known[name], other[name])["fpr95"]) for name in known
    }


def two_digits(model: ImageModel, centred: Tensor, targets: Tensor, seed: int = 0) -> dict[str, float]:
    """Percent of overlaid pairs of two classes for which the two longest capsules are correct."""
    result = crowding({"": model}, centred, targets, seed=seed)
    curve = next(each for each in result["curves"] if each["measure"] == "shown classes are in the longest two")
    return {"two digits": 100 * curve["values"][""][curve["strengths"].index("two classes")]}


def attacked(model: ImageModel, images: Tensor, targets: Tensor, seed: int = 0) -> dict[str, float]:
    """Accuracy under PGD on the model's own loss and on cross-entropy, and AUROC for detecting the stronger one."""
    known, found = score(model, images), dict[str, float]()
    worst: Tensor | None = None
    for name, lengths_as_logits in (("PGD", False), ("PGD on cross-entropy", True)):
        generator = torch.Generator().manual_seed(seed)
        parts = []
        for batch, classes in zip(images.split(BATCH), targets.split(BATCH)):
            loss = attack.loss_of(model, classes, lengths_as_logits=lengths_as_logits)
            parts.append(attack.pgd(loss, batch.to(model.device), EPS, steps=PGD_STEPS, generator=generator).cpu())
        attacked_images = torch.cat(parts)
        found[name] = accuracy_percent(model, attacked_images, targets)
        if worst is None or found[name] < found["PGD"]:
            worst = attacked_images
    assert worst is not None
    other = score(model, worst)
    return found | {f"attacks told by {name}": auroc_and_fpr95(known[name], other[name])["auroc"] for name in known}


def unfamiliar_images(model: ImageModel, images: Tensor, targets: Tensor, seed: int = 0) -> dict[str, float]:
    """AUROC and rejection rate of every score for every kind of image that is not a digit."""
    result = unfamiliar({"": model}, images, targets, seed=seed)
    found = {}
    for curve in result["curves"]:
        measured, _, score_name = curve["measure"].partition(" by ")
        for kind, value in zip(curve["strengths"], curve["values"][""]):
            if measured == "AUROC":
                found[f"{kind} told by {score_name}"] = value
            elif measured == "FPR95":
                found[f"{kind} rejected by {score_name}"] = 100 * (1 - value)
            elif measured == "accuracy" and kind == KEPT:
                found[f"accuracy at 95 % kept by {score_name}"] = 100 * value
    return found


def follow(model: PoseCaps, images: Tensor, targets: Tensor) -> dict[str, float]:
    """How well placements follow rotations, shifts and scales, relative to the unchanged digit."""
    rows = torch.arange(len(targets))

    def read(changed: Tensor) -> dict[str, Tensor]:
        parts = []
        for batch in changed.split(BATCH):
            with evaluating(model):
                placement = model(batch.to(model.device)).placement
            assert placement is not None
            parts.append([getattr(placement, name).double().cpu() for name in ("x", "y", "angle", "scale")])
        x, y, angle, scale = (torch.cat(part)[rows, targets] for part in zip(*parts))
        return {"x": x, "y": y, "angle": angle, "scale": scale}

    plain = read(images)
    applied = torch.cat([torch.full_like(plain["angle"], degrees) for degrees in ROTATIONS])
    seen = torch.cat([read(perturb.rotate(images, degrees))["angle"] - plain["angle"] for degrees in ROTATIONS])
    seen = (seen + 180) % 360 - 180
    distances = []
    for across, down in SHIFTS:
        moved = read(perturb.translate(images, across, down))
        distances.append(torch.hypot(moved["x"] - plain["x"] - across, moved["y"] - plain["y"] - down))
    scales = [read(perturb.scale(images, factor))["scale"] / plain["scale"] / factor - 1 for factor in SCALES]
    return {
        "angle slope": float((applied * seen).sum() / applied.square().sum()),
        "angle error": float((applied - seen).abs().median()),
        "place error": float(torch.cat(distances).median()),
        "scale error": 100 * float(torch.cat(scales).abs().median()),
    }


def equivariance_error(model: PoseCaps, images: Tensor, targets: Tensor) -> dict[str, float]:
    """Mean absolute difference between a rotated digit's lengths on the lattice and the shifted original's.

    The digit is rotated, and the original's lengths are shifted, by one step of the lattice's angles; the lengths are
    those of the true class. Only interpolation makes a difference: on a lattice of quarter turns it is 0.
    """
    angles = model.lattice.angles
    found = []
    for images_B, targets_B in zip(images.split(BATCH), targets.split(BATCH)):
        lengths = []
        for changed in (images_B, perturb.rotate(images_B, angles[1] - angles[0])):
            with evaluating(model):
                poses = model.lattice.poses().to(model.weight)
                seen = length(model.encode_views(changed.to(model.device), poses).capsules).double().cpu()
            true_BG = seen[torch.arange(len(targets_B)), :, targets_B]
            lengths.append(true_BG.unflatten(1, (len(angles), -1)))
        before, after = lengths
        found.append((after[:, 1:] - before[:, :-1]).abs().mean((1, 2)))
    return {"equivariance error": float(torch.cat(found).mean())}


def pose_follows_turns(model: ImageModel, images: Tensor, targets: Tensor) -> dict[str, float]:
    """R² of a line fitted to a capsule's pose while its digit is rotated; empty for a model without poses."""
    steps = []
    for degrees in (-30, -15, 0, 15, 30):
        poses = predict_batches({"": model}, perturb.rotate(images, degrees))[""].poses
        if poses is None:
            return {}
        steps.append(poses[torch.arange(len(targets)), targets].flatten(1))
    straight = linearity(torch.stack(steps), [-30, -15, 0, 15, 30])
    return {} if straight is None else {"pose R²": straight}


def score(model: ImageModel, images: Tensor) -> dict[str, Tensor]:
    """Every familiarity score (N,) of images (N, C, H, W); larger is more familiar. With a decoder also its error."""
    parts: dict[str, list[Tensor]] = {}
    for batch in images.split(BATCH):
        batch = batch.to(model.device)
        with evaluating(model):
            output = model(batch)
            found = scores(model, batch, output)
            if output.reconstruction is not None:
                found["reconstruction"] = -reconstruction_loss(output.reconstruction, batch)
        for name, each in found.items():
            parts.setdefault(name, []).append(each.double().cpu())
    return {name: torch.cat(each) for name, each in parts.items()}


def in_frame(small: Tensor) -> Tensor:
    """Pad images (N, 1, 28, 28) to the size of the frame."""
    edge = (FRAME - small.shape[-1]) // 2
    return torch.nn.functional.pad(small, (edge,) * 4)
