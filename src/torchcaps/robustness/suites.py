"""Seven robustness suites; each returns a plain dict that can be written as JSON.

Every suite takes models by name, images (N, C, H, W) in [0, 1] and targets (N,), and returns

    suite, n, seed, models  what was measured
    curves                  a list of {change, unit, measure, strengths, values}: values[name] has one value for each
                            strength; a strength is a number, or a word if there is no scale (unit "")

and more fields, listed with each suite. All models see the same changed images; only attacks are made for each model.
With the same seed the same noise, squares and orders are drawn at every strength, so that curves are smooth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.data.datasets.unfamiliar import LETTERS, LOOK_ALIKES, SIZED, UNFAMILIAR, fashion_mnist, ink_height
from torchcaps.data.sources import FASHION_NAMES
from torchcaps.errors import UserError
from torchcaps.explain.familiarity import score_images
from torchcaps.metrics import rounded
from torchcaps.metrics.classification import accuracy, mean_true_length
from torchcaps.metrics.detection import KEPT, accuracy_at_kept, auroc_and_fpr95, roc_points
from torchcaps.metrics.equivariance import angles, linearity
from torchcaps.metrics.predictions import BATCH, Models, Transform, predict_batches
from torchcaps.models import ImageModel
from torchcaps.robustness import attack, perturb

EPS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
PGD_STEPS = 20
ATTACKS = ("random signs", "FGSM", "PGD", "PGD on cross-entropy")
APART = 4.0  # pixels between the centres of two overlaid images

Result = dict[str, Any]


class Change(NamedTuple):
    """A perturbation and the strengths to measure.

    Attributes:
        name, unit: for figures.
        strengths: to measure.
        apply: (images, strength, generator) → images.
    """

    name: str
    unit: str
    strengths: Sequence[float]
    apply: Callable[[Tensor, float, torch.Generator], Tensor]

    def with_strength(self, strength: float) -> Transform:
        return lambda images, generator: self.apply(images, strength, generator)


def affine(models: Models, images: Tensor, targets: Tensor, *, seed: int = 0) -> Result:
    """Measure accuracy on images that are rotated, sheared, scaled and translated (a quarter of them to each side)."""
    return _accuracies("affine", AFFINE, models, images, targets, seed)


def corruption(models: Models, images: Tensor, targets: Tensor, *, seed: int = 0) -> Result:
    """Measure accuracy on images with noise, blur and occlusion by a black square."""
    return _accuracies("corruption", CORRUPTION, models, images, targets, seed)


def adversarial(models: Models, images: Tensor, targets: Tensor, *, seed: int = 0) -> Result:
    """Measure accuracy under attack, and detection of attacks by the reconstruction error.

    FGSM and PGD raise the model's own loss. PGD on cross-entropy is the same for a model with logits, and the attack by
    which to judge capsules (see `attack.loss_of`). Random signs are no attack, but show the effect of any noise of that
    size.

    Detection compares the reconstruction errors of all attacked images, reconstructed from the longest capsule, with
    those of the clean images: the area under the ROC curve is 0.5 if they cannot be distinguished, 1 if a threshold
    separates them. The attack knows the model but does not try to fool the detector.

    Returns:
        Also pgd_steps, and detection: a list of {model, attack, eps, auc, false_alarms, caught}; the last two are the
        points of the ROC curve.
    """
    curves, detections = [], []
    for method in ATTACKS:
        right, areas = {}, {}
        for name, model in models.items():
            clean, *attacked = (
                predict_batches({name: model}, _attacked(method, model, images, targets, eps, seed))[name]
                for eps in EPS
            )
            right[name] = [accuracy(answers.lengths, targets) for answers in (clean, *attacked)]
            if clean.errors is not None:
                found = [roc_points(clean.errors, answers.errors) for answers in attacked if answers.errors is not None]
                areas[name] = [each["auc"] for each in found]
                where = [{"model": name, "attack": method, "eps": eps} for eps in EPS[1:]]
                detections += [{**place, **each} for place, each in zip(where, found)]
        curves.append(_curve(method, "eps", "accuracy", EPS, right))
        if areas:
            curves.append(_curve(method, "eps", "detection AUC", EPS[1:], areas))
    return _result("adversarial", models, targets, seed, curves, pgd_steps=PGD_STEPS, detection=detections)


def equivariance(models: Models, images: Tensor, targets: Tensor, *, seed: int = 0) -> Result:
    """Measure whether the true class's capsule stays long while its pose follows the change.

    For each change: the mean length of the true class's capsule (for a model without capsules, its probability), the
    mean angle in degrees between its pose and that in the unchanged image, and how linearly the pose moves (R², see
    `metrics.equivariance.linearity`).

    Returns:
        Also linearity: a list of {change, chance, values}; values[name] is the mean R², chance that of random poses.
    """
    curves, linear = [], []
    classes_N = targets.cpu()
    for change in EQUIVARIANCE:
        found = [predict_batches(models, images, change.with_strength(strength), seed) for strength in change.strengths]
        lengths = {name: [mean_true_length(answers[name].lengths, targets) for answers in found] for name in models}
        curves.append(_curve(change.name, change.unit, "length of the true class", change.strengths, lengths))
        poses = {}
        for name in models:
            steps = [step for step in (answers[name].poses for answers in found) if step is not None]
            if steps:
                poses[name] = torch.stack([step[torch.arange(len(step)), classes_N].flatten(1) for step in steps])
        if poses:
            origin = list(change.strengths).index(0)
            turned = {name: angles(poses_SND.double(), origin) for name, poses_SND in poses.items()}
            curves.append(_curve(change.name, change.unit, "angle of the pose", change.strengths, turned))
            values = {name: linearity(poses_SND, change.strengths) for name, poses_SND in poses.items()}
            linear.append({"change": change.name, "chance": rounded(1 / (len(found) - 1)), "values": values})
    return _result("equivariance", models, targets, seed, curves, linearity=linear)


def scrambled(models: Models, images: Tensor, targets: Tensor, *, seed: int = 0) -> Result:
    """Measure whether the arrangement of parts matters: is a face with its parts in the wrong places still a face?

    Accuracy, and the mean length (or probability) of the true class, on intact images, with shuffled quadrants, and
    with each quadrant mirrored in its place. A model that sees how parts are arranged should lose confidence; one that
    only counts parts should not.
    """
    kinds: dict[str, Transform] = {
        "intact": lambda images, _: images,
        "shuffled": perturb.scramble,
        "mirrored": lambda images, _: perturb.mirror_quadrants(images),
    }
    found = [predict_batches(models, images, alter, seed) for alter in kinds.values()]
    curves = []
    for measure, of in (("accuracy", accuracy), ("length of the true class", mean_true_length)):
        values = {name: [of(answers[name].lengths, targets) for answers in found] for name in models}
        curves.append(_curve("quadrants", "", measure, list(kinds), values))
    return _result("scrambled", models, targets, seed, curves)


def crowding(models: Models, images: Tensor, targets: Tensor, *, seed: int = 0) -> Result:
    """Measure predictions for two overlaid images, of one class or of two; each class has only one capsule.

    One image moves to the left and the other to the right, `APART` pixels in all. Measured, also for the first image
    alone: the mean length of the longest and of the second longest capsule; how often the longest is of a class that is
    shown; how often the classes shown are all among the two longest.

    Returns:
        Also pairs, the number of images of each kind, and apart, in pixels.
    """
    classes_N = targets.cpu()
    kinds = _pairs(classes_N, torch.Generator().manual_seed(seed))
    measures = (
        "longest capsule",
        "second longest capsule",
        "longest is of a shown class",
        "shown classes are in the longest two",
    )
    values: dict[str, dict[str, list[float]]] = {measure: {name: [] for name in models} for measure in measures}
    for kind, pairs_2M in kinds.items():
        first, second = images[pairs_2M.to(images.device)]
        apart = perturb.overlay(perturb.translate(first, -APART / 2), perturb.translate(second, APART / 2))
        shown_2M = classes_N[pairs_2M]
        for name, answers in predict_batches(models, first if kind == "alone" else apart).items():
            top = answers.lengths.topk(2)
            among_22M = shown_2M[:, None] == top.indices.T  # shown class × longest or second × image
            shares = (among_22M[:, 0].any(0), among_22M.any(1).all(0))
            for measure, figures_M in zip(measures, (*top.values.T, *shares)):
                values[measure][name].append(float(figures_M.float().mean()))
    curves = [_curve("images", "", measure, list(kinds), values[measure]) for measure in measures]
    counts = {kind: pairs_2M.shape[1] for kind, pairs_2M in kinds.items()}
    return _result("crowding", models, targets, seed, curves, pairs=counts, apart=APART)


def unfamiliar(models: Models, images: Tensor, targets: Tensor, *, seed: int = 0) -> Result:
    """Measure how well a score tells images of unknown classes from the test images.

    Each kind of unfamiliar image (see `data.datasets.unfamiliar`) is compared with the test images by each score that a
    model has (see `familiarity.scores`): AUROC, and FPR95, the share accepted by a threshold that accepts 95 % of the
    test images. Letters and curves are as large as the objects in the test images. Letters that look like digits are a
    kind of their own. Fashion-MNIST is included if the data folder has it. Kinds that a model was trained on are
    omitted.

    Also measured is the accuracy over all test images, and over the 95 % with the highest scores.

    Returns:
        Also look_alikes, the letters that look like digits, and height, the size of letters and curves in pixels; None
        if the test images are black.
    """
    N, C, H, W = images.shape
    height = min(ink_height(images), H, W) or None  # black images have no height
    known = {name: score_images(model, images) for name, model in models.items()}
    shown = _unfamiliar_images(models, N, (C, H, W), seed, height)
    found = [{name: score_images(model, drawn).scores for name, model in models.items()} for drawn in shown.values()]
    areas, kept = [], []
    for score in dict.fromkeys(score for each in known.values() for score in each.scores):
        own = {name: each.scores[score] for name, each in known.items() if score in each.scores}
        separations = {
            name: [auroc_and_fpr95(own_N, kind[name][score]) for kind in found] for name, own_N in own.items()
        }
        for measure, key in (("AUROC", "auroc"), ("FPR95", "fpr95")):
            values = {name: [each[key] for each in figures] for name, figures in separations.items()}
            areas.append(_curve("images", "", f"{measure} by {score}", list(shown), values))
        right = {
            name: [accuracy_at_kept(own_N, known[name].classes == targets.cpu(), share) for share in (1.0, KEPT)]
            for name, own_N in own.items()
        }
        kept.append(_curve("kept", "of the images", f"accuracy by {score}", (1.0, KEPT), right))
    curves = [*areas, *kept]
    return _result("unfamiliar", models, targets, seed, curves, look_alikes=LOOK_ALIKES, height=height)


SUITES: dict[str, Callable[..., Result]] = {
    "affine": affine,
    "corruption": corruption,
    "adversarial": adversarial,
    "equivariance": equivariance,
    "scrambled": scrambled,
    "crowding": crowding,
    "unfamiliar": unfamiliar,
}


def _shift_quarters(images: Tensor, pixels: float, _: torch.Generator) -> Tensor:
    """Translate a quarter of the images to each side."""
    moved = images.clone()
    for side, (right, down) in enumerate(((1, 0), (0, 1), (-1, 0), (0, -1))):
        moved[side::4] = perturb.translate(images[side::4], pixels * right, pixels * down)
    return moved


def _occlude_share(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    return perturb.occlude(images, round(share * min(images.shape[2:])), generator)


def _deterministic(function: Callable[[Tensor, float], Tensor]) -> Callable[[Tensor, float, torch.Generator], Tensor]:
    """Wrap a perturbation that needs no generator."""
    return lambda images, strength, _: function(images, strength)


AFFINE = (
    Change("rotation", "degrees", range(-90, 91, 15), _deterministic(perturb.rotate)),
    Change("shear", "pixels per row", [fifths / 5 for fifths in range(-4, 5)], _deterministic(perturb.shear)),
    Change("scale", "factor", [tenths / 10 for tenths in range(5, 16)], _deterministic(perturb.scale)),
    Change("translation", "pixels", range(9), _shift_quarters),
)
CORRUPTION = (
    Change("noise", "standard deviation", [tenths / 10 for tenths in range(7)], perturb.noise),
    Change("blur", "pixels", [halves / 2 for halves in range(7)], _deterministic(perturb.blur)),
    Change("occlusion", "share of the side", [eighths / 8 for eighths in range(7)], _occlude_share),
)
EQUIVARIANCE = (
    Change("rotation", "degrees", range(-45, 46, 15), _deterministic(perturb.rotate)),
    Change("thickness", "pixels", [quarters / 4 for quarters in range(-4, 5)], _deterministic(perturb.thicken)),
    Change("shift", "pixels", range(-4, 5), _deterministic(perturb.translate)),
)


def _accuracies(
    suite: str, changes: Sequence[Change], models: Models, images: Tensor, targets: Tensor, seed: int
) -> Result:
    curves = []
    for change in changes:
        found = [predict_batches(models, images, change.with_strength(strength), seed) for strength in change.strengths]
        values = {name: [accuracy(answers[name].lengths, targets) for answers in found] for name in models}
        curves.append(_curve(change.name, change.unit, "accuracy", change.strengths, values))
    return _result(suite, models, targets, seed, curves)


def _attacked(method: str, model: ImageModel, images: Tensor, targets: Tensor, eps: float, seed: int) -> Tensor:
    """Apply one of ATTACKS to images (N, C, H, W)."""
    if not eps:
        return images
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for batch, classes in zip(images.split(BATCH), targets.split(BATCH)):
        batch = batch.to(model.device)
        loss = attack.loss_of(model, classes, lengths_as_logits=method == "PGD on cross-entropy")
        if method == "random signs":
            parts.append(attack.random_signs(batch, eps, generator))
        elif method == "FGSM":
            parts.append(attack.fgsm(loss, batch, eps))
        else:
            parts.append(attack.pgd(loss, batch, eps, steps=PGD_STEPS, generator=generator))
    return torch.cat(parts)


def _pairs(classes_N: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Pair each image with itself, with another of its class, and with one of another class: (2, M) positions each."""
    same, different = [], []
    for label in classes_N.unique():
        members, others = (classes_N == label).nonzero().flatten(), (classes_N != label).nonzero().flatten()
        if not len(others):
            raise UserError(
                "crowding: all these images are of one class; give a test set with two or more classes (--data)"
            )
        shuffled = members[torch.randperm(len(members), generator=generator)]
        if len(members) > 1:
            same.append(torch.stack([shuffled, shuffled.roll(1)]))
        drawn = torch.randint(len(others), (len(members),), generator=generator)
        different.append(torch.stack([members, others[drawn]]))
    if not same:
        raise UserError("crowding: no class has two images here; use more images (--n)")
    everyone = torch.arange(len(classes_N))
    return {
        "alone": torch.stack([everyone, everyone]),
        "same class": torch.cat(same, dim=1),
        "two classes": torch.cat(different, dim=1),
    }


def _unfamiliar_images(
    models: Models, n: int, size: tuple[int, int, int], seed: int, height: float | None
) -> dict[str, Tensor]:
    """Draw (N, C, H, W) by kind, without the kinds that any model has classes of."""
    trained = {word for model in models.values() for word in model.class_names}
    kinds = {
        kind: draw(n, size, seed, **({"height": height} if kind in SIZED else {}))
        for kind, draw in UNFAMILIAR.items()
        if kind not in ("letters", "look-alikes") or not trained & set(LETTERS)
    }
    fashion = None if trained & set(FASHION_NAMES) else fashion_mnist(n, size, seed)
    return kinds if fashion is None else {**kinds, "Fashion-MNIST": fashion}


def _curve(
    change: str, unit: str, measure: str, strengths: Sequence[Any], values: Mapping[str, Sequence[float]]
) -> Result:
    values = {name: [rounded(value) for value in each] for name, each in values.items()}
    return {"change": change, "unit": unit, "measure": measure, "strengths": list(strengths), "values": values}


def _result(suite: str, models: Models, targets: Tensor, seed: int, curves: list[Result], **more: Any) -> Result:
    return {"suite": suite, "n": len(targets), "seed": seed, "models": list(models), "curves": curves, **more}
