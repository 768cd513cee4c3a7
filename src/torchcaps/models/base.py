"""The base classes of the models, and what a model returns."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

from torchcaps.capsules import Capsules, as_capsules
from torchcaps.checks import check_whole
from torchcaps.errors import UserError
from torchcaps.layers import ConvDecoder, Decoder, DenseCaps, EnlargedDecoder, anneal, mask_capsules
from torchcaps.losses import check_batch, check_ids
from torchcaps.ops.dispatch import eager


class Placement(NamedTuple):
    """The pose of each class in image coordinates, as if the class were present.

    Attributes:
        x: (B, J) centre in pixels; 0 is the middle of the leftmost pixel.
        y: (B, J) centre in pixels; 0 is the middle of the topmost pixel.
        angle: (B, J) degrees, counter-clockwise, in (-180, 180].
        scale: (B, J) size relative to the mean of the training images.
        spread: (B, J) standard deviation of the angle over the views, in degrees.
        stretch: (B, J) width relative to height; None if the model does not predict it.
        shear: (B, J) pixels to the right for each pixel up; None if the model does not predict it.
        thickness: (B, J) mean stroke width in pixels; None if the model does not predict it.
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
    """Base class of all models. A model carries everything that is needed to apply it to an image file.

    A subclass passes its unused keyword arguments on to this class. To make it known to `create_model` and `load`, see
    `register_model`.

    Args:
        image_shape: (C, H, W) of the input of `forward`, with values in [0, 1].
        num_classes: J.
        class_names: J names; by default "0", "1", …
        mean: (C,) subtracted inside the model, so that reconstructions are compared with images in [0, 1].
        std: (C,) divided by inside the model.
        resize_to: (H, W) that an image file is resized to before the centre is cropped to `image_shape`; by default the
            size in `image_shape`.
    """

    task: str = "classification"  # or "detection", "segmentation", "synthesis"
    any_size: bool = False  # whether it takes images of other heights and widths than those of image_shape
    reads_placement: bool = False  # whether it reads the position, angle and scale of each class
    routes_grid: bool = False  # whether it routes a grid of primary capsules to class capsules
    objective: str = "margin"  # default loss; a recipe may choose another
    own_losses: Mapping[str, float] = MappingProxyType({})  # loss terms in its output, with their default weights
    arguments: dict[str, Any]  # of the constructor; saved with the model
    mean: Tensor | None
    std: Tensor | None

    def __new__(cls, *args: Any, **kwargs: Any) -> ImageModel:
        instance = super().__new__(cls)
        bound = inspect.signature(cls.__init__).bind_partial(instance, *args, **kwargs)
        bound.apply_defaults()
        arguments = dict(list(bound.arguments.items())[1:])  # without self
        kinds = bound.signature.parameters
        for name in [name for name in arguments if kinds[name].kind is inspect.Parameter.VAR_KEYWORD]:
            arguments |= arguments.pop(name)
        object.__setattr__(instance, "arguments", arguments)
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
        self.image_shape = _checked_shape(name, image_shape)
        check_whole(name, num_classes=num_classes)
        self.num_classes = _whole(num_classes)
        self.class_names = tuple(class_names or (str(index) for index in range(self.num_classes)))
        if len(self.class_names) != self.num_classes:
            raise UserError(f"{name}: {len(self.class_names)} class names were given for {self.num_classes} classes")
        self.resize_to = tuple(resize_to) if resize_to else self.image_shape[1:]
        for label, values in (("mean", mean), ("std", std)):
            if values is not None and (not hasattr(values, "__len__") or len(values) != self.image_shape[0]):
                raise UserError(
                    f"{name}: {label} must have one value for each of {self.image_shape[0]} channels, got {values}"
                )
        self.trained_by: dict[str, Any] = {}  # recipe name, seed and data of the run that trained it
        self.none_below: float | None = None  # familiarity below which the answer is "none of these"; set by training
        self.register_buffer("mean", _per_channel(mean), persistent=False)
        self.register_buffer("std", _per_channel(std), persistent=False)

    def normalise(self, images: Tensor) -> Tensor:
        """Check the shape of a batch, subtract `mean` and divide by `std`.

        Args:
            images: (B, C, H, W) in [0, 1].
        """
        self.check_images(images)
        return self._scaled(images)

    def check_images(self, images: Tensor) -> None:
        """Raise an error unless `images` is a floating-point tensor (B, C, H, W) with the model's C, H and W.

        Models with `any_size` take any H and W.
        """
        name = type(self).__name__
        _check_tensor(name, images)
        if not self._fits(images):
            hint = ""
            if images.ndim == 3 and self._fits(images[None]):
                hint = "; a batch has one more axis: use images[None]"
            elif images.ndim == 4 and self._fits(images.permute(0, 3, 1, 2)):
                hint = "; the channels come first: use images.permute(0, 3, 1, 2)"
            C, H, W = (self.image_shape[0], "H", "W") if self.any_size else self.image_shape
            raise ValueError(f"{name}: expected images of shape (B, {C}, {H}, {W}), got {tuple(images.shape)}{hint}")
        if not images.is_floating_point():
            raise TypeError(f"{name}: expected floats in [0, 1], got {images.dtype}; use model.prepare(images)")

    def check_targets(self, images: Tensor, targets: Tensor | None, each: Tensor | None = None) -> None:
        """Raise an error unless there are targets for as many images, and of the model's classes.

        Whether ids are in range is looked at on a CPU only, and not in traced programs: a GPU would have to be waited
        for.

        Args:
            images: (B, C, H, W).
            targets: (B,) class ids, (B, J) multi-hot, or None.
            each: (B, M) class ids, or None.
        """
        if targets is None and each is None:
            return
        self.check_images(images)
        name = type(self).__name__
        for given, several in ((targets, True), (each, False)):
            if given is None:
                continue
            check_batch(name, images, given)
            if several and given.ndim != 1:
                if given.shape[1:] != (self.num_classes,):
                    raise ValueError(
                        f"{name}: targets must be (B,) class ids or (B, {self.num_classes}) multi-hot, got "
                        f"{tuple(given.shape)}"
                    )
            elif given.is_cpu and eager((given,)):
                check_ids(name, given, self.num_classes)

    def _fits(self, images: Tensor) -> bool:
        axes = 2 if self.any_size else 4  # of those that the model knows
        return images.ndim == 4 and images.shape[1:axes] == self.image_shape[: axes - 1]

    def _scaled(self, images: Tensor) -> Tensor:
        if self.mean is not None:
            images = images - self.mean
        return images if self.std is None else images / self.std

    def prepare(self, images: Tensor) -> Tensor:
        """Convert images to what `forward` takes; larger images are cropped to their centre.

        Args:
            images: (B, C, H', W') uint8, or float in [0, 1].

        Returns:
            (B, C, H, W) float32 in [0, 1], on the model's device; models with `any_size` keep the size.
        """
        name, (channels, H, W) = f"{type(self).__name__}.prepare", self.image_shape
        _check_tensor(name, images)
        if images.ndim != 4 or images.shape[1] != channels:
            raise ValueError(f"{name}: expected images of shape (B, {channels}, H, W), got {tuple(images.shape)}")
        if self.any_size:
            H, W = images.shape[2:]
        if images.shape[2] < H or images.shape[3] < W:
            raise ValueError(
                f"{name}: images of shape {tuple(images.shape)} are smaller than {channels}×{H}×{W}; resize them to "
                f"{self.resize_to[0]}×{self.resize_to[1]} first"
            )
        top, left = (images.shape[-2] - H) // 2, (images.shape[-1] - W) // 2
        cut = images[..., top : top + H, left : left + W]
        values = cut.to(self.device, torch.float32)
        return values if images.is_floating_point() else values / 255

    def anneal(self, progress: float) -> None:
        """Set hyperparameters that follow a schedule: the inverse temperature of EM routing, if any layer has one.

        Args:
            progress: the share of training that is done, 0 to 1.
        """
        anneal(self, progress)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device

    def parameter_count(self) -> int:
        """Count the parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    # Hooks of the mixin: save_pretrained, from_pretrained and push_to_hub use the same files as save and load.
    def _save_pretrained(self, save_directory: Path) -> None:
        from torchcaps.models.files import save

        save(self, save_directory)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, map_location: str = "cpu", **options: Any) -> ImageModel:
        from torchcaps.models.files import load

        model = load(model_id, device=map_location, hub={k: v for k, v in options.items() if k in _HUB_OPTIONS})
        changed = sorted(set(options) & set(model.arguments))
        if changed:
            raise UserError(f"from_pretrained: a saved model keeps its arguments; omit {', '.join(changed)}")
        if not isinstance(model, cls):
            raise UserError(f"{model_id} holds a {type(model).__name__}, not a {cls.__name__}: use torchcaps.load")
        return model


class CapsuleModel(ImageModel):
    """Base class of models that route primary capsules to class capsules and reconstruct the image from one of them."""

    routes_grid = True
    classes: DenseCaps
    decoder: Decoder | ConvDecoder | EnlargedDecoder | None
    grid: tuple[int, ...]  # rows and columns of the primary capsules

    def children_of(self, images: Tensor) -> Capsules:
        """Compute the primary capsules.

        Args:
            images: (B, C, H, W) in [0, 1].

        Returns:
            (B, I, K) poses; I runs over types, then over rows and columns of `grid`.
        """
        raise NotImplementedError

    @property
    def convolutions(self) -> list[nn.Conv2d]:
        """The convolutions between image and primary capsules, which determine the receptive field of a capsule."""
        raise NotImplementedError

    def forward(self, images: Tensor, targets: Tensor | None = None, *, each: Tensor | None = None) -> Output:
        """Classify images.

        Args:
            images: (B, C, H, W) in [0, 1].
            targets: (B,) class ids or (B, J) multi-hot: the classes to reconstruct; by default the longest capsule.
            each: (B, M) class ids, each reconstructed separately.

        Returns:
            Lengths, poses and, with a decoder, a reconstruction (B, C, H, W), or (B, M, C, H, W) with `each`.
        """
        if self.decoder is None:  # else it checks them
            self.check_targets(images, targets, each)
        parents = self.classes(self.children_of(images))
        drawn = self.reconstruct(parents, targets) if each is None else self.reconstruct_each(parents, each)
        return Output(parents.activation, parents.pose, drawn)

    def reconstruct(self, capsules: Capsules | Tensor, targets: Tensor | None = None) -> Tensor | None:
        """Decode the chosen class capsules to an image; None without a decoder.

        Args:
            capsules: (B, J, D) poses of the classes.
            targets: (B,) class ids or (B, J) multi-hot; by default the longest capsule.

        Returns:
            (B, C, H, W) in [0, 1].
        """
        return None if self.decoder is None else self.decoder(mask_capsules(capsules, targets))

    def reconstruct_each(self, capsules: Capsules | Tensor, classes_BM: Tensor) -> Tensor | None:
        """Decode each of several classes separately; None without a decoder.

        Args:
            capsules: (B, J, D) poses of the classes.
            classes_BM: (B, M) class ids.

        Returns:
            (B, M, C, H, W) in [0, 1].
        """
        M = classes_BM.shape[1]
        poses = as_capsules(capsules, "reconstruct_each").pose.repeat_interleave(M, dim=0)
        drawn = self.reconstruct(poses, classes_BM.flatten())
        return None if drawn is None else drawn.unflatten(0, (-1, M))


_HUB_OPTIONS = ("revision", "cache_dir", "force_download", "local_files_only", "token")


def constant_device() -> torch.device:
    """The device for tensors that are computed from arguments and not saved: the default device, but never meta.

    `load` builds a model on the meta device and fills in the saved tensors only.
    """
    default = torch.get_default_device()
    return torch.device("cpu") if default.type == "meta" else default


def _check_tensor(name: str, images: Any) -> None:
    if not isinstance(images, Tensor):
        raise TypeError(
            f"{name}: expected a tensor of images, got {type(images).__name__}; use "
            "model.prepare(torch.as_tensor(images)) with images (B, C, H, W)"
        )


def _checked_shape(name: str, image_shape: Any) -> tuple[int, int, int]:
    """(C, H, W) as integers; raise a UserError for anything else."""
    shape = tuple(image_shape) if isinstance(image_shape, Iterable) else (image_shape,)
    if len(shape) != 3 or min(map(_whole, shape)) < 1:
        shown = image_shape if len(shape) == 1 else shape
        raise UserError(f"{name}: image_shape must be (channels, height, width), such as (1, 28, 28), got {shown}")
    C, H, W = (_whole(side) for side in shape)
    if W in (1, 3) and C > 4 and H > 4:
        raise UserError(
            f"{name}: image_shape must be (channels, height, width), and {shape} would be {C} channels of {H}×{W} "
            f"pixels; for images of {C}×{H} give ({W}, {C}, {H})"
        )
    return C, H, W


def _whole(value: Any) -> int:
    """The value as an integer; 0 for what is none, such as 2.5 or a string."""
    try:
        return operator.index(value)
    except TypeError:
        return 0


def _per_channel(values: Sequence[float] | None) -> Tensor | None:
    return None if values is None else torch.tensor(list(values), device=constant_device()).view(-1, 1, 1)
