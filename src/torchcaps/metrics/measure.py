"""Models asked about many images, and what their answers amount to: accuracy, detection, how a pose moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.losses import reconstruction_loss
from torchcaps.models import ImageModel
from torchcaps.models.evaluating import evaluating

BATCH = 256
ROC_POINTS = 100

Models = Mapping[str, ImageModel]
Alter = Callable[[Tensor, torch.Generator], Tensor]  # images (B, C, H, W) → images


class Answers(NamedTuple):
    """What a model answers to N images, on the CPU.

    lengths  (N, J)
    poses    (N, J, D)  None for models without capsules
    errors   (N,)       squared error between image and reconstruction; None for models without a decoder
    """

    lengths: Tensor
    poses: Tensor | None
    errors: Tensor | None


def ask(models: Models, images: Tensor, alter: Alter | None = None, seed: int = 0) -> dict[str, Answers]:
    """What each model answers to images (N, C, H, W), batch by batch; a batch is altered once, for all models."""
    generator = torch.Generator().manual_seed(seed)
    parts: dict[str, list[Answers]] = {name: [] for name in models}
    for batch in images.split(BATCH):
        altered = batch if alter is None else alter(batch, generator)
        for name, model in models.items():
            parts[name].append(_answers(model, altered.to(model.device)))
    return {name: Answers(*map(_joined, zip(*found))) for name, found in parts.items()}  # type: ignore[arg-type]


def accuracy(lengths_NJ: Tensor, targets_N: Tensor) -> float:
    """The share of images whose longest capsule is the true one."""
    return float((lengths_NJ.argmax(-1) == targets_N.cpu()).float().mean())


def true_length(lengths_NJ: Tensor, targets_N: Tensor) -> float:
    """The mean length (or probability) of the true class."""
    return float(lengths_NJ.gather(1, targets_N.cpu()[:, None]).mean())


def detection(clean_N: Tensor, attacked_N: Tensor) -> dict[str, Any]:
    """How well a larger error tells attacked images from clean ones: the area under the ROC curve, and its points.

    clean_N, attacked_N  (N,) reconstruction errors
    returns              auc; false_alarms and caught, at most `ROC_POINTS` shares each, as the threshold falls
    """
    from sklearn.metrics import roc_auc_score, roc_curve

    attacked = torch.cat([torch.zeros(len(clean_N)), torch.ones(len(attacked_N))]).numpy()
    errors = torch.cat([clean_N, attacked_N]).numpy()
    false_alarms, caught, _ = roc_curve(attacked, errors)
    kept = torch.linspace(0, len(caught) - 1, min(len(caught), ROC_POINTS)).round().long().numpy()
    return {
        "auc": tidy(roc_auc_score(attacked, errors)),
        "false_alarms": [tidy(share) for share in false_alarms[kept]],
        "caught": [tidy(share) for share in caught[kept]],
    }


def angles(poses_SND: Tensor, origin: int) -> list[float]:
    """The mean angle in degrees, for each of S strengths, to the same example's pose at strength number `origin`.

    poses_SND  (S, N, D)
    """
    cosines_SN = torch.cosine_similarity(poses_SND, poses_SND[origin], dim=-1)
    return cosines_SN.clamp(-1, 1).acos().rad2deg().mean(1).tolist()


def linearity(poses_SND: Tensor, strengths: Sequence[float]) -> float | None:
    """How much of a pose's movement is a straight line in the strength of the change: R², 1 for all of it.

    For each example by itself, the pose is fitted by a + b · strength (least squares, a and b of D numbers each). With
    the squares summed over the S strengths and over all D dimensions, so that a dimension that hardly moves hardly
    counts,

        R² = 1 − Σ (pose − fit)² / Σ (pose − mean pose)²

    and the mean over examples is returned. Poses drawn at random would get 1 / (S − 1). An example whose pose does not
    move at all has no R² and is left out; None if that is so for all.

    poses_SND  (S, N, D)  the pose of N examples at each of S strengths
    """
    x_S = torch.tensor(strengths, dtype=torch.float64)
    x_S = x_S - x_S.mean()
    poses_SND = poses_SND.double()
    moved_SND = poses_SND - poses_SND.mean(0)
    slope_ND = torch.einsum("s,snd->nd", x_S, moved_SND) / x_S.square().sum()
    left_N = (moved_SND - x_S[:, None, None] * slope_ND).square().sum((0, 2))
    total_N = moved_SND.square().sum((0, 2))
    moves = total_N > 1e-12 * poses_SND.square().sum((0, 2))  # less is rounding
    return tidy((1 - left_N[moves] / total_N[moves]).mean()) if moves.any() else None


def tidy(value: Any) -> float:
    """A plain number with as many digits as mean anything."""
    return round(float(value), 6)


def _answers(model: ImageModel, images: Tensor) -> Answers:
    with evaluating(model):
        output = model(images)
        drawn = output.reconstruction
        errors = None if drawn is None else reconstruction_loss(drawn, images).float().cpu()
    poses = None if output.poses is None else output.poses.float().cpu()
    return Answers(output.lengths.float().cpu(), poses, errors)


def _joined(parts: Iterable[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None
