"""Networks by paper, and the ways to make, save and load them."""

from torchcaps.models.base import CapsuleModel, ImageModel, Output
from torchcaps.models.baselines.cnn import CNN, baseline_cnn, matched_cnn
from torchcaps.models.capsnet import CapsNet, capsnet, capsnet_small
from torchcaps.models.efficient_capsnet import EfficientCapsNet, efficient_capsnet
from torchcaps.models.em_capsnet import EMCapsNet, em_capsnet, em_capsnet_large
from torchcaps.models.files import load, save, shipped_models
from torchcaps.models.registry import create_model, list_models

__all__ = [
    "CNN",
    "CapsNet",
    "CapsuleModel",
    "EMCapsNet",
    "EfficientCapsNet",
    "ImageModel",
    "Output",
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
    "shipped_models",
]
