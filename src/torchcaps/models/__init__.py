"""Networks by paper, and the ways to make, save and load them."""

from torchcaps.models.base import ImageModel, Output
from torchcaps.models.baselines.cnn import CNN, baseline_cnn, matched_cnn
from torchcaps.models.capsnet import CapsNet, capsnet, capsnet_small
from torchcaps.models.files import load, save, shipped_models
from torchcaps.models.registry import create_model, list_models

__all__ = [
    "CNN",
    "CapsNet",
    "ImageModel",
    "Output",
    "baseline_cnn",
    "capsnet",
    "capsnet_small",
    "create_model",
    "list_models",
    "load",
    "matched_cnn",
    "save",
    "shipped_models",
]
