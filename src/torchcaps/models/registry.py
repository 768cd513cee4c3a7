"""Models by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from torchcaps.errors import UserError, did_you_mean
from torchcaps.models.base import ImageModel
from torchcaps.models.baselines.cnn import CNN, baseline_cnn, matched_cnn
from torchcaps.models.baselines.pix2pix import Pix2Pix, pix2pix, pix2pix_small
from torchcaps.models.baselines.pooled_cnn import PooledCNN, pooled_cnn
from torchcaps.models.baselines.resnet import ResNet, small_resnet
from torchcaps.models.baselines.strong_cnn import StrongCNN, strong_cnn
from torchcaps.models.baselines.unet import UNet, unet
from torchcaps.models.capsnet import CapsNet, capsnet, capsnet_small
from torchcaps.models.capspix2pix import CapsPix2Pix, capspix2pix, capspix2pix_small
from torchcaps.models.efficient_capsnet import EfficientCapsNet, efficient_capsnet
from torchcaps.models.em_capsnet import EMCapsNet, em_capsnet, em_capsnet_large
from torchcaps.models.ported import PortedCapsNet
from torchcaps.models.posecaps import PoseCaps, posecaps, posecaps_small
from torchcaps.models.segcaps import SegCaps, segcaps

MODELS: dict[str, Callable[..., ImageModel]] = {
    "posecaps": posecaps,
    "posecaps_small": posecaps_small,
    "capsnet": capsnet,
    "capsnet_small": capsnet_small,
    "efficient_capsnet": efficient_capsnet,
    "em_capsnet": em_capsnet,
    "em_capsnet_large": em_capsnet_large,
    "baseline_cnn": baseline_cnn,
    "matched_cnn": matched_cnn,
    "strong_cnn": strong_cnn,
    "pooled_cnn": pooled_cnn,
    "small_resnet": small_resnet,
    "segcaps": segcaps,
    "unet": unet,
    "capspix2pix": capspix2pix,
    "capspix2pix_small": capspix2pix_small,
    "pix2pix": pix2pix,
    "pix2pix_small": pix2pix_small,
}
CLASSES: dict[str, type[ImageModel]] = {
    "CapsNet": CapsNet,
    "CapsPix2Pix": CapsPix2Pix,
    "CNN": CNN,
    "EMCapsNet": EMCapsNet,
    "EfficientCapsNet": EfficientCapsNet,
    "Pix2Pix": Pix2Pix,
    "PooledCNN": PooledCNN,
    "PortedCapsNet": PortedCapsNet,
    "PoseCaps": PoseCaps,
    "ResNet": ResNet,
    "SegCaps": SegCaps,
    "StrongCNN": StrongCNN,
    "UNet": UNet,
}  # what a saved model's config may name


def create_model(name: str, **options: Any) -> ImageModel:
    """A new model by name; the options are those of its function in `torchcaps.models`.

    create_model("capsnet", image_shape=(1, 28, 28), num_classes=10)
    """
    if name not in MODELS:
        raise UserError(f"there is no model called {name!r}: {did_you_mean(name, MODELS)}")
    try:
        return MODELS[name](**options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise UserError(f"model {name}: {str(error).split('__init__() ')[-1]}") from error


def accepts_option(name: str, option: str) -> bool:
    """Whether a model can be given an option: one of its function, or of the class that this returns."""
    function = MODELS.get(name)
    if function is None:
        return False
    kind = get_type_hints(function).get("return")
    makers = [function, *([] if kind is None else [kind.__init__])]
    return any(option in inspect.signature(each).parameters for each in makers)


def list_models() -> list[str]:
    """The names that create_model knows."""
    return sorted(MODELS)
