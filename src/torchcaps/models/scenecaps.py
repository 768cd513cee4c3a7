"""Scene capsules: an image is parsed into parts, and the parts into the wholes that they agree on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import check_whole
from torchcaps.errors import UserError
from torchcaps.geometry import Affine, sampling_grid
from torchcaps.layers.part import LABEL, LEVEL, POSE, SIZE, PartCaps, PartMaps, PickedParts
from torchcaps.layers.stem import BlurPool
from torchcaps.layers.whole import WholeCaps
from torchcaps.models.base import ImageModel
from torchcaps.models.registry import register_model
from torchcaps.ops.poses import Wholes
from torchcaps.ops.squash import at_least_float32, no_autocast
from torchcaps.similarity import Similarity

STRIDE = 2  # pixels of the image for one position of the part capsules
DILATIONS = (1, 2, 4, 2, 1)  # of the convolutions at a quarter of the resolution: a position sees 90 pixels
TOLERANCE = (8.0, 90.0, 0.5)  # of votes at first: layouts are random then
RESAMPLED = 0.5  # share of the training views that are turned by any angle; the others by quarters, which blurs nothing
VIEW_SCALE, VIEW_SHIFT = 0.15, 2.0  # of those views: logarithm, and pixels
PRESENT = 0.5
NEGLIGIBLE = 0.2  # presence of parts that are not looked at


class SceneOutput(NamedTuple):
    """What a model that parses scenes returns for a batch of images.

    Attributes:
        lengths: (B, J) presence of the most present object of each class, in [0, 1].
        poses: (B, K, 4) of the objects, the most present first, as the numbers of a `Similarity` in pixels.
        presence: (B, K) in [0, 1].
        types: (B, K, J) 1 at the class of each object, else 0.
        parts: the parts that were found.
        levels: for each layer of wholes what it found; empty if objects are parts.
        losses: with targets: (B,) of each term.
        part_f1: with targets: (B,) F1 of the parts, by type and position.
    """

    lengths: Tensor
    poses: Tensor
    presence: Tensor
    types: Tensor
    parts: PickedParts
    levels: tuple[Wholes, ...]
    losses: dict[str, Tensor] | None = None
    part_f1: Tensor | None = None

    @property
    def label(self) -> Tensor:
        """(B, K) the class of each object."""
        return self.types.argmax(-1)


class SceneCaps(ImageModel):
    """A convolutional network finds parts with poses; layers of `WholeCaps` find the wholes that the parts vote for.

    In training an image is seen turned, so that parts are found at all angles; how parts stand in their wholes is
    learned in the frame of the whole and holds at every angle. See docs/inverse-graphics.md.

    Args:
        image_shape: (C, H, W) of the training images; other heights and widths are accepted.
        num_classes: J.
        levels: names of the objects of each level, parts first; the last are the classes. By default the classes are
            parts themselves, and there are no wholes.
        members: for each level above the parts, and each of its objects, the types of its members.
        symmetry: turns within a full circle that map each part onto itself; 0 for every turn. By default 1.
        width: channels at full resolution; there are twice as many at half resolution.
        turn: largest angle, in degrees, by which training images are turned.
        iterations: of routing.
        max_parts: of an image.
        appearance: numbers that say how a part looks, beside its pose.
        decoder: "dense" draws each part; "none" does not.
        canvas: side of the drawing of a part at scale 1, in pixels.
        hidden: units of the decoder.
        **kwargs: arguments of `ImageModel`.
    """

    task = "detection"
    any_size = True

    def __init__(
        self,
        image_shape: Sequence[int] = (1, 32, 32),
        num_classes: int = 2,
        *,
        levels: Sequence[Sequence[str]] | None = None,
        members: Sequence[Sequence[Sequence[int]]] = (),
        symmetry: Sequence[int] | None = None,
        width: int = 16,
        turn: float = 180.0,
        iterations: int = 3,
        max_parts: int = 24,
        appearance: int = 2,
        decoder: Literal["dense", "none"] = "dense",
        canvas: int = 24,
        hidden: int = 32,
        **kwargs: Any,
    ):
        super().__init__(image_shape, num_classes, **kwargs)
        check_whole("scenecaps", width=width, iterations=iterations, max_parts=max_parts, canvas=canvas, hidden=hidden)
        check_whole("scenecaps", 0, appearance=appearance)
        self.level_names = tuple(map(tuple, [self.class_names] if levels is None else levels))
        self._check(members, turn, decoder)
        self.turn, self.max_parts, self.canvas = turn, max_parts, canvas
        types = len(self.level_names[0])
        self.body = _Body(self.image_shape[0], width)
        self.parts = PartCaps(2 * width, types, symmetry=symmetry, stride=STRIDE, appearance=appearance)
        below = self.parts.symmetry
        wholes = []
        for names, made_of in zip(self.level_names[1:], members):
            wholes.append(
                WholeCaps(
                    len(below),
                    len(names),
                    made_of,
                    symmetry=below,
                    iterations=iterations,
                    tolerance=TOLERANCE,
                    learn_prior=False,
                )
            )
            below = (1,) * len(names)
        self.wholes = nn.ModuleList(wholes)
        pixels = self.image_shape[0] * canvas**2
        self.decoder = (
            nn.Sequential(nn.Linear(types * (1 + appearance), hidden), nn.ReLU(), nn.Linear(hidden, pixels))
            if decoder == "dense"
            else None
        )

    def _check(self, members: Sequence[Any], turn: float, decoder: str) -> None:
        if self.level_names[-1] != self.class_names:
            raise UserError(f"scenecaps: the last level must be the classes {self.class_names}, not {self.level_names}")
        if len(members) != len(self.level_names) - 1:
            raise UserError(
                f"scenecaps: {len(self.level_names)} levels need members for {len(self.level_names) - 1} of them, got "
                f"{len(members)}"
            )
        if not 0 <= turn <= 180:
            raise UserError(f"scenecaps: turn must lie in 0 to 180 degrees, got {turn}")
        if decoder not in ("dense", "none"):
            raise UserError(f"scenecaps: decoder must be 'dense' or 'none', got {decoder!r}")

    def forward(self, images: Tensor, targets: Tensor | None = None, *, iterations: int | None = None) -> SceneOutput:
        """Find the objects in images.

        Args:
            images: (B, C, H, W) in [0, 1].
            targets: (B, N, 8) known objects, as in `torchcaps.data.ObjectDataset`. With them there are losses, and in
                training no objects: these are not needed there, and looking for them takes time.
            iterations: of routing; by default the model's own number.
        """
        self.check_images(images)
        if targets is not None and self.training and self.turn:
            images, targets = self._turned(images, targets)
        maps = self.encode(images)
        with no_autocast(images):
            if targets is None:
                return self._parse(maps, iterations)
            losses, part_f1 = self._losses(maps, images, targets)
            found = self._nothing(maps) if self.training else self._parse(maps, iterations)
            return found._replace(losses=losses, part_f1=part_f1)

    def encode(self, images: Tensor) -> PartMaps:
        """Part capsules at every second pixel of images (B, C, H, W)."""
        return self.parts(self.body(self.normalise(images)))

    def _parse(self, maps: PartMaps, iterations: int | None) -> SceneOutput:
        picked = self.parts.pick(maps, self.max_parts, NEGLIGIBLE)
        pose, presence, types = picked[:3]
        found = []
        for layer in self.wholes:
            wholes = layer(pose, presence, types, iterations=iterations)
            found.append(wholes)
            pose, presence, types = wholes.pose, wholes.presence, wholes.types.to(pose)
        lengths = (presence[..., None] * types).amax(1)
        return SceneOutput(lengths, pose, presence, types, picked, tuple(found))

    def _nothing(self, maps: PartMaps) -> SceneOutput:
        """An output without objects."""
        picked = self.parts.pick(maps, 0, NEGLIGIBLE)
        none = picked.pose.new_zeros(len(picked.pose), 0, self.num_classes)
        return SceneOutput(none.sum(1), picked.pose, picked.presence, none, picked, ())

    def _losses(self, maps: PartMaps, images: Tensor, targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """(B,) of each term, and the F1 of the parts.

        The layers of wholes learn from the poses that are read where parts are known to be.
        """
        objects = at_least_float32(targets)
        level, label = objects[..., LEVEL].long(), objects[..., LABEL].long()
        there, pose = level == 0, objects[..., POSE]
        label_0 = label.where(there, 0)
        found, posed = self.parts.losses(maps, label_0, pose, objects[..., SIZE], there)
        losses = {"presence": found, "pose": posed}
        read, _, appearance = self.parts.read(maps, label_0, pose)
        seen = torch.where(there[..., None], read.detach(), pose)
        if self.wholes:
            losses["layout"] = self._layout_loss(level, label, seen, pose)
        if self.decoder is not None:
            size = images.shape[-2:]
            drawn = self._draw(_or_identity(seen, there), label_0, appearance, size) * there[..., None, None, None]
            losses["reconstruction"] = (drawn.amax(1) - images).square().flatten(1).sum(1)
        return losses, self.parts.f1(maps, label_0, pose, there)

    def _layout_loss(self, level: Tensor, label: Tensor, seen: Tensor, pose: Tensor) -> Tensor:
        """(B,) minus the log-likelihood of the members of the known wholes of all levels, in a mean over the wholes."""
        total = seen.new_zeros(len(seen))
        for number, layer in enumerate(self.wholes, start=1):
            assert isinstance(layer, WholeCaps)
            parts, wholes = level == number - 1, level == number
            types = F.one_hot(label.where(parts, 0), layer.types).to(seen)
            whole = label.where(wholes, 0)
            fits = layer.log_likelihood(seen, parts.to(seen), types, _or_identity(pose, wholes), whole).sum(-1)
            total = total - (fits * wholes).sum(1) / wholes.sum(1).clamp_min(1)
            if self.training:  # wholes are the parts of the next level, and are known as exactly as their votes are
                tolerance = layer.layouts(seen).tolerance.mean(1).detach()[whole]
                step = torch.randn_like(seen) * tolerance / math.sqrt(layer.missing.shape[1])
                disturbed = Similarity(_or_identity(pose, wholes)).compose(Similarity.exp(step)).numbers
                seen = torch.where(wholes[..., None], disturbed, seen)
        return total

    def reconstruct(self, output: SceneOutput, size: Sequence[int], objects: Sequence[int] | None = None) -> Tensor:
        """Draw objects, each by itself.

        Args:
            output: of this model.
            size: (H, W) of the images.
            objects: positions of the K objects to draw; by default of all.

        Returns:
            (B, K, C, H, W) in [0, 1]: the parts that each object took, and where objects are parts, those.
        """
        if self.decoder is None:
            raise UserError("this model has no decoder: train one with model.decoder=dense")
        parts = output.parts
        drawn = self._draw(parts.pose, parts.types.argmax(-1), parts.appearance, size)
        share = parts.presence[..., None] * torch.eye(parts.pose.shape[1], device=drawn.device)[None]
        for wholes in output.levels:
            share = share @ wholes.couplings[..., :-1]
        chosen = range(share.shape[-1]) if objects is None else objects
        # One by one: all objects times all parts, each as large as the image, would not fit in memory.
        each = [(share[..., k, None, None, None] * drawn).amax(1) for k in chosen]
        return torch.stack(each, 1) if each else drawn[:, :0]

    def _draw(self, pose: Tensor, label: Tensor, appearance: Tensor, size: Sequence[int]) -> Tensor:
        """(B, N, C, H, W) each part in an image of its own."""
        assert self.decoder is not None
        H, W = size
        hot = F.one_hot(label, self.parts.types).to(appearance)
        known = torch.cat([torch.ones_like(appearance[..., :1]), appearance], -1)
        pixels = self.decoder((hot[..., None] * known[..., None, :]).flatten(-2))
        canvas = torch.sigmoid(at_least_float32(pixels)).view(-1, self.image_shape[0], self.canvas, self.canvas)
        middle = pose.new_tensor([(W - 1) / 2, (H - 1) / 2, 0, 0])
        placed = Similarity(pose - middle).affine().inverse()
        flat = Affine(placed.linear.flatten(0, 1), placed.shift.flatten(0, 1))
        grid = sampling_grid(flat, (H, W), (self.canvas, self.canvas))
        drawn = F.grid_sample(canvas, grid.to(canvas), mode="bilinear", padding_mode="zeros", align_corners=False)
        return drawn.unflatten(0, pose.shape[:2])

    def _turned(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Training images turned about their centre, with their objects: half of them by quarters, which are exact."""
        B, _, H, W = images.shape
        uniform = 2 * torch.rand(4, B, device=images.device) - 1
        resampled = torch.rand(B, device=images.device) < RESAMPLED
        quarter = 90.0 if H == W else 180.0
        exact = ((uniform[0] * self.turn) / quarter).round() * quarter
        anything = resampled.to(images)
        move = Similarity.of(
            x=VIEW_SHIFT * uniform[1] * anything,
            y=VIEW_SHIFT * uniform[2] * anything,
            angle=torch.where(resampled, self.turn * uniform[0], exact),
            scale=(VIEW_SCALE * uniform[3] * anything).exp(),
        )
        grid = sampling_grid(move.affine().inverse(), (H, W), (H, W))
        seen = F.grid_sample(images, grid, mode="bicubic", padding_mode="zeros", align_corners=False).clamp(0, 1)
        middle = images.new_tensor([(W - 1) / 2, (H - 1) / 2, 0, 0])
        moved = move[:, None].compose(Similarity(targets[..., POSE] - middle)).numbers + middle
        return seen, torch.cat([targets[..., : POSE.start], moved, targets[..., POSE.stop :]], -1)


def _or_identity(pose: Tensor, chosen: Tensor) -> Tensor:
    """Poses (B, N, 4), those that are not chosen (B, N) replaced by the identity."""
    return torch.where(chosen[..., None], pose, pose.new_tensor([0, 0, 1, 0]))


class _Body(nn.Module):
    """An hourglass: convolutions at full, half and a quarter of the resolution, and back to half of it.

    Args:
        channels: of the image.
        width: w, for w, 2w and 4w channels; the result has 2w.
    """

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.fine = nn.Sequential(
            *_conv(channels, width), *_conv(width, width), BlurPool(width), *_conv(width, 2 * width)
        )
        layers: list[nn.Module] = [BlurPool(2 * width)]
        for before, dilation in zip((2, *[4] * (len(DILATIONS) - 1)), DILATIONS):
            layers += _conv(before * width, 4 * width, dilation)
        self.coarse = nn.Sequential(*layers, nn.Conv2d(4 * width, 2 * width, 1))
        self.join = nn.Sequential(*_conv(4 * width, 2 * width), *_conv(2 * width, 2 * width))

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, 2w, ⌈H/2⌉, ⌈W/2⌉)."""
        fine = self.fine(images)
        coarse = self.coarse(fine)
        upsampled = F.interpolate(coarse, size=fine.shape[-2:], mode="bilinear", align_corners=False)
        return self.join(torch.cat([fine, upsampled], 1))


def _conv(before: int, after: int, dilation: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(before, after, 3, padding=dilation, dilation=dilation, bias=False)
    return [conv, nn.BatchNorm2d(after), nn.GELU()]


@register_model
def scenecaps(image_shape: Sequence[int] = (1, 64, 64), num_classes: int = 2, **options: Any) -> SceneCaps:
    """Build a SceneCaps of 0.81 million parameters for crowded scenes, not counting the decoder."""
    return SceneCaps(image_shape, num_classes, **{"width": 32, **options})


@register_model
def scenecaps_small(image_shape: Sequence[int] = (1, 32, 32), num_classes: int = 2, **options: Any) -> SceneCaps:
    """Build a SceneCaps of 0.20 million parameters for a CPU, not counting the decoder."""
    return SceneCaps(image_shape, num_classes, **options)
