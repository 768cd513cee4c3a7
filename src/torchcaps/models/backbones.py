"""Networks that turn an image into a feature map, by name: our own, a user's, and those of timm."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from torchcaps.checks import check_whole
from torchcaps.errors import UserError
from torchcaps.extras import import_extra
from torchcaps.layers.stem import ConvStem
from torchcaps.models.baselines.resnet import Block
from torchcaps.registry import Registry

TIMM = "timm/"  # how the names of timm's networks begin
# Options that say where weights come from. They are not saved, and not read from a saved model, which has its weights.
SOURCES = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")
SMALL_IMAGE, MEDIUM_IMAGE = (
    64,
    128,
)  # longest sides up to which a ResNet keeps the size, or halves it, at its first layer

Registered = TypeVar("Registered", bound=Callable[..., nn.Module])

BACKBONES: Registry[Callable[..., nn.Module]] = Registry("backbone", "register_backbone")


def register_backbone(function: Registered) -> Registered:
    """Register a function that builds a backbone, under its own name; use it as a decorator.

    `backbone_caps` and `backbone_linear` then know the name, and what they build can be saved and loaded.

        @register_backbone
        def my_network(image_shape, width=64):
            return MyNetwork(image_shape[0], width)

    Args:
        function: (image_shape, **options) → a module that maps images (B, C, H, W) to a feature map (B, C', h, w), or
            to a list of maps, of which the last is used.

    Returns:
        The same function.
    """
    BACKBONES.add(function.__name__, function, function)
    return function


def list_backbones() -> list[str]:
    """List the names of backbones, in alphabetical order; those of timm are not among them."""
    return sorted(BACKBONES)


def make_backbone(name: str, image_shape: Sequence[int], options: Mapping[str, Any] | None = None) -> nn.Module:
    """Build a backbone.

    Args:
        name: one of `list_backbones()`, or "timm/" and a name of timm.
        image_shape: (C, H, W) of the images.
        options: arguments of the backbone's function; of timm's those of `timm.create_model`, and `pretrained` may be
            the path of a file of weights.
    """
    given = dict(options or {})
    if name.startswith(TIMM):
        return TimmBackbone(name.removeprefix(TIMM), image_shape, **given)
    make = BACKBONES[name]
    try:
        inspect.signature(make).bind(image_shape, **given)
    except TypeError as error:
        raise UserError(f"backbone {name}: {error}; its options are {_options_of(make)}") from None
    return make(image_shape, **given)


def _options_of(make: Callable[..., nn.Module]) -> str:
    return ", ".join(list(inspect.signature(make).parameters)[1:]) or "none"


class ResNetMaps(nn.Sequential):
    """The residual network of He et al. (2016) without its last layer; large images are halved before the first block.

    Args:
        image_shape: (C, H, W) of the images.
        channels: of each stage. The resolution is halved before every stage but the first.
        blocks: of each stage.
        stride: of the layers before the first stage: 1, 2 or 4. By default 1 up to 64 pixels, 2 up to 128, then 4.
    """

    def __init__(self, image_shape: Sequence[int], channels: Sequence[int], blocks: int, stride: int | None = None):
        if not channels:
            raise UserError("ResNet backbone: channels must name at least one stage, such as [64, 128, 256]")
        check_whole("ResNet backbone", blocks=blocks, **{f"channels[{i}]": each for i, each in enumerate(channels)})
        longest = max(image_shape[1:])
        stride = stride or (1 if longest <= SMALL_IMAGE else 2 if longest <= MEDIUM_IMAGE else 4)
        if stride not in (1, 2, 4):
            raise UserError(f"ResNet backbone: stride must be 1, 2 or 4, got {stride}")
        width = channels[0]
        kernel = 3 if stride == 1 else 7
        stem = nn.Conv2d(image_shape[0], width, kernel, min(stride, 2), padding=kernel // 2, bias=False)
        layers: list[nn.Module] = [stem, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(3, 2, padding=1)] if stride == 4 else []
        for stage, wider in enumerate(channels):
            for block in range(blocks):
                layers.append(Block(width, wider, stride=2 if stage and not block else 1))
                width = wider
        super().__init__(*layers)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


@register_backbone
def resnet(
    image_shape: Sequence[int], channels: Sequence[int] = (16, 32, 64), blocks: int = 1, stride: int | None = None
) -> nn.Module:
    """Build a small residual network, 0.08 million parameters by default; see `ResNetMaps`."""
    return ResNetMaps(image_shape, channels, blocks, stride)


@register_backbone
def resnet18(
    image_shape: Sequence[int],
    channels: Sequence[int] = (64, 128, 256, 512),
    blocks: int = 2,
    stride: int | None = None,
) -> nn.Module:
    """Build a ResNet-18, 11.2 million parameters by default; see `ResNetMaps`."""
    return ResNetMaps(image_shape, channels, blocks, stride)


@register_backbone
def stem(image_shape: Sequence[int], width: int = 16) -> nn.Module:
    """Build the convolutions in front of pose capsules: a map of a quarter of the resolution, 4·width channels."""
    check_whole("stem backbone", width=width)
    return ConvStem(image_shape[0], width)


class TimmBackbone(nn.Module):
    """A network of the package timm that returns its feature maps.

    Args:
        name: of the network in timm.
        image_shape: (C, H, W) of the images.
        pretrained: download timm's weights; or the path of a file with them.
        **options: further arguments of `timm.create_model`, such as out_indices.
    """

    def __init__(self, name: str, image_shape: Sequence[int], pretrained: bool | str = False, **options: Any):
        super().__init__()
        if ":" in name:  # timm would fetch the description of the network, also when a saved model names it
            raise UserError(f"backbone timm/{name}: give the name of one of timm's networks, and its weights as a file")
        if isinstance(pretrained, str):
            options["pretrained_cfg_overlay"] = {"file": pretrained, **options.get("pretrained_cfg_overlay", {})}
        given = {"features_only": True, "in_chans": image_shape[0], "pretrained": bool(pretrained), **options}
        (timm,) = import_extra("timm", "timm")
        try:
            self.network = timm.create_model(name, **given)
            self.out_channels = int(self.network.feature_info.channels()[-1])
        except (RuntimeError, ValueError, TypeError, AttributeError, OSError) as error:
            raise UserError(
                f"backbone timm/{name}: timm cannot build it as an extractor of features: {error}; "
                "timm.list_models() has the names"
            ) from error
        known = getattr(self.network, "pretrained_cfg", None) or getattr(self.network, "default_cfg", None) or {}
        # Of the images that its weights were trained on; a new network needs none.
        self.statistics = {each: tuple(known[each]) for each in ("mean", "std") if pretrained and each in known}

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, C, H, W) to the last feature map (B, out_channels, h, w)."""
        maps: Tensor = self.network(images)[-1]
        channels_last = maps.shape[1] != self.out_channels and maps.shape[-1] == self.out_channels  # as of Swin
        return maps.permute(0, 3, 1, 2) if channels_last else maps


def without_sources(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of a backbone that is built to be filled with saved weights."""
    return {name: value for name, value in (options or {}).items() if name not in SOURCES}


def built_to_be_filled() -> bool:
    """Whether models are now built on the meta device, to be filled with saved weights."""
    return torch.get_default_device().type == "meta"


def cells(image_size: Sequence[int], grid: Sequence[int]) -> tuple[int, int]:
    """Height and width of the part of an image that a place of a grid stands for."""
    return math.ceil(image_size[0] / grid[0]), math.ceil(image_size[1] / grid[1])
