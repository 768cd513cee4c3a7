"""Every model, at the smallest image that makes a test of it quick."""

from __future__ import annotations

import pytest
import torch

from torchcaps.losses import (
    combine,
    cross_entropy,
    margin_loss,
    mask_cross_entropy,
    masked_reconstruction_loss,
    reconstruction_loss,
    spread_loss,
)
from torchcaps.models import SceneCaps, create_model, list_models
from torchcaps.models.segmentation import SegmentationModel
from torchcaps.models.synthesis import SynthesisModel

SMALLEST = {  # a model that is not named here is tried at its default size
    "capsnet": {"image_shape": (1, 18, 18)},
    "capsnet_small": {"image_shape": (1, 14, 14)},
    "em_capsnet": {
        "image_shape": (1, 13, 13),
        "channels": 8,
        "primary": 2,
        "first": 3,
        "second": 4,
        "batch_norm": False,
        "inverse_temperature": (0.1, 0.1),
    },
    "em_capsnet_large": {"image_shape": (1, 13, 13), "first": 4, "second": 4, "inverse_temperature": (0.1, 0.1)},
    "backbone_caps": {
        "image_shape": (1, 12, 12),
        "backbone_options": {"channels": (8, 16)},
        "types": 4,
        "decoder": "dense",
        "decoded_side": 6,
        "hidden": (16,),
    },
    "backbone_linear": {"image_shape": (1, 12, 12), "backbone_options": {"channels": (4, 8, 16)}},
    "baseline_cnn": {"image_shape": (1, 6, 6)},
    "matched_cnn": {"image_shape": (1, 12, 12), "parameters": 50_000},
    "strong_cnn": {"image_shape": (1, 12, 12), "width": 8},
    "pooled_cnn": {"image_shape": (1, 18, 18), "channels": (16, 16)},
    "small_resnet": {"image_shape": (1, 12, 12), "channels": (4, 8, 16), "blocks": 1},
    "posecaps": {"image_shape": (1, 12, 12), "width": 8, "types": 4, "turn": 15, "padding": 2, "hidden": 16},
    "posecaps_small": {"image_shape": (1, 12, 12), "turn": 15},
    "scenecaps": {"image_shape": (1, 16, 16), "width": 4, "canvas": 8, "hidden": 8},
    "scenecaps_small": {
        "image_shape": (1, 16, 16),
        "width": 4,
        "levels": [("bar", "disc"), ("0", "1", "2")],
        "members": [[[0, 1], [0, 0], [1]]],
        "symmetry": (2, 0),
    },
    "segcaps": {"image_shape": (1, 16, 16), "channels": 4, "width": 0.5},
    "unet": {"image_shape": (1, 16, 16), "channels": 4, "depth": 2},
    "capspix2pix": {"image_shape": (1, 16, 16), "channels": 4, "width": 0.5, "z": 7},
    "capspix2pix_small": {"image_shape": (1, 16, 16), "channels": 4},
    "pix2pix": {"image_shape": (1, 16, 16), "channels": 4, "z": 7},
    "pix2pix_small": {"image_shape": (1, 16, 16), "channels": 4},
}


@pytest.fixture(params=list_models())
def model(request):
    return create_model(request.param, num_classes=3, **SMALLEST.get(request.param, {}))


@pytest.fixture
def small():
    """A capsnet_small, in the mood for predictions."""
    return create_model("capsnet_small", image_shape=(1, 14, 14), num_classes=3).eval()


@pytest.fixture
def loss_of():
    def loss_of(model, images, targets):
        out = model(images, targets)
        if isinstance(model, SceneCaps):
            weights = {"presence": 1.0, "pose": 1.0, "layout": 0.1, "reconstruction": 0.01}
            return combine(out.losses, {name: weights[name] for name in out.losses})
        if isinstance(model, SynthesisModel):  # whatever is there is bright
            return (out[:, 0] - 0.9 * (images > 0)).square().mean()
        if isinstance(model, SegmentationModel):
            loss = mask_cross_entropy(out.probabilities, targets)
            if out.reconstruction is not None:
                loss = loss + masked_reconstruction_loss(out.reconstruction, images, targets)
            return loss.mean()
        if out.logits is not None:
            return cross_entropy(out.logits, targets).mean()
        if model.objective == "spread":
            return spread_loss(out.lengths, targets).mean()
        terms = {"margin": margin_loss(out.lengths, targets)}
        terms["reconstruction"] = reconstruction_loss(out.reconstruction, images)
        own = {name: value for name in model.own_losses if (value := getattr(out, name)) is not None}
        weights = {"margin": 1.0, "reconstruction": 0.0005, **{name: model.own_losses[name] for name in own}}
        return combine({**terms, **own}, weights)

    return loss_of


@pytest.fixture
def batch():
    """Random images, brighter from class to class, and their class ids, or masks: batch(model, 8). Of a model that
    draws, masks and noise."""

    def batch(model, B):
        if isinstance(model, SceneCaps):
            images, level = torch.rand(B, *model.image_shape), len(model.level_names) - 1
            whole = [level, 1, 8, 8, 1, 0, 4, 4]
            parts = [[0, 0, 4, 8, 1, 0, 4, 4], [0, 1, 12, 8, 0, 1, 4, 4], [-1, *[0] * 7]]
            return images, torch.tensor([[whole, *parts]] * B).float()
        if isinstance(model, SynthesisModel):
            masks = torch.rand(B, *model.image_shape[1:]) * model.num_classes
            return masks.long(), torch.randn(B, model.z)
        if isinstance(model, SegmentationModel):
            images = torch.rand(B, *model.image_shape)
            return images, (images[:, 0] * model.num_classes).long()
        targets = torch.arange(B) % model.num_classes
        brightness = (targets + 1) / model.num_classes
        return torch.rand(B, *model.image_shape) * brightness.view(-1, 1, 1, 1), targets

    return batch
