"""Networks by paper, and the ways to make, save and load them."""

from torchcaps.models.base import CapsuleModel, ImageModel, Output
from torchcaps.models.baselines.cnn import CNN, baseline_cnn, matched_cnn
from torchcaps.models.baselines.unet import UNet, unet
from torchcaps.models.capsnet import CapsNet, capsnet, capsnet_small
from torchcaps.models.efficient_capsnet import EfficientCapsNet, efficient_capsnet
from torchcaps.models.em_capsnet import EMCapsNet, em_capsnet, em_capsnet_large
from torchcaps.models.files import load, save, shipped_models
from torchcaps.models.pixels import PixelModel
from torchcaps.models.registry import create_model, list_models
from torchcaps.models.segcaps import SegCaps, segcaps

__all__ = [
    "CNN",
    "CapsNet",
    "CapsuleModel",
    "EMCapsNet",
    "EfficientCapsNet",
    "ImageModel",
    "Output",
    "PixelModel",
    "SegCaps",
    "UNet",
    "baseline_cnn",
    "capsnet",
    "capsnet_small",
    "create_model",
    "efficient_capsnet",
    "em_capsnet",
    "em_capsnet_large",
    "list_models",
    "load",
    "matched_cnn",
    "save",
    "segcaps",
    "shipped_models",
    "unet",
]
