"""Any network with a head of capsules, and the same network with a linear head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.checks import check_whole
from torchcaps.layers import CapsHead, ConvDecoder, Decoder, DenseCaps, EnlargedDecoder, make_decoder
from torchcaps.layers.head import feature_shape
from torchcaps.models.backbones import built_to_be_filled, cells, make_backbone, without_sources
from torchcaps.models.base import CapsuleModel, ImageModel, constant_device
from torchcaps.models.baselines.mean_pooled import MeanPooled
from torchcaps.models.registry import register_model


class BackboneCaps(CapsuleModel):
    """A backbone, primary capsules at each place of its feature map, class capsules; see `CapsHead`.

    A decoder draws the image reduced to `decoded_side`; see `EnlargedDecoder`.

    Args:
        image_shape: (C, H, W) of the images.
        num_classes: J.
        backbone: a name of `list_backbones()`, or "timm/" and a name of timm.
        backbone_options: of that backbone, such as {"channels": [64, 128, 256]} or {"pretrained": True}.
        types: of primary capsules.
        dim: dimensions of a primary capsule.
        class_dim: dimensions of a class capsule.
        routing: from primary to class capsules.
        iterations: of routing.
        leaky: whether routing has one more parent, which belongs to no class.
        grid: largest number of places in each direction; a larger feature map is first averaged over windows.
        decoder: "dense", "conv", "none", or "auto": dense up to 4,096 values of the reduced image.
        decoded_side: longest side of the reduced image, in pixels.
        hidden: units of the dense decoder's hidden layers.
        **kwargs: arguments of `ImageModel`; mean and std are by default those of pretrained weights.
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (1, 28, 28),
        num_classes: int = 10,
        *,
        backbone: str = "resnet",
        backbone_options: Mapping[str, Any] | None = None,
        types: int = 16,
        dim: int = 8,
        class_dim: int = 16,
        routing: str = "dynamic",
        iterations: int = 3,
        leaky: bool = False,
        grid: int = 4,
        decoder: Literal["auto", "dense", "conv", "none"] = "none",
        decoded_side: int = 32,
        hidden: Sequence[int] = (512, 1024),
        **kwargs: Any,
    ):
        super().__init__(image_shape, num_classes, **kwargs)
        check_whole("backbone_caps", decoded_side=decoded_side)
        if routing == "em":  # its activations are not lengths, and rarely reach the margins
            self.objective = "spread"
        self.backbone = _attach(self, backbone, backbone_options, kwargs)
        self.head = CapsHead.behind(
            self.backbone,
            self.image_shape,
            self.num_classes,
            types=types,
            dim=dim,
            class_dim=class_dim,
            routing=routing,
            iterations=iterations,
            leaky=leaky,
            grid=grid,
        )
        self.grid = self.head.grid
        self.decoder = _reduced_decoder(decoder, self, class_dim, decoded_side, tuple(hidden))

    @property
    def classes(self) -> DenseCaps:  # type: ignore[override]  # it is part of the head
        """The layer of class capsules."""
        return self.head.classes

    def children_of(self, images: Tensor) -> Capsules:
        """Compute the primary capsules, see `CapsuleModel.children_of`."""
        return self.head.children_of(self.backbone(self.normalise(images)))

    @property
    def convolutions(self) -> list[nn.Conv2d]:
        """One convolution with the places of the capsules: each is shown on the cell of the grid that it stands for,
        because a deep backbone sees most of the image from every place."""
        cell = cells(self.image_shape[1:], self.grid)
        return [nn.Conv2d(1, 1, cell, stride=cell, device="meta")]


class BackboneLinear(MeanPooled):
    """A backbone, the mean over the places of its feature map, one linear layer, softmax.

    Args:
        image_shape: (C, H, W) of the images.
        num_classes: J.
        backbone: a name of `list_backbones()`, or "timm/" and a name of timm.
        backbone_options: of that backbone.
        multi_label: whether each class has its own sigmoid instead of one softmax over all.
        **kwargs: arguments of `ImageModel`; mean and std are by default those of pretrained weights.
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (1, 28, 28),
        num_classes: int = 10,
        *,
        backbone: str = "resnet",
        backbone_options: Mapping[str, Any] | None = None,
        multi_label: bool = False,
        **kwargs: Any,
    ):
        super().__init__(image_shape, num_classes, **kwargs)
        self.multi_label = multi_label
        self.backbone = _attach(self, backbone, backbone_options, kwargs)
        self.head = nn.Linear(feature_shape(self.backbone, self.image_shape)[0], self.num_classes)

    @property
    def layers(self) -> nn.Module:  # type: ignore[override]  # what the base class calls the backbone
        """The backbone."""
        return self.backbone


@register_model
def backbone_caps(image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, **options: Any) -> BackboneCaps:
    """Build a backbone with a head of capsules: a small ResNet, 0.1 million parameters with ten classes by default."""
    return BackboneCaps(image_shape, num_classes, **options)


@register_model
def backbone_linear(image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, **options: Any) -> BackboneLinear:
    """Build the same network with a linear head, to compare with."""
    return BackboneLinear(image_shape, num_classes, **options)


def _reduced_decoder(
    kind: str, model: ImageModel, dim: int, longest: int, hidden: tuple[int, ...]
) -> Decoder | ConvDecoder | EnlargedDecoder | None:
    """The decoder of images that are reduced until no side is longer than `longest`."""
    colours, *sides = model.image_shape
    reduction = math.ceil(max(sides) / longest)
    height, width = (math.ceil(side / reduction) for side in sides)
    decoder = make_decoder(kind, model.num_classes, dim, (colours, height, width), hidden)
    return decoder if decoder is None or reduction == 1 else EnlargedDecoder(decoder, model.image_shape)


def _attach(model: ImageModel, name: str, options: Mapping[str, Any] | None, given: Mapping[str, Any]) -> nn.Module:
    """Build the backbone of a model. Its pretrained weights are fetched once: afterwards they are saved with the model,
    as are the mean and std that belong to them."""
    kept = without_sources(options)
    network = make_backbone(name, model.image_shape, kept if built_to_be_filled() else options)
    model.arguments = {**model.arguments, "backbone_options": kept or None}
    for each, values in vars(network).pop("statistics", {}).items():
        if given.get(each) is None and len(values) == model.image_shape[0]:
            model.arguments[each] = values
            setattr(model, each, torch.tensor(values, device=constant_device()).view(-1, 1, 1))
    return network
