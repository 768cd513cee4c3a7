"""Pose capsules: class presence, with the position, angle and scale of each class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.capsules import length
from torchcaps.errors import UserError
from torchcaps.geometry import Affine, Lattice, half_turn, mean_angle, random_bend, sampling_grid, view
from torchcaps.layers.denoise import Denoise
from torchcaps.layers.stem import STRIDE, ConvStem
from torchcaps.losses import multi_hot
from torchcaps.models.base import ImageModel, Output, Placement, constant_device
from torchcaps.models.registry import register_model
from torchcaps.models.variations import cover, negatives
from torchcaps.ops.squash import at_least_float32, no_autocast, squash

TINY = 1e-6
FLAT = 1e-4  # of an image times a drawing: below it nothing can match
AT_ONCE = 9  # views, where no gradients are needed: more take more memory and are no faster
COARSE = 45.0  # degrees that one view of the coarse search stands for, at most
NEAR = 0.125  # how far the first view of a training image strays from the identity, as a share of the lattice's reach
NEGATIVES = 0.25  # images of nothing for each training image
COVERED = 0.25  # share of the training images that are covered in part, if any are
ABSENT = 0.1  # the length up to which a class counts as absent, as in the margin loss
GAUGE = 0.02  # weight that keeps the mean pose of the training images at the identity
UNITS = {"angle": 15.0, "scale": 0.2, "stretch": 0.2, "shear": 0.2}  # degrees, logarithms, pixels per pixel


class Views(NamedTuple):
    """What the network sees through each of G poses.

    Attributes:
        poses: (G) or (B, G) from a place in the view to one in the image.
        primary: (B, G, T·K, h, w) the primary capsules, T types of K numbers.
        capsules: (B, G, J, D) the class capsules.
        offsets: (B, G, J, P) how much further than its view each class is turned, enlarged, …, in UNITS.
    """

    poses: Affine
    primary: Tensor
    capsules: Tensor
    offsets: Tensor


class PoseCaps(ImageModel):
    """A small network applied to several transformed views of an image; it predicts class presence and class pose.

    Of every view: a stem of convolutions, primary capsules by a 1×1 convolution, and one capsule for each class, the
    squashed sum over types of the mean over places of their votes; the matrices are the same at every place. A class is
    present as far as its capsule is long in the views in which it is longest. Each view also says how much further the
    class is turned and enlarged than the view's own pose; both together are the view's vote for the pose of the class,
    and the placement is the mean of the votes.

    In training a few views are drawn at random from the range of the lattice, others for each image. See
    docs/posecaps.md.

    Args:
        image_shape: (C, H, W) of the images.
        num_classes: J.
        width: w of the stem, whose convolutions have w/2 to 4w channels.
        types, dim: T and K of the primary capsules.
        class_dim: D of the class capsules.
        turn, turn_step: the lattice's angles, from -turn to turn degrees; 180 is the full circle.
        scales: the lattice's scales.
        stretches, shears: the ranges of unequal scales and of shear, for views in training. `search` says whether the
            lattice has them as well.
        search: what is looked through at test: "coarse", angles alone, COARSE degrees apart or less; "plane", all
            angles × scales; "full", also × stretches × shears.
        views: number of random views of a training image; 0 for the whole lattice.
        bend: pixels (standard deviation) that random views are smoothly bent by.
        negatives: how many images of nothing are looked at in training for each image, up to 1; by default 0.25 where
            views are random. They are training images whose patches are shuffled, and plain greys; Output.absence is
            how present classes are in them.
        thicken: how far the level of `Denoise`, from which on a stroke is seen, varies between training images.
        cover: pixels, the largest side of a rectangle that covers a part of every fourth training image; 0 for none.
        padding: pixels that a view shows on each side of the image.
        sharpness: t. Presence is (1/t) log of the mean over views of exp(t · length): between the mean length (t → 0)
            and the largest (t → ∞).
        denoise: whether a first layer takes out noise and blur, for bright strokes on a dark ground.
        decoder: "dense" draws what a capsule saw, where and how it stands; "none" does not.
        hidden: units of the decoder's hidden layer.
        thickness: whether it reads the width of strokes. The end of training sets it: see `read_thickness_by`.
        **kwargs: of `ImageModel`.
    """

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
        if min(width, types, dim, class_dim, hidden) < 1 or width < 2:
            raise UserError("posecaps: width must be at least 2; types, dim, class_dim and hidden at least 1")
        if min(views, padding, bend, thicken, cover) < 0 or sharpness <= 0:
            raise UserError("posecaps: views, padding, bend, thicken, cover must be 0 or more, sharpness more than 0")
        if negatives is None:
            negatives = NEGATIVES if views else 0.0
        if not 0 <= negatives <= 1 or (negatives and not views):
            raise UserError(f"posecaps: negatives must lie in 0 to 1, and be 0 where views is 0, got {negatives}")
        if search not in ("coarse", "plane", "full"):
            raise UserError(f"posecaps: search must be 'coarse', 'plane' or 'full', got {search!r}")
        if decoder not in ("dense", "none"):
            raise UserError(f"posecaps: decoder must be 'dense' or 'none', got {decoder!r}")
        self.range = Lattice.regular(turn, turn_step, scales, stretches, shears)
        self.lattice = self.range if search == "full" else Lattice(self.range.angles, self.range.scales)
        looked = self.range.coarse(COARSE) if search == "coarse" else self.lattice
        with constant_device():
            search = looked.poses().linear.float()
        self.register_buffer("search_linear", search, persistent=False)
        self.read = ["angle", "scale"]  # the parts of a pose that offsets tell
        self.read += [name for name, axis in (("stretch", stretches), ("shear", shears)) if len(axis) > 1]
        self.views, self.bend, self.cover, self.sharpness, self.negatives = views, bend, cover, sharpness, negatives
        if negatives:
            self.own_losses = {**self.own_losses, "absence": 0.5}
        self.types, self.dim, self.class_dim = types, dim, class_dim
        channels, H, W = self.image_shape
        self.view_size = (H + 2 * padding, W + 2 * padding)
        self.denoise: nn.Module = Denoise(vary=thicken) if denoise else nn.Identity()
        self.stem = ConvStem(channels, width)
        self.primary = nn.Conv2d(self.stem.out_channels, types * dim, 1)
        # With primary capsules as short as they start, class capsules start at a length of about 0.15.
        self.weight = nn.Parameter(3 / math.sqrt(types * class_dim) * torch.randn(types, num_classes, class_dim, dim))
        self.bias = nn.Parameter(torch.full((num_classes, class_dim), 0.1))
        self.offset = nn.Linear(types * dim, num_classes * len(self.read))
        nn.init.zeros_(self.offset.weight)
        nn.init.zeros_(self.offset.bias)
        self.decoder: nn.Module | None = None
        if decoder == "dense":
            last = nn.Linear(hidden, channels * H * W)
            self.decoder = nn.Sequential(nn.Linear(num_classes * class_dim, hidden), nn.ReLU(), last)
        weight = torch.zeros(num_classes, types * dim + 1) if thickness else None
        self.register_buffer("thickness_weight", weight)  # saved with the model if there is one

    def forward(self, images: Tensor, targets: Tensor | None = None, *, each: Tensor | None = None) -> Output:
        """Find classes and how they stand.

        Args:
            images: (B, C, H, W) in [0, 1].
            targets: (B,) class ids or (B, J) multi-hot: what is drawn, and whose views should agree. By default the
                most present class.
            each: (B, M) class ids, each to be drawn by itself.

        Returns:
            Lengths, poses and, in eval mode, placement; a reconstruction if there is a decoder; with targets also the
            disagreement.
        """
        absence = None
        if self.training and self.cover:
            images = cover(images, self.cover, COVERED)
        if self.training and self.negatives:
            seen, absence = self._look_beside_nothing(images)
        else:
            seen = self.look(images)
        with no_autocast(images):
            weights_BGJ, presence, poses = self.aggregate(seen)
            ids_BM, several = self._drawn_classes(presence, targets, each)
            placement = None if self.training else self.place(seen, weights_BGJ)
            placed = None
            if self.decoder is not None:
                placed = self.place(seen, weights_BGJ, ids_BM) if placement is None else _of(placement, ids_BM)
            apart = None if targets is None else self.disagreement(seen, targets)
        drawn = None
        if placed is not None:
            drawn = self.reconstruct(poses, placed, ids_BM)
            if several is not None:
                drawn = (drawn * several[..., None, None, None].to(drawn)).sum(1).clamp(max=1)
            elif each is None:
                drawn = drawn[:, 0]
        return Output(presence, poses, drawn, None, placement, apart, absence)

    def _drawn_classes(
        self, presence_BJ: Tensor, targets: Tensor | None, each: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """(B, M) ids of the classes to draw; for multi-hot targets all J, and (B, J) which of them count."""
        if each is not None:
            return each, None
        if targets is None:
            return presence_BJ.argmax(-1, keepdim=True), None
        if targets.ndim == 1:
            return targets[:, None].long(), None
        return torch.arange(self.num_classes, device=targets.device).expand_as(targets), targets

    def look(self, images: Tensor) -> Views:
        """See images (B, C, H, W) through the poses that are searched, or in training through random ones."""
        poses = self._random_poses(images) if self.training and self.views else self._search_poses()
        return self.look_through(images, poses)

    def look_through(self, images: Tensor, poses: Affine) -> Views:
        """See images (B, C, H, W) through poses (G) or (B, G)."""
        self.check_images(images)
        with no_autocast(images):  # places in bfloat16 would be off by a tenth of a pixel
            clear = self.normalise(self.denoise(images))
        G = poses.linear.shape[-3]
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or G <= AT_ONCE:
            return self._look_through(clear, poses)
        groups = (slice(first, first + AT_ONCE) for first in range(0, G, AT_ONCE))
        shared = poses.linear.ndim == 3
        parts = [self._look_through(clear, poses[group] if shared else poses[:, group]) for group in groups]
        return Views(poses, *(torch.cat(part, dim=1) for part in list(zip(*parts))[1:]))

    def _look_through(self, images: Tensor, poses: Affine) -> Views:
        """As `look_through`, for denoised images and all poses at once."""
        seen_BGCHW = self._view(images, poses)
        encoded = self._encode(seen_BGCHW.flatten(0, 1))
        return Views(poses, *(part.unflatten(0, seen_BGCHW.shape[:2]) for part in encoded))

    def _view(self, images: Tensor, poses: Affine) -> Tensor:
        """(B, G, C, h, w); in training random views are bent."""
        with no_autocast(images):
            bent = None
            if self.training and self.bend and poses.linear.ndim == 4:
                B, G = poses.linear.shape[:2]
                bent = random_bend((B, G), self.view_size, self.bend, images.device)
            return view(images, poses, self.view_size, bent)

    def _encode(self, views: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of views (N, C, h, w) the primary capsules, class capsules and offsets, as in `Views` but with one axis N."""
        maps = self.primary(self.stem(views))
        with no_autocast(views):
            primary_N = squash(at_least_float32(maps).unflatten(1, (self.types, self.dim)), dim=2).flatten(1, 2)
            pooled_NX = primary_N.mean((-2, -1))
            votes = torch.einsum("ntk,tjdk->njd", pooled_NX.unflatten(1, (self.types, self.dim)), self.weight)
            capsules = squash(votes + self.bias)
            offsets = self.offset(pooled_NX).unflatten(1, (self.num_classes, len(self.read)))
        return primary_N, capsules, offsets

    def _look_beside_nothing(self, images: Tensor) -> tuple[Views, Tensor]:
        """See images through random poses, and images of nothing beside them, so that they share batch statistics.

        Returns:
            What is seen of the images, and how present classes are in the images of nothing, the same for all (B,):
            the sum over classes of the squared length beyond ABSENT.
        """
        self.check_images(images)
        poses = self._random_poses(images)
        count = math.ceil(self.negatives * len(images))
        with no_autocast(images):
            both = torch.cat([images, negatives(images[:count])])
            clear, empty = self.normalise(self.denoise(both)).tensor_split([len(images)])
        seen_BGCHW = self._view(clear, poses)
        # The last pose of each image lies anywhere in the range; the first is near the identity.
        nothing = self._view(empty, poses[:count, -1:]).flatten(0, 1)
        B, G = seen_BGCHW.shape[:2]
        encoded = [part.tensor_split([B * G]) for part in self._encode(torch.cat([seen_BGCHW.flatten(0, 1), nothing]))]
        seen = Views(poses, *(part.unflatten(0, (B, G)) for part, _ in encoded))
        with no_autocast(images):
            beyond = (length(encoded[1][1]) - ABSENT).relu().square().sum(-1)
        return seen, beyond.mean().expand(B)

    def aggregate(self, seen: Views) -> tuple[Tensor, Tensor, Tensor]:
        """Combine the views.

        Returns:
            (B, G, J) weights of the views, (B, J) presence, and (B, J, D) class capsules of that length.
        """
        lengths_BGJ = length(seen.capsules)
        weights_BGJ = (self.sharpness * lengths_BGJ).softmax(1)
        G = lengths_BGJ.shape[1]
        presence = ((self.sharpness * lengths_BGJ).logsumexp(1) - math.log(G)).clamp_min(0) / self.sharpness
        mean_BJD = (weights_BGJ[..., None] * seen.capsules).sum(1)
        return weights_BGJ, presence, F.normalize(mean_BJD, dim=-1, eps=TINY) * presence[..., None]

    def place(self, seen: Views, weights_BGJ: Tensor, classes: Tensor | None = None) -> Placement:
        """Take the mean of what the views say about the pose of each class, or of these classes (B, M) only."""
        weights = weights_BGJ
        if classes is not None:
            ids = classes[:, None].expand(-1, weights_BGJ.shape[1], -1)
            weights = weights_BGJ.gather(2, ids)
            chosen = (part.gather(2, ids[..., None].expand(-1, -1, -1, part.shape[-1])) for part in seen[2:])
            seen = Views(seen.poses, seen.primary, *chosen)
        votes = self._votes(seen)
        angle = mean_angle(votes["angle"], weights)
        apart = half_turn(votes["angle"] - angle[:, None])
        spread = ((weights * apart.square()).sum(1) + TINY).sqrt()
        x, y = self._centres(seen, weights, classes).unbind(-1)
        means = {name: (weights * votes[name]).sum(1) for name in self.read[1:]}
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
            thickness=self._thickness(seen, weights, scale, classes),
        )

    def mean_primary(self, seen: Views, weights_BGJ: Tensor) -> Tensor:
        """Take the mean of the primary capsules over places and views, (B, J, T·K), views weighted for each class."""
        return torch.einsum("bgj,bgx->bjx", weights_BGJ, seen.primary.mean((-2, -1)))

    def read_thickness_by(self, weight: Tensor | None) -> None:
        """Set how the width of strokes is read: linearly, from the mean primary capsules of a class, times its scale.

        Args:
            weight: (J, T·K + 1) for each class a factor for each number and a constant, in pixels; None: not at all.
        """
        expected = self.num_classes, self.types * self.dim + 1
        if weight is not None and weight.shape != expected:
            raise ValueError(f"read_thickness_by: expected a weight of shape {expected}, got {tuple(weight.shape)}")
        self.thickness_weight = None if weight is None else weight.detach().to(self.weight)
        self.arguments["thickness"] = weight is not None

    def _thickness(self, seen: Views, weights: Tensor, scale: Tensor, classes: Tensor | None) -> Tensor | None:
        """(B, J) or (B, M) pixels, or None."""
        if self.thickness_weight is None:
            return None
        read_by = self.thickness_weight if classes is None else self.thickness_weight[classes]
        read = (self.mean_primary(seen, weights) * read_by[..., :-1]).sum(-1) + read_by[..., -1]
        return read.relu() * scale

    def affine(self, placement: Placement) -> Affine:
        """The placement (...) as a map from the drawing of a class to the image, in pixels from their centres."""
        _, H, W = self.image_shape
        return Affine.of(
            x=placement.x - (W - 1) / 2,
            y=placement.y - (H - 1) / 2,
            angle=placement.angle,
            scale=placement.scale,
            stretch=1.0 if placement.stretch is None else placement.stretch,
            shear=0.0 if placement.shear is None else placement.shear,
        )

    def disagreement(self, seen: Views, targets: Tensor) -> Tensor:
        """How far the views disagree about the pose of the classes that are there, (B,), in squared UNITS.

        The mean over views of (vote − mean vote)², and a little of the mean vote's own square, so that training images
        stand at the identity in the mean.
        """
        total_BJ = seen.offsets.new_zeros(())
        for name, votes_BGJ in self._votes(seen).items():
            if name == "angle":
                mean_BJ = mean_angle(votes_BGJ, votes_BGJ.new_full((), 1 / votes_BGJ.shape[1]))
                apart_BGJ = half_turn(votes_BGJ - mean_BJ[:, None])
            else:
                mean_BJ = votes_BGJ.mean(1)
                apart_BGJ = votes_BGJ - mean_BJ[:, None]
            total_BJ = total_BJ + (apart_BGJ / UNITS[name]).square().mean(1) + GAUGE * (mean_BJ / UNITS[name]).square()
        return (total_BJ * multi_hot(targets, self.num_classes).to(total_BJ)).sum(-1)

    def reconstruct(self, poses: Tensor, placed: Placement, classes: Tensor) -> Tensor:
        """Draw classes where and how they stand, each by itself.

        Args:
            poses: (B, J, D) of all classes.
            placed: each (B, M), of the classes to draw.
            classes: (B, M) their ids.

        Returns:
            (B, M, C, H, W).
        """
        chosen = poses.gather(1, classes[..., None].expand(-1, -1, poses.shape[-1]))
        pose = self.affine(Placement(*(None if part is None else part.flatten() for part in placed)))  # type: ignore[arg-type]
        return self.draw(chosen.flatten(0, 1), classes.flatten(), pose).unflatten(0, classes.shape)

    def familiarity(self, images: Tensor, output: Output) -> Tensor:
        """How much an image looks like one of the classes, (B,): larger is more familiar.

        The sum of how present the winner is, how far it is ahead of all other classes together (the norm of their
        lengths), and half of how well its drawing, where and how it stands, matches the image (their correlation over
        pixels, noise taken out).

        Args:
            images: (B, C, H, W) in [0, 1].
            output: what this model answered to them, without targets.
        """
        first, others = output.lengths.sort(-1, descending=True).values.tensor_split([1], dim=-1)
        familiar = 2 * first[:, 0] - others.square().sum(-1).sqrt()
        if output.reconstruction is None:
            return familiar
        seen, drawn = (part.flatten(1) for part in (self.denoise(images), output.reconstruction))
        seen, drawn = seen - seen.mean(1, keepdim=True), drawn - drawn.mean(1, keepdim=True)
        both = seen.square().sum(1) * drawn.square().sum(1)
        return familiar + 0.5 * (seen * drawn).sum(1) / (both + FLAT).sqrt()

    def draw(self, capsules: Tensor, classes: Tensor, pose: Affine) -> Tensor:
        """Draw class capsules (N, D) of these classes (N,) as they stand (N): (N, C, H, W) in [0, 1]."""
        size = self.image_shape[1:]
        grid = sampling_grid(pose.inverse(), size, size)
        upright = self.draw_upright(capsules, classes)
        return F.grid_sample(upright, grid, mode="bilinear", padding_mode="zeros", align_corners=False)

    def draw_upright(self, capsules: Tensor, classes: Tensor) -> Tensor:
        """Draw class capsules (N, D) of these classes (N,) upright, in the middle, at scale 1: (N, C, H, W)."""
        assert self.decoder is not None
        masked_NJD = capsules[:, None] * multi_hot(classes, self.num_classes).to(capsules)[..., None]
        pixels = at_least_float32(self.decoder(masked_NJD.flatten(1)))
        return torch.sigmoid(pixels).view(-1, *self.image_shape)

    def _votes(self, seen: Views) -> dict[str, Tensor]:
        """(B, G, J) of each part that is read: degrees, logarithms, pixels per pixel."""
        parts = seen.poses.parts()._asdict()
        votes = {}
        for index, name in enumerate(self.read):
            own = parts[name].log() if name in ("scale", "stretch") else parts[name]
            votes[name] = own[..., None] + UNITS[name] * seen.offsets[..., index]  # (G, 1) or (B, G, 1)
        return votes

    def _centres(self, seen: Views, weights: Tensor, classes: Tensor | None) -> Tensor:
        """Where each class is, (B, J, 2) or (B, M, 2), in pixels from the centre of the image.

        A place of a view counts as much as its votes lengthen the capsule of the class.
        """
        ahead = F.normalize(seen.capsules, dim=-1, eps=TINY)
        if classes is None:
            along = torch.einsum("bgjd,tjdk->bgjtk", ahead, self.weight).flatten(3)
        else:
            # Chosen by a product: the gradient of an index is summed in any order.
            hot_BMJ = F.one_hot(classes, self.num_classes).to(ahead)
            chosen = torch.einsum("bmj,tjdk->bmtdk", hot_BMJ, self.weight)
            along = torch.einsum("bgmd,bmtdk->bgmtk", ahead, chosen).flatten(3)
        h, w = seen.primary.shape[-2:]
        share = (along @ seen.primary.flatten(3)).relu()
        share = (share / (share.sum(-1, keepdim=True) + TINY)).unflatten(-1, (h, w))
        x, y = (
            torch.arange(count, dtype=share.dtype, device=share.device) * STRIDE - (side - 1) / 2
            for count, side in ((w, self.view_size[1]), (h, self.view_size[0]))
        )
        centre = torch.stack([(share.sum(-2) * x).sum(-1), (share.sum(-1) * y).sum(-1)], dim=-1)
        poses = seen.poses.to(share)
        placed = Affine(poses.linear[..., None, :, :], poses.shift[..., None, :])(centre)
        return (weights[..., None] * placed).sum(1)

    def _search_poses(self) -> Affine:
        return Affine(self.search_linear, torch.zeros_like(self.search_linear[..., 0]))

    def _random_poses(self, images: Tensor) -> Affine:
        """(B, views): the first near the identity, the others anywhere in the range of the lattice.

        All are moved by a fraction of a pixel: an image as it is would be sharper than every other view, and the
        network would learn to know it by that.
        """
        B, device = images.shape[0], images.device
        unit = 2 * torch.rand(4, B, self.views, device=device) - 1
        unit = unit * torch.cat([unit.new_full((1,), NEAR), unit.new_ones(self.views - 1)])
        shift = torch.rand(2, B, self.views, device=device) - 0.5
        low, high = ([axis[end] for axis in self._log_axes()] for end in (0, -1))
        angle, scale, stretch, shear = (
            torch.where(part < 0, part * -lowest, part * highest) for part, lowest, highest in zip(unit, low, high)
        )
        return Affine.of(x=shift[0], y=shift[1], angle=angle, scale=scale.exp(), stretch=stretch.exp(), shear=shear)

    def _log_axes(self) -> list[list[float]]:
        """Angles, logarithms of scales and stretches, and shears of the range."""
        wide = self.range
        factors = [[math.log(value) for value in axis] for axis in (wide.scales, wide.stretches)]
        angles = [-180.0, 180.0] if wide.full_circle else list(wide.angles)
        return [angles, *factors, list(wide.shears)]


def _of(placement: Placement, classes_BM: Tensor) -> Placement:
    """The placement of these classes only, each (B, M)."""
    return Placement(*(None if part is None else part.gather(1, classes_BM) for part in placement))  # type: ignore[arg-type]


@register_model
def posecaps(image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, **options: Any) -> PoseCaps:
    """0.32 million parameters for 1×28×28 images and 10 classes, decoder not counted."""
    return PoseCaps(image_shape, num_classes, **options)


@register_model
def posecaps_small(image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, **options: Any) -> PoseCaps:
    """For a CPU: a quarter of the channels, and angles up to 45°."""
    small = {"width": 8, "types": 8, "turn": 45.0, "views": 3, "padding": 2, "hidden": 64}
    return PoseCaps(image_shape, num_classes, **{**small, **options})
