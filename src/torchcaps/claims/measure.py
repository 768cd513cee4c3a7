"""What a trained network does on test digits: one figure for each claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.capsules import length
from torchcaps.data import load_data
from torchcaps.data.datasets.affnist import FRAME, affnist_like, expand, place
from torchcaps.data.datasets.affnist import PLACE_SEED as PLACES
from torchcaps.explain.familiarity import KEPT, scores, separation
from torchcaps.losses import reconstruction_loss
from torchcaps.metrics.measure import BATCH, accuracy, ask, linearity, tidy
from torchcaps.models import ImageModel, PoseCaps
from torchcaps.models.evaluating import evaluating
from torchcaps.robustness import attack, perturb
from torchcaps.robustness.suites import crowding, unfamiliar

SOME = 1000  # test digits for what takes long: attacks, unfamiliar images, poses
EPS, PGD_STEPS = 0.1, 20
COVERED = 10  # pixels: the side of the square that covers a part of a digit
TURNS = (-40, -30, -20, -10, 10, 20, 30, 40)  # degrees that the angle has to follow
SHIFTS = ((3.5, 0.0), (0.0, -2.25), (-4.0, 3.0), (1.0, 1.0))  # pixels right and down
FACTORS = (0.8, 0.9, 1.1, 1.25)


class Digits(NamedTuple):
    """MNIST's test digits in [0, 1].

    Attributes:
        small: (N, 1, 28, 28) as they are.
        centred: (N, 1, 40, 40) in the middle of a frame.
        placed: (N, 1, 40, 40) anywhere in it, as in training.
        targets: (N,) their classes.
        affine: (4N, 1, 40, 40) the frozen affNIST-like set.
        affine_targets: (4N,) their classes.
    """

    small: Tensor
    centred: Tensor
    placed: Tensor
    targets: Tensor
    affine: Tensor
    affine_targets: Tensor


def read_digits() -> Digits:
    """Read MNIST's test digits and make of them what the claims are measured on."""
    test = load_data(source="mnist", validation=0).test
    assert test is not None
    transformed = affnist_like(test)
    sets = (test, expand(test), place(test, PLACES), transformed)
    small, centred, placed, affine = (each.images.float() / 255 for each in sets)
    return Digits(small, centred, placed, test.targets, affine, transformed.targets)


def measure(model: ImageModel, digits: Digits, *, some: int = SOME, seed: int = 0) -> dict[str, float]:
    """Measure one network on everything that the table of claims has.

    Accuracies and shares are in percent. Scores that tell the unfamiliar apart are named "WHAT by SCORE".

    Args:
        model: for digits in frames of 40×40.
        digits: what it is measured on.
        some: how many digits are used for what takes long.
        seed: of noise, covered places, pairs and attacks.
    """
    found = accuracies(model, digits, seed)
    chosen = torch.randperm(len(digits.targets), generator=torch.Generator().manual_seed(seed))[:some]
    some_small, some_centred, targets = digits.small[chosen], digits.centred[chosen], digits.targets[chosen]
    found |= shuffled(model, some_small, some_centred, seed)
    found |= two_digits(model, some_centred, targets, seed)
    found |= attacked(model, some_centred, targets, seed)
    found |= unfamiliar_images(model, some_centred, targets, seed)
    if isinstance(model, PoseCaps):
        found |= follow(model, some_centred, targets)
        found |= equivariance_error(model, some_centred, targets)
    else:
        found |= pose_follows_turns(model, some_centred, targets)
    return {name: tidy(value) for name, value in found.items()}


def accuracies(model: ImageModel, digits: Digits, seed: int = 0) -> dict[str, float]:
    """Percent of all test digits that are found, changed in every way that the claims name."""

    def turned(degrees: float) -> list[Tensor]:
        return [perturb.rotate(digits.centred, sign * degrees) for sign in (1, -1)]

    chance = torch.Generator().manual_seed(seed)
    changed: dict[str, Callable[[], list[Tensor]]] = {
        "as in training": lambda: [digits.placed],
        "turned 30": lambda: turned(30),
        "turned 45": lambda: turned(45),
        "scaled": lambda: [perturb.scale(digits.centred, factor) for factor in (0.7, 1.3)],
        "noise": lambda: [perturb.noise(digits.centred, 0.2, chance)],
        "blur": lambda: [perturb.blur(digits.centred, 1.0)],
        "covered": lambda: [in_frame(perturb.occlude(digits.small, COVERED, chance))],
    }
    found = {}
    for name, make in changed.items():
        parts = [right(model, images, digits.targets) for images in make()]
        found[name] = sum(parts) / len(parts)
    return {"affine": right(model, digits.affine, digits.affine_targets), **found}


def right(model: ImageModel, images: Tensor, targets: Tensor) -> float:
    """Percent of the images (N, 1, H, W) whose class is found."""
    return 100 * accuracy(ask({"": model}, images)[""].lengths, targets)


def shuffled(model: ImageModel, small: Tensor, centred: Tensor, seed: int = 0) -> dict[str, float]:
    """Percent of digits with their quarters in another order that are rejected when 95 % of the digits are kept."""
    parts = perturb.scramble(small, torch.Generator().manual_seed(seed))
    known, other = score(model, centred), score(model, in_frame(parts))
    return {
        f"shuffled rejected by {name}": 100 * (1 - separation(known[name], other[name])["kept95"]) for name in known
    }


def two_digits(model: ImageModel, centred: Tensor, targets: Tensor, seed: int = 0) -> dict[str, float]:
    """Percent of overlaid pairs of two classes whose classes are the two most present ones."""
    result = crowding({"": model}, centred, targets, seed=seed)
    curve = next(each for each in result["curves"] if each["measure"] == "shown classes are in the longest two")
    return {"two digits": 100 * curve["values"][""][curve["strengths"].index("two classes")]}


def attacked(model: ImageModel, images: Tensor, targets: Tensor, seed: int = 0) -> dict[str, float]:
    """Accuracy under PGD on the model's own loss and on cross-entropy, and how well scores tell the worse apart."""
    known, found = score(model, images), dict[str, float]()
    worst: Tensor | None = None
    for name, decisive in (("PGD", False), ("PGD on cross-entropy", True)):
        generator = torch.Generator().manual_seed(seed)
        parts = []
        for batch, classes in zip(images.split(BATCH), targets.split(BATCH)):
            loss = attack.loss_of(model, classes, decisive=decisive)
            parts.append(attack.pgd(loss, batch.to(model.device), EPS, steps=PGD_STEPS, generator=generator).cpu())
        harmed = torch.cat(parts)
        found[name] = right(model, harmed, targets)
        if worst is None or found[name] < found["PGD"]:
            worst = harmed
    assert worst is not None
    other = score(model, worst)
    return found | {f"attacks told by {name}": separation(known[name], other[name])["auroc"] for name in known}


def unfamiliar_images(model: ImageModel, images: Tensor, targets: Tensor, seed: int = 0) -> dict[str, float]:
    """AUROC of every score for every kind of image that is no digit; for constant images percent rejected."""
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
    """How well placements follow turns, shifts and scales, each less what is read of the digit untouched."""
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
    asked = torch.cat([torch.full_like(plain["angle"], degrees) for degrees in TURNS])
    seen = torch.cat([read(perturb.rotate(images, degrees))["angle"] - plain["angle"] for degrees in TURNS])
    seen = (seen + 180) % 360 - 180
    places = []
    for across, down in SHIFTS:
        moved = read(perturb.translate(images, across, down))
        places.append(torch.hypot(moved["x"] - plain["x"] - across, moved["y"] - plain["y"] - down))
    scales = [read(perturb.scale(images, factor))["scale"] / plain["scale"] / factor - 1 for factor in FACTORS]
    return {
        "angle slope": float((asked * seen).sum() / asked.square().sum()),
        "angle error": float((asked - seen).abs().median()),
        "place error": float(torch.cat(places).median()),
        "scale error": 100 * float(torch.cat(scales).abs().median()),
    }


def equivariance_error(model: PoseCaps, images: Tensor, targets: Tensor) -> dict[str, float]:
    """How much the lengths on the lattice of a turned digit differ from those of the digit untouched, one step further.

    The digit is turned by one step of the lattice's angles. Without interpolation the difference would be 0; on a
    lattice of quarter turns it is. The mean absolute difference of the true class's lengths.
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
    """R² of a straight line through a capsule's pose while its digit is turned; nothing of a model without poses."""
    steps = []
    for degrees in (-30, -15, 0, 15, 30):
        poses = ask({"": model}, perturb.rotate(images, degrees))[""].poses
        if poses is None:
            return {}
        steps.append(poses[torch.arange(len(targets)), targets].flatten(1))
    straight = linearity(torch.stack(steps), [-30, -15, 0, 15, 30])
    return {} if straight is None else {"pose R²": straight}


def score(model: ImageModel, images: Tensor) -> dict[str, Tensor]:
    """Every score of images (N, C, H, W) that larger means more familiar, (N,); of a decoder also its error."""
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
    """Put (N, 1, 28, 28) into the middle of a frame."""
    edge = (FRAME - small.shape[-1]) // 2
    return torch.nn.functional.pad(small, (edge,) * 4)
