"""Networks by paper, and the ways to make, save and load them."""

from torchcaps.models.backbone_caps import BackboneCaps, BackboneLinear, backbone_caps, backbone_linear
from torchcaps.models.backbones import list_backbones, register_backbone
from torchcaps.models.base import CapsuleModel, ImageModel, Output, Placement, SegmentationOutput
from torchcaps.models.baselines.cnn import CNN, baseline_cnn, matched_cnn
from torchcaps.models.baselines.pix2pix import Pix2Pix, pix2pix, pix2pix_small
from torchcaps.models.baselines.pooled_cnn import PooledCNN, pooled_cnn
from torchcaps.models.baselines.resnet import ResNet, small_resnet
from torchcaps.models.baselines.strong_cnn import StrongCNN, strong_cnn
from torchcaps.models.baselines.unet import UNet, unet
from torchcaps.models.capsnet import CapsNet, capsnet, capsnet_small
from torchcaps.models.capspix2pix import CapsPix2Pix, capspix2pix, capspix2pix_small
from torchcaps.models.discriminator import Discriminator
from torchcaps.models.efficient_capsnet import EfficientCapsNet, efficient_capsnet
from torchcaps.models.em_capsnet import EMCapsNet, em_capsnet, em_capsnet_large
from torchcaps.models.files import load, save, shipped_models
from torchcaps.models.ported import PortedCapsNet  # noqa: F401, so that it is registered
from torchcaps.models.posecaps import PoseCaps, posecaps, posecaps_small
from torchcaps.models.registry import create_model, list_models, register_model
from torchcaps.models.scenecaps import SceneCaps, SceneOutput, scenecaps, scenecaps_small
from torchcaps.models.segcaps import SegCaps, segcaps
from torchcaps.models.segmentation import SegmentationModel, to_mask
from torchcaps.models.synthesis import SynthesisModel, generate_images, noise_vectors
from torchcaps.models.tiles import predict_map

__all__ = [
    "CNN",
    "BackboneCaps",
    "BackboneLinear",
    "CapsNet",
    "CapsPix2Pix",
    "CapsuleModel",
    "Discriminator",
    "EMCapsNet",
    "EfficientCapsNet",
    "ImageModel",
    "Output",
    "Pix2Pix",
    "Placement",
    "PooledCNN",
    "PoseCaps",
    "ResNet",
    "SceneCaps",
    "SceneOutput",
    "SegCaps",
    "SegmentationModel",
    "SegmentationOutput",
    "StrongCNN",
    "SynthesisModel",
    "UNet",
    "backbone_caps",
    "backbone_linear",
    "baseline_cnn",
    "capsnet",
    "capsnet_small",
    "capspix2pix",
    "capspix2pix_small",
    "create_model",
    "efficient_capsnet",
    "em_capsnet",
    "em_capsnet_large",
    "generate_images",
    "list_backbones",
    "list_models",
    "load",
    "matched_cnn",
    "noise_vectors",
    "pix2pix",
    "pix2pix_small",
    "pooled_cnn",
    "posecaps",
    "posecaps_small",
    "predict_map",
    "register_backbone",
    "register_model",
    "save",
    "scenecaps",
    "scenecaps_small",
    "segcaps",
    "shipped_models",
    "small_resnet",
    "strong_cnn",
    "to_mask",
    "unet",
]
