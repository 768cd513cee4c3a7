"""The CNN that pose capsules are compared with: the same convolutions and, optionally, the same lattice of poses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.errors import UserError
from torchcaps.geometry import Affine, Lattice, view
from torchcaps.layers.stem import ConvStem
from torchcaps.models.base import ImageModel, Output, constant_device
from torchcaps.models.baselines.sizes import check_not_given, count_parameters, fit, largest, size_error
from torchcaps.models.registry import register_model
from torchcaps.ops.squash import at_least_float32

MIN_WIDTH = 4
MAX_POSES = 1000
SHARPNESS = {"softmax": 1.0, "sigmoid": 10.0}  # initial t for combining the scores of views


class StrongCNN(ImageModel):
    """A stem of six convolutions, the mean over positions, one linear layer, softmax.

    Args:
        image_shape: (C, H, W) of the images.
        num_classes: J.
        width: w of the stem, whose convolutions have w/2 to 4w channels.
        features: channels of a 1×1 convolution between the stem and the mean, with batch normalisation and GELU; 0 for
            none.
        answer: "softmax" for logits, trained with cross-entropy; "sigmoid" for one value in [0, 1] per class, trained
            with the margin loss.
        multi_label: whether each class has its own sigmoid instead of one softmax over all.
        lattice_use: "none"; "test" to average the probabilities over all views at test; "train" to combine the scores z
            over views by (1/t) (log Σ exp(t z) − log G), with t learned, in training and at test.
        turn: of the lattice, like turn_step and scales; see `torchcaps.geometry.Lattice.regular`.
        turn_step: of the lattice.
        scales: of the lattice.
        views: maximum number of poses in a training step: the identity and random ones.
        padding: pixels that a view shows beyond each side of the image; with "test", training images are padded, too.
        **kwargs: arguments of `ImageModel`.
    """

    lattice_linear: Tensor

    def __init__(
        self,
        image_shape: Sequence[int] = (1, 28, 28),
        num_classes: int = 10,
        *,
        width: int = 32,
        features: int = 0,
        answer: Literal["softmax", "sigmoid"] = "softmax",
        multi_label: bool = False,
        lattice_use: Literal["none", "train", "test"] = "none",
        turn: float = 0.0,
        turn_step: float = 15.0,
        scales: Sequence[float] = (1.0,),
        views: int = 5,
        padding: int = 4,
        **kwargs: Any,
    ):
        super().__init__(image_shape, num_classes, **kwargs)
        if width < MIN_WIDTH or features < 0:
            raise UserError(
                f"StrongCNN: width must be at least {MIN_WIDTH} and features at least 0, got {width} and {features}"
            )
        if answer not in SHARPNESS:
            raise UserError(f"StrongCNN: answer must be 'softmax' or 'sigmoid', got {answer!r}")
        if views < 2 or padding < 0:
            raise UserError(
                f"StrongCNN: views must be at least 2 and padding at least 0, got {views} and {padding}; for a single "
                "view set lattice_use='none'"
            )
        self.objective = "margin" if answer == "sigmoid" else "cross_entropy"
        self.answer, self.multi_label = answer, multi_label
        self.lattice_use, self.views, self.padding = lattice_use, views, padding
        self.lattice = _lattice(lattice_use, turn, turn_step, scales)
        with constant_device():
            poses = self.lattice.poses()
        self.register_buffer("lattice_linear", poses.linear.float(), persistent=False)
        channels, H, W = self.image_shape
        self.view_size = (H + 2 * padding, W + 2 * padding)
        self.stem = ConvStem(channels, width)
        last = self.stem.out_channels
        self.fill: nn.Module = nn.Identity()
        if features:
            self.fill = nn.Sequential(nn.Conv2d(last, features, 1, bias=False), nn.BatchNorm2d(features), nn.GELU())
        self.head = nn.Linear(features or last, num_classes)
        # t is SHARPNESS · exp(log_sharpness): positive, and weight decay pulls it to its initial value.
        self.log_sharpness = nn.Parameter(torch.zeros(1)) if lattice_use == "train" else None

    def forward(self, images: Tensor, targets: Tensor | None = None, *, each: Tensor | None = None) -> Output:
        """Classify images.

        Args:
            images: (B, C, H, W) in [0, 1].
            targets: (B,) class ids or (B, J) multi-hot, which do not change anything.
            each: (B, M) class ids, which do not either.
        """
        self.check_targets(images, targets, each)
        logits_BGJ = self._logits_of_views(self.normalise(images))
        if self.answer == "sigmoid":
            scores_BGJ = logits_BGJ.sigmoid()
            return Output(self._soft_maximum(scores_BGJ) if self.lattice_use == "train" else scores_BGJ.mean(1))
        if self.lattice_use == "train":
            logits = self._soft_maximum(logits_BGJ)
        elif logits_BGJ.shape[1] == 1:
            logits = logits_BGJ[:, 0]
        else:
            logits = _logits_of_mean(logits_BGJ, self.multi_label)
        return Output(logits.sigmoid() if self.multi_label else logits.softmax(-1), logits=logits)

    def _logits_of_views(self, images: Tensor) -> Tensor:
        """(B, G, J) for images (B, C, H, W); G is 1 where no lattice is used."""
        if self.lattice_use == "none":
            return self._logits(images)[:, None]
        if not self.training:  # one by one, to save memory
            poses = self._poses(self.lattice_linear)
            one_by_one = (poses[g : g + 1] for g in range(len(self.lattice)))
            return torch.stack([self._logits(view(images, pose, self.view_size)[:, 0]) for pose in one_by_one], dim=1)
        if self.lattice_use == "test":
            return self._logits(F.pad(images, (self.padding,) * 4))[:, None]
        seen_BGCHW = view(images, self._poses(self.lattice_linear[self._random_indices()]), self.view_size)
        return self._logits(seen_BGCHW.flatten(0, 1)).unflatten(0, seen_BGCHW.shape[:2])

    def _logits(self, images: Tensor) -> Tensor:
        """(N, J) for images (N, C, H, W) of any size."""
        return at_least_float32(self.head(self.fill(self.stem(images)).mean((-2, -1))))

    def _random_indices(self) -> Tensor:
        """Indices of random poses, the identity first; drawn on the device, so that a CUDA graph can capture it."""
        order = torch.rand(len(self.lattice), device=self.lattice_linear.device)
        order[self.lattice.identity].fill_(-1)  # assigning a number would copy it from the host and synchronise
        return order.argsort()[: self.views]

    def _poses(self, linear: Tensor) -> Affine:
        return Affine(linear, torch.zeros_like(linear[..., 0]))

    def _soft_maximum(self, scores_BGJ: Tensor) -> Tensor:
        """(B, J): between the mean over views (t → 0) and their maximum (t → ∞)."""
        assert self.log_sharpness is not None
        t = SHARPNESS[self.answer] * self.log_sharpness.exp()
        return (torch.logsumexp(t * scores_BGJ, dim=1) - math.log(scores_BGJ.shape[1])) / t


@register_model
def strong_cnn(
    image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, *, parameters: int | None = None, **options: Any
) -> StrongCNN:
    """Build a StrongCNN of width 32 with 0.28 million parameters, or one of a given size, within 1 %.

    Args:
        image_shape: (C, H, W) of the images.
        num_classes: J.
        parameters: the number to meet. Where no width meets the number, a somewhat smaller one does with a 1×1
            convolution that has at least as many channels as the stem.
        **options: arguments of `StrongCNN`.
    """
    if parameters is None:
        return StrongCNN(image_shape, num_classes, **options)
    check_not_given("strong_cnn", options, "width", "features")

    def build(width: int, features: int) -> StrongCNN:
        return StrongCNN(image_shape, num_classes, width=width, features=features, **options)

    def filled(width: int) -> int:
        return count_parameters(lambda: build(width, 4 * width))

    model = fit(parameters, lambda features, width: build(width, features), [0], least=lambda _: MIN_WIDTH)
    if model is None:
        widths = range(largest(lambda width: filled(width) <= parameters, MIN_WIDTH), MIN_WIDTH - 1, -1)
        model = fit(parameters, build, widths, least=lambda width: 4 * width)
    if model is None:
        raise size_error("strong_cnn", parameters, image_shape)
    return model


def _lattice(lattice_use: str, turn: float, turn_step: float, scales: Sequence[float]) -> Lattice:
    if lattice_use not in ("none", "train", "test"):
        raise UserError(f"StrongCNN: lattice_use must be 'none', 'train' or 'test', got {lattice_use!r}")
    if turn_step > 0 and (2 * turn / turn_step + 1) * len(scales) > MAX_POSES:
        raise UserError(f"StrongCNN: more than {MAX_POSES} poses; give a larger turn_step or fewer scales")
    lattice = Lattice.regular(turn, turn_step, scales)
    if lattice_use != "none" and len(lattice) == 1:
        raise UserError(f"StrongCNN: lattice_use={lattice_use!r} needs more than one pose; give turn or scales")
    if lattice_use == "none" and lattice != Lattice():
        raise UserError("StrongCNN: turn and scales need lattice_use='train' or 'test'; set it, or omit them")
    return lattice


def _logits_of_mean(logits_BGJ: Tensor, multi_label: bool) -> Tensor:
    """(B, J) logits of the probabilities' mean over views."""
    if multi_label:
        return F.logsigmoid(logits_BGJ).logsumexp(1) - F.logsigmoid(-logits_BGJ).logsumexp(1)
    return logits_BGJ.log_softmax(-1).logsumexp(1) - math.log(logits_BGJ.shape[1])
