"""Pose capsules: the presence of each class, with its position, angle and scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.capsules import length
from torchcaps.checks import check_whole
from torchcaps.errors import UserError
from torchcaps.geometry import Affine, Lattice, half_turn, mean_angle, random_bend, view
from torchcaps.layers.denoise import Denoise
from torchcaps.layers.stem import ConvStem
from torchcaps.losses import multi_hot
from torchcaps.models._posecaps_drawing import classes_to_draw, correlation, select_classes, transform
from torchcaps.models._posecaps_views import EPS, UNITS, Views, class_centres, pose_votes, random_poses
from torchcaps.models.base import ImageModel, Output, Placement, constant_device
from torchcaps.models.registry import register_model
from torchcaps.models.variations import cover, negatives
from torchcaps.ops.squash import at_least_float32, no_autocast, squash

MAX_GROUP_VIEWS = 9  # processed at once without gradients: more take more memory and are no faster
COARSE_STEP_DEGREES = 45.0  # between the views of the coarse search, at most
NEGATIVES_PER_IMAGE = 0.25
COVER_SHARE = 0.25  # share of the training images that are partly covered
ABSENT_LENGTH = 0.1  # up to which a class counts as absent, as in the margin loss
GAUGE_WEIGHT = 0.02  # of the loss that keeps the mean pose of the training images at the identity


class PoseCaps(ImageModel):
    """A small network, applied to several transformed views of an image, predicts class presence and class pose.

    For each view: a convolutional stem, primary capsules by a 1×1 convolution, and one capsule per class, the squashed
    sum over types of the votes averaged over positions; the vote matrices are shared by all positions. A class is
    present if its capsule is long in some of the views. Each view also predicts the pose of each class relative to its
    own pose; the sum is the view's vote, and the placement is the weighted mean of the votes.

    In training each image is seen in a few random poses from the range of the lattice. See docs/posecaps.md.

    Args:
        image_shape: (C, H, W) of the images.
        num_classes: J.
        width: w of the stem, whose convolutions have w/2 to 4w channels.
        types: T, the number of types of primary capsules.
        dim: K, dimensions of a primary capsule.
        class_dim: D, dimensions of a class capsule.
        turn: the lattice has angles from -turn to turn degrees; 180 is the full circle.
        turn_step: degrees between neighbouring angles of the lattice.
        scales: of the lattice.
        stretches: range of unequal scales for random views; on the lattice only with search="full".
        shears: range of shears for random views; on the lattice only with search="full".
        search: the poses used in evaluation: "coarse", angles alone, at most COARSE_STEP_DEGREES apart; "plane", all
            angles × scales; "full", also × stretches × shears.
        views: number of random views of a training image; 0 for the whole lattice.
        bend: standard deviation of a smooth random distortion of the random views, in pixels.
        negatives: training images without any class, as a share of the batch, 0 to 1; by default 0.25 with random
            views. They are training images with shuffled patches, and uniform grey images; Output.absence is the
            presence of classes in them.
        thicken: how much the brightness level of `Denoise` varies between training images; this varies stroke width.
        cover: largest side, in pixels, of a black rectangle on every fourth training image; 0 for none.
        padding: pixels that a view shows beyond each side of the image.
        sharpness: t. Presence is (1/t) log of the mean over views of exp(t · length): the mean length for t → 0, the
            largest for t → ∞.
        denoise: whether the first layer removes noise and blur; for bright strokes on a dark ground.
        decoder: "dense" reconstructs the image from capsule and pose; "none" does not.
        hidden: units of the decoder's hidden layer.
        thickness: whether stroke width is predicted; set at the end of training, see `set_thickness_weight`.
        **kwargs: arguments of `ImageModel`.
    """

    reads_placement = True
    own_losses: Mapping[str, float] = MappingProxyType({"disagreement": 0.1})
    search_linear: Tensor
    thickness_weight: Tensor | None

    def __init__(
        self,
        image_shape: Sequence[int] = (1, 28, 28),
        num_classes: int = 10,
        *,
        width: int = 32,
        types: int = 16,
        dim: int = 8,
        class_dim: int = 16,
        turn: float = 60.0,
        turn_step: float = 15.0,
        scales: Sequence[float] = (0.8, 1.0, 1.25),
        stretches: Sequence[float] = (1.0,),
        shears: Sequence[float] = (0.0,),
        search: Literal["coarse", "plane", "full"] = "coarse",
        views: int = 3,
        bend: float = 0.0,
        negatives: float | None = None,
        thicken: float = 0.0,
        cover: int = 0,
        padding: int = 4,
        sharpness: float = 10.0,
        denoise: bool = True,
        decoder: Literal["dense", "none"] = "dense",
        hidden: int = 128,
        thickness: bool = False,
        **kwargs: Any,
    ):
        super().__init__(image_shape, num_classes, **kwargs)
        check_whole("posecaps", types=types, dim=dim, class_dim=class_dim, hidden=hidden)
        _check_least(width=width, views=views, padding=padding, cover=cover, bend=bend, thicken=thicken)
        negatives = (NEGATIVES_PER_IMAGE if views else 0.0) if negatives is None else negatives
        _check_options(search, decoder, negatives, views, sharpness)
        self.range = Lattice.regular(turn, turn_step, scales, stretches, shears)
        self.lattice = self.range if search == "full" else Lattice(self.range.angles, self.range.scales)
        searched = self.range.coarse(COARSE_STEP_DEGREES) if search == "coarse" else self.lattice
        with constant_device():
            poses = searched.poses()
        self.register_buffer("search_linear", poses.linear.float(), persistent=False)
        self.pose_parts = ["angle", "scale"]  # predicted by the offsets
        self.pose_parts += [name for name, axis in (("stretch", stretches), ("shear", shears)) if len(axis) > 1]
        self.views, self.bend, self.cover, self.sharpness, self.negatives = views, bend, cover, sharpness, negatives
        if negatives:
            self.own_losses = {**self.own_losses, "absence": 0.5}
        self.types, self.dim, self.class_dim = types, dim, class_dim
        channels, H, W = self.image_shape
        self.view_size = (H + 2 * padding, W + 2 * padding)
        self.denoise: nn.Module = Denoise(vary=thicken) if denoise else nn.Identity()
        self.stem = ConvStem(channels, width)
        self.primary = nn.Conv2d(self.stem.out_channels, types * dim, 1)
        # With primary capsules of their initial length, class capsules start at a length of about 0.15.
        self.weight = nn.Parameter(3 / math.sqrt(types * class_dim) * torch.randn(types, num_classes, class_dim, dim))
        self.bias = nn.Parameter(torch.full((num_classes, class_dim), 0.1))
        self.offset = nn.Linear(types * dim, num_classes * len(self.pose_parts))
        nn.init.zeros_(self.offset.weight)
        nn.init.zeros_(self.offset.bias)
        self.decoder = _dense_decoder(num_classes * class_dim, hidden, channels * H * W) if decoder == "dense" else None
        weight = torch.zeros(num_classes, types * dim + 1) if thickness else None
        self.register_buffer("thickness_weight", weight)  # saved only if not None

    def forward(self, images: Tensor, targets: Tensor | None = None, *, each: Tensor | None = None) -> Output:
        """Predict presence, pose and placement of each class.

        Args:
            images: (B, C, H, W) in [0, 1].
            targets: (B,) class ids or (B, J) multi-hot: the classes to reconstruct and to measure the disagreement of.
                By default the most present class is reconstructed.
            each: (B, M) class ids, each reconstructed separately.

        Returns:
            Lengths, poses and, in evaluation mode, placement; with a decoder a reconstruction; with targets the
            disagreement.
        """
        self.check_targets(images, targets, each)
        absence = None
        if self.training and self.cover:
            images = cover(images, self.cover, COVER_SHARE)
        if self.training and self.negatives:
            views, absence = self._encode_with_negatives(images)
        else:
            views = self.encode(images)
        with no_autocast(images):
            weights_BGJ, presence, poses = self.aggregate(views)
            ids_BM, mask = classes_to_draw(presence, targets, each)
            placement = None if self.training else self.read_placement(views, weights_BGJ)
            chosen = None
            if self.decoder is not None:
                if placement is None:
                    chosen = self.read_placement(views, weights_BGJ, ids_BM)
                else:
                    chosen = select_classes(placement, ids_BM)
            disagreement = None if targets is None else self.disagreement(views, targets)
        drawn = None
        if chosen is not None:
            drawn = self.reconstruct(poses, chosen, ids_BM)
            if mask is not None:
                drawn = (drawn * mask[..., None, None, None].to(drawn)).sum(1).clamp(max=1)
            elif each is None:
                drawn = drawn[:, 0]
        return Output(presence, poses, drawn, None, placement, disagreement, absence)

    def encode(self, images: Tensor) -> Views:
        """Compute capsules in the poses that are searched, or in training in random poses.

        Args:
            images: (B, C, H, W) in [0, 1].
        """
        poses = self._random_poses(images) if self.training and self.views else self._search_poses()
        return self.encode_views(images, poses)

    def encode_views(self, images: Tensor, poses: Affine) -> Views:
        """Compute capsules in given poses.

        Args:
            images: (B, C, H, W) in [0, 1].
            poses: (G) for all images, or (B, G).
        """
        self.check_images(images)
        with no_autocast(images):  # positions in bfloat16 would be off by a tenth of a pixel
            clear = self.normalise(self.denoise(images))
        G = poses.linear.shape[-3]
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or G <= MAX_GROUP_VIEWS:
            return self._encode_views(clear, poses)
        groups = (slice(first, first + MAX_GROUP_VIEWS) for first in range(0, G, MAX_GROUP_VIEWS))
        shared = poses.linear.ndim == 3
        parts = [self._encode_views(clear, poses[group] if shared else poses[:, group]) for group in groups]
        return Views(poses, *(torch.cat(part, dim=1) for part in list(zip(*parts))[1:]))

    def _encode_views(self, images: Tensor, poses: Affine) -> Views:
        """Like `encode_views`, for denoised images and all poses at once."""
        views_BGCHW = self._view(images, poses)
        encoded = self._encode(views_BGCHW.flatten(0, 1))
        return Views(poses, *(part.unflatten(0, views_BGCHW.shape[:2]) for part in encoded))

    def _view(self, images: Tensor, poses: Affine) -> Tensor:
        """Resample images to (B, G, C, h, w); in training random views are distorted."""
        with no_autocast(images):
            bent = None
            if self.training and self.bend and poses.linear.ndim == 4:
                B, G = poses.linear.shape[:2]
                bent = random_bend((B, G), self.view_size, self.bend, images.device)
            return view(images, poses, self.view_size, bent)

    def _encode(self, views: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Primary capsules, class capsules and offsets of views (N, C, h, w), as in `Views` but with one axis N."""
        maps = self.primary(self.stem(views))
        with no_autocast(views):
            primary_N = squash(at_least_float32(maps).unflatten(1, (self.types, self.dim)), dim=2).flatten(1, 2)
            pooled_NX = primary_N.mean((-2, -1))
            votes = torch.einsum("ntk,tjdk->njd", pooled_NX.unflatten(1, (self.types, self.dim)), self.weight)
            capsules = squash(votes + self.bias)
            offsets = self.offset(pooled_NX).unflatten(1, (self.num_classes, len(self.pose_parts)))
        return primary_N, capsules, offsets

    def _encode_with_negatives(self, images: Tensor) -> tuple[Views, Tensor]:
        """Encode random views of the images and of negatives in one batch, so that they share batch statistics.

        Returns:
            The views of the images, and (B,) the presence of classes in the negatives, the same for all images: the sum
            over classes of the squared length above ABSENT_LENGTH.
        """
        self.check_images(images)
        poses = self._random_poses(images)
        count = math.ceil(self.negatives * len(images))
        with no_autocast(images):
            both = torch.cat([images, negatives(images[:count])])
            clear, empty = self.normalise(self.denoise(both)).tensor_split([len(images)])
        views_BGCHW = self._view(clear, poses)
        # The last pose of each image is anywhere in the range; the first is near the identity.
        empty_NCHW = self._view(empty, poses[:count, -1:]).flatten(0, 1)
        B, G = views_BGCHW.shape[:2]
        stacked = torch.cat([views_BGCHW.flatten(0, 1), empty_NCHW])
        encoded = [part.tensor_split([B * G]) for part in self._encode(stacked)]
        views = Views(poses, *(part.unflatten(0, (B, G)) for part, _ in encoded))
        with no_autocast(images):
            above = (length(encoded[1][1]) - ABSENT_LENGTH).relu().square().sum(-1)
        return views, above.mean().expand(B)

    def aggregate(self, views: Views) -> tuple[Tensor, Tensor, Tensor]:
        """Combine the views.

        Returns:
            (B, G, J) weights of the views, (B, J) presence, and (B, J, D) class capsules of that length.
        """
        lengths_BGJ = length(views.capsules)
        weights_BGJ = (self.sharpness * lengths_BGJ).softmax(1)
        G = lengths_BGJ.shape[1]
        presence = ((self.sharpness * lengths_BGJ).logsumexp(1) - math.log(G)).clamp_min(0) / self.sharpness
        mean_BJD = (weights_BGJ[..., None] * views.capsules).sum(1)
        return weights_BGJ, presence, F.normalize(mean_BJD, dim=-1, eps=EPS) * presence[..., None]

    def read_placement(self, views: Views, weights_BGJ: Tensor, classes: Tensor | None = None) -> Placement:
        """Average the votes of the views for the pose of each class.

        Args:
            views: as `encode` returns them.
            weights_BGJ: (B, G, J) weights of the views, from `aggregate`.
            classes: (B, M) ids of the classes to read; None for all.

        Returns:
            A placement with (B, J) or (B, M) values.
        """
        weights = weights_BGJ
        if classes is not None:
            ids = classes[:, None].expand(-1, weights_BGJ.shape[1], -1)
            weights, views = weights_BGJ.gather(2, ids), views.select(ids)
        votes = pose_votes(views, self.pose_parts)
        angle = mean_angle(votes["angle"], weights)
        deviation = half_turn(votes["angle"] - angle[:, None])
        spread = ((weights * deviation.square()).sum(1) + EPS).sqrt()
        x, y = class_centres(views, weights, self.weight, self.view_size, classes).unbind(-1)
        means = {name: (weights * votes[name]).sum(1) for name in self.pose_parts[1:]}
        scale = means["scale"].exp()
        _, H, W = self.image_shape
        return Placement(
            x=x + (W - 1) / 2,
            y=y + (H - 1) / 2,
            angle=angle,
            scale=scale,
            spread=spread,
            stretch=means["stretch"].exp() if "stretch" in means else None,
            shear=means.get("shear"),
            thickness=self._thickness(views, weights, scale, classes),
        )

    def mean_primary(self, views: Views, weights_BGJ: Tensor) -> Tensor:
        """Average the primary capsules over positions, and over views with the weights of each class.

        Args:
            views: as `encode` returns them.
            weights_BGJ: (B, G, J) weights of the views.

        Returns:
            (B, J, T·K).
        """
        return torch.einsum("bgj,bgx->bjx", weights_BGJ, views.primary.mean((-2, -1)))

    def set_thickness_weight(self, weight: Tensor | None) -> None:
        """Set the linear map from a class's mean primary capsules to stroke width, relative to its scale.

        Args:
            weight: (J, T·K + 1) factors and, last, a constant, in pixels; None to predict no stroke width.
        """
        expected = self.num_classes, self.types * self.dim + 1
        if weight is not None and weight.shape != expected:
            raise ValueError(f"set_thickness_weight: expected a weight of shape {expected}, got {tuple(weight.shape)}")
        self.thickness_weight = None if weight is None else weight.detach().to(self.weight)
        self.arguments["thickness"] = weight is not None

    def _thickness(self, views: Views, weights: Tensor, scale: Tensor, classes: Tensor | None) -> Tensor | None:
        """(B, J) or (B, M) stroke width in pixels; None if the model does not predict it."""
        if self.thickness_weight is None:
            return None
        weight = self.thickness_weight if classes is None else self.thickness_weight[classes]
        width = (self.mean_primary(views, weights) * weight[..., :-1]).sum(-1) + weight[..., -1]
        return width.relu() * scale

    def affine(self, placement: Placement) -> Affine:
        """Convert a placement to a map from a class's upright drawing to the image, in pixels from their centres.

        Args:
            placement: (...) values.
        """
        _, H, W = self.image_shape
        return Affine.of(
            x=placement.x - (W - 1) / 2,
            y=placement.y - (H - 1) / 2,
            angle=placement.angle,
            scale=placement.scale,
            stretch=1.0 if placement.stretch is None else placement.stretch,
            shear=0.0 if placement.shear is None else placement.shear,
        )

    def disagreement(self, views: Views, targets: Tensor) -> Tensor:
        """Measure how much the views disagree about the poses of the target classes, in squared UNITS.

        The mean over views of (vote − mean vote)², plus GAUGE_WEIGHT times the squared mean vote, so that the mean pose
        of the training images stays at the identity.

        Args:
            views: as `encode` returns them.
            targets: (B,) class ids or (B, J) multi-hot.

        Returns:
            (B,).
        """
        total_BJ = views.offsets.new_zeros(())
        for name, votes_BGJ in pose_votes(views, self.pose_parts).items():
            if name == "angle":
                mean_BJ = mean_angle(votes_BGJ, votes_BGJ.new_full((), 1 / votes_BGJ.shape[1]))
                deviation_BGJ = half_turn(votes_BGJ - mean_BJ[:, None])
            else:
                mean_BJ = votes_BGJ.mean(1)
                deviation_BGJ = votes_BGJ - mean_BJ[:, None]
            gauge_BJ = GAUGE_WEIGHT * (mean_BJ / UNITS[name]).square()
            total_BJ = total_BJ + (deviation_BGJ / UNITS[name]).square().mean(1) + gauge_BJ
        return (total_BJ * multi_hot(targets, self.num_classes).to(total_BJ)).sum(-1)

    def reconstruct(self, poses: Tensor, placed: Placement, classes: Tensor) -> Tensor:
        """Draw several classes, each separately and in its pose.

        Args:
            poses: (B, J, D) class capsules.
            placed: (B, M) values, the placement of the classes to draw.
            classes: (B, M) ids of the classes to draw.

        Returns:
            (B, M, C, H, W) in [0, 1].
        """
        chosen = poses.gather(1, classes[..., None].expand(-1, -1, poses.shape[-1]))
        pose = self.affine(Placement(*(None if part is None else part.flatten() for part in placed)))  # type: ignore[arg-type]
        return self.draw(chosen.flatten(0, 1), classes.flatten(), pose).unflatten(0, classes.shape)

    def familiarity(self, images: Tensor, output: Output) -> Tensor:
        """Score how familiar images are: high for images like those of the training classes.

        The presence of the winning class, plus its lead over all other classes (the norm of their lengths), plus half
        the correlation of its reconstruction with the denoised image.

        Args:
            images: (B, C, H, W) in [0, 1].
            output: of this model for the images, without targets.

        Returns:
            (B,).
        """
        first, others = output.lengths.sort(-1, descending=True).values.tensor_split([1], dim=-1)
        familiar = 2 * first[:, 0] - others.square().sum(-1).sqrt()
        if output.reconstruction is None:
            return familiar
        return familiar + 0.5 * correlation(self.denoise(images), output.reconstruction)

    def draw(self, capsules: Tensor, classes: Tensor, pose: Affine) -> Tensor:
        """Draw class capsules in given poses.

        Args:
            capsules: (N, D).
            classes: (N,) their class ids.
            pose: (N) maps from the upright drawing to the image.

        Returns:
            (N, C, H, W) in [0, 1].
        """
        return transform(self.draw_upright(capsules, classes), pose)

    def draw_upright(self, capsules: Tensor, classes: Tensor) -> Tensor:
        """Draw class capsules upright, in the middle and at scale 1.

        Args:
            capsules: (N, D).
            classes: (N,) their class ids.

        Returns:
            (N, C, H, W) in [0, 1].
        """
        assert self.decoder is not None
        masked_NJD = capsules[:, None] * multi_hot(classes, self.num_classes).to(capsules)[..., None]
        pixels = at_least_float32(self.decoder(masked_NJD.flatten(1)))
        return torch.sigmoid(pixels).view(-1, *self.image_shape)

    def _search_poses(self) -> Affine:
        return Affine(self.search_linear, torch.zeros_like(self.search_linear[..., 0]))

    def _random_poses(self, images: Tensor) -> Affine:
        return random_poses(images, self.range, self.views)


def _dense_decoder(inputs: int, hidden: int, outputs: int) -> nn.Module:
    last = nn.Linear(hidden, outputs)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), last)


def _check_least(width: int, views: int, padding: int, cover: int, bend: float, thicken: float) -> None:
    check_whole("posecaps", 2, width=width)
    check_whole("posecaps", 0, views=views, padding=padding, cover=cover)
    if min(bend, thicken) < 0:
        raise UserError(f"posecaps: bend and thicken must be 0 or more, got {bend} and {thicken}")


def _check_options(search: str, decoder: str, negatives: float, views: int, sharpness: float) -> None:
    if sharpness <= 0:
        raise UserError(f"posecaps: sharpness must be more than 0, got {sharpness}")
    if not 0 <= negatives <= 1 or (negatives and not views):
        raise UserError(f"posecaps: negatives must lie in 0 to 1, and be 0 where views is 0, got {negatives}")
    if search not in ("coarse", "plane", "full"):
        raise UserError(f"posecaps: search must be 'coarse', 'plane' or 'full', got {search!r}")
    if decoder not in ("dense", "none"):
        raise UserError(f"posecaps: decoder must be 'dense' or 'none', got {decoder!r}")


@register_model
def posecaps(image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, **options: Any) -> PoseCaps:
    """Build a PoseCaps of 0.32 million parameters, not counting the decoder, for 1×28×28 images and 10 classes."""
    return PoseCaps(image_shape, num_classes, **options)


@register_model
def posecaps_small(image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, **options: Any) -> PoseCaps:
    """Build a PoseCaps for a CPU, with a quarter of the channels and angles up to 45°."""
    small = {"width": 8, "types": 8, "turn": 45.0, "views": 3, "padding": 2, "hidden": 64}
    return PoseCaps(image_shape, num_classes, **{**small, **options})
