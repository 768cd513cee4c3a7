"""What every model that sees images has in common: what it takes, what it answers, how it is saved."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

from torchcaps.capsules import Capsules, as_capsules
from torchcaps.errors import UserError
from torchcaps.layers import ConvDecoder, Decoder, DenseCaps, mask_capsules


class Placement(NamedTuple):
    """How each class would stand in the image if it were there, each (B, J).

    Attributes:
        x, y: of its centre, in pixels; 0 is the middle of the leftmost, or topmost, pixel.
        angle: degrees, counter-clockwise, in (-180, 180].
        scale: 1 is the mean size of the training images.
        spread: how far the views disagree about the angle: a standard deviation, in degrees.
        stretch: how much wider than high it has become; None if the model does not read it.
        shear: pixels to the right for each pixel up; None if the model does not read it.
        thickness: mean width of its strokes, in pixels; None if the model does not read it.
    """

    x: Tensor
    y: Tensor
    angle: Tensor
    scale: Tensor
    spread: Tensor
    stretch: Tensor | None = None
    shear: Tensor | None = None
    thickness: Tensor | None = None


class Output(NamedTuple):
    """What a classifier returns for a batch of images; fields that it does not compute are None.

    Attributes:
        lengths: (B, J) presence of each class, in [0, 1].
        poses: (B, J, D) class capsules.
        reconstruction: (B, C, H, W) the image as the chosen capsules describe it; (B, M, C, H, W) one for each of M.
        logits: (B, J) of models that end in a softmax, whose probabilities are the lengths.
        placement: position, angle and scale of each class.
        disagreement: (B,) in training, how far the views of an image disagree about the placement.
        absence: (B,) in training, how present classes are in images of nothing.
    """

    lengths: Tensor
    poses: Tensor | None = None
    reconstruction: Tensor | None = None
    logits: Tensor | None = None
    placement: Placement | None = None
    disagreement: Tensor | None = None
    absence: Tensor | None = None


class SegmentationOutput(NamedTuple):
    """What a segmentation model returns for a batch of images.

    Attributes:
        probabilities: (B, K, H, W) of each class at each pixel; K is 1 for background and foreground.
        poses: (B, K, D, H, W) the class capsules.
        reconstruction: (B, C, H, W) the image where it is not background.
        logits: (B, K, H, W) of models that end in a sigmoid or softmax.
    """

    probabilities: Tensor
    poses: Tensor | None = None
    reconstruction: Tensor | None = None
    logits: Tensor | None = None


class ImageModel(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="torchcaps",
    tags=["capsule-network", "image-classification"],
):
    """Base of the models. It carries all that is needed to use it on an image file.

    image_shape  (C, H, W) of what forward takes: values 0 to 1, as `prepare` makes them from uint8
    num_classes  J
    class_names  one word a class; "0", "1", … by default
    mean, std    per channel; applied inside the model, so that reconstructions are compared with images in [0, 1]
    resize_to    (H, W) an image file is brought to before the centre H × W is cut out; by default image_shape itself
    """

    task: str = "classification"  # or "segmentation", "synthesis"
    reads_placement: bool = False  # whether it reads the position, angle and scale of each class
    routes_grid: bool = False  # whether it routes a grid of primary capsules to class capsules
    objective: str = "margin"  # the loss it is trained with unless a recipe says otherwise
    own_losses: Mapping[str, float] = MappingProxyType({})  # terms that its output has, and their usual weights
    arguments: dict[str, Any]  # what the model was made with: enough to make it again
    mean: Tensor | None
    std: Tensor | None

    def __new__(cls, *args: Any, **kwargs: Any) -> ImageModel:
        instance = super().__new__(cls)
        bound = inspect.signature(cls.__init__).bind_partial(instance, *args, **kwargs)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if name not in ("self", "about")}
        object.__setattr__(instance, "arguments", {**arguments, **bound.arguments.get("about", {})})
        return instance

    def __init__(
        self,
        image_shape: Sequence[int],
        num_classes: int,
        *,
        class_names: Sequence[str] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        resize_to: Sequence[int] | None = None,
    ):
        super().__init__()
        name = type(self).__name__
        if len(image_shape) != 3 or min(image_shape) < 1:
            raise UserError(f"{name}: image_shape must be (channels, height, width), got {tuple(image_shape)}")
        if num_classes < 1:
            raise UserError(f"{name}: num_classes must be at least 1, got {num_classes}")
        self.image_shape: tuple[int, int, int] = tuple(image_shape)  # type: ignore[assignment]
        self.num_classes = num_classes
        self.class_names = tuple(class_names or (str(index) for index in range(num_classes)))
        if len(self.class_names) != num_classes:
            raise UserError(f"{name}: {len(self.class_names)} class names were given for {num_classes} classes")
        self.resize_to = tuple(resize_to) if resize_to else self.image_shape[1:]
        for label, values in (("mean", mean), ("std", std)):
            if values is not None and len(values) != self.image_shape[0]:
                raise UserError(f"{name}: {label} must have one value for each of {self.image_shape[0]} channels")
        self.trained_by: dict[str, Any] = {}  # recipe name, seed and data of the run that trained it, for `eval`
        self.none_below: float | None = None  # familiarity under which the answer is "none of these"; set by training
        self.register_buffer("mean", _per_channel(mean), persistent=False)
        self.register_buffer("std", _per_channel(std), persistent=False)

    def normalise(self, images: Tensor) -> Tensor:
        """Check a batch (B, C, H, W) of values in [0, 1]; bring it to the mean and std the model was trained with."""
        self.check_images(images)
        return self._scaled(images)

    def check_images(self, images: Tensor) -> None:
        """Refuse a batch that is not (B, C, H, W) with the model's C, H and W."""
        if images.ndim != 4 or images.shape[1:] != self.image_shape:
            raise ValueError(
                f"{type(self).__name__}: expected images of shape (B, {', '.join(map(str, self.image_shape))}), "
                f"got {tuple(images.shape)}"
            )

    def _scaled(self, images: Tensor) -> Tensor:
        if self.mean is not None:
            images = images - self.mean
        return images if self.std is None else images / self.std

    def prepare(self, images: Tensor) -> Tensor:
        """uint8, or float in [0, 1], (B, C, H', W') → float (B, C, H, W) in [0, 1]; of larger images the centre."""
        channels, H, W = self.image_shape
        if images.ndim != 4 or images.shape[1] != channels or images.shape[2] < H or images.shape[3] < W:
            raise ValueError(
                f"{type(self).__name__}.prepare: images of shape {tuple(images.shape)} do not hold {channels}×{H}×{W}; "
                f"resize them to {self.resize_to[0]}×{self.resize_to[1]} first"
            )
        top, left = (images.shape[-2] - H) // 2, (images.shape[-1] - W) // 2
        cut = images[..., top : top + H, left : left + W]
        values = cut.to(self.device, torch.float32)
        return values if images.is_floating_point() else values / 255

    def anneal(self, progress: float) -> None:
        """Set what changes in the course of training, 0 to 1; most models have nothing of the kind."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    # The mixin's hooks, so that save_pretrained, from_pretrained and push_to_hub use the same files as save and load.
    def _save_pretrained(self, save_directory: Path) -> None:
        from torchcaps.models.files import write_model

        write_model(self, Path(save_directory))

    @classmethod
    def _from_pretrained(cls, *, model_id: str, map_location: str = "cpu", **options: Any) -> ImageModel:
        from torchcaps.models.files import load

        model = load(model_id, device=map_location, hub={k: v for k, v in options.items() if k in _HUB_OPTIONS})
        changed = sorted(set(options) & set(model.arguments))
        if changed:
            raise UserError(f"from_pretrained: a saved model keeps its arguments; leave {', '.join(changed)} away")
        if not isinstance(model, cls):
            raise UserError(f"{model_id} holds a {type(model).__name__}, not a {cls.__name__}: use torchcaps.load")
        return model


class CapsuleModel(ImageModel):
    """Base of the models that route primary capsules to one capsule for each class, and draw what one of those saw."""

    routes_grid = True
    classes: DenseCaps
    decoder: Decoder | ConvDecoder | None
    grid: tuple[int, ...]  # rows and columns of the primary capsules

    def children_of(self, images: Tensor) -> Capsules:
        """The primary capsules (B, I, K); I counts types, then rows, then columns of `grid`."""
        raise NotImplementedError

    @property
    def convolutions(self) -> list[nn.Conv2d]:
        """From the image to the primary capsules: they say where in the image a capsule looks."""
        raise NotImplementedError

    def forward(self, images: Tensor, targets: Tensor | None = None, *, each: Tensor | None = None) -> Output:
        """images (B, C, H, W) in [0, 1]; targets choose what the decoder sees, else the longest capsule does.

        each  (B, M) class ids: every one of them is reconstructed by itself, (B, M, C, H, W)
        """
        parents = self.classes(self.children_of(images))
        drawn = self.reconstruct(parents, targets) if each is None else self.reconstruct_each(parents, each)
        return Output(parents.activation, parents.pose, drawn)

    def reconstruct(self, capsules: Capsules | Tensor, targets: Tensor | None = None) -> Tensor | None:
        """The image (B, C, H, W) that the chosen class capsules (B, J, D) describe."""
        return None if self.decoder is None else self.decoder(mask_capsules(capsules, targets))

    def reconstruct_each(self, capsules: Capsules | Tensor, classes_BM: Tensor) -> Tensor | None:
        """An image for each of the classes (B, M), as its capsule alone describes it: (B, M, C, H, W)."""
        M = classes_BM.shape[1]
        poses = as_capsules(capsules).pose.repeat_interleave(M, dim=0)
        drawn = self.reconstruct(poses, classes_BM.flatten())
        return None if drawn is None else drawn.unflatten(0, (-1, M))


_HUB_OPTIONS = ("revision", "cache_dir", "force_download", "local_files_only", "token")


def _per_channel(values: Sequence[float] | None) -> Tensor | None:
    return None if values is None else torch.tensor(list(values)).view(-1, 1, 1)
