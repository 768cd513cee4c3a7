"""Models of every kind in ONNX, small ones at random and all that are shipped."""

import os

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import torchcaps
from torchcaps.data import draw_axons
from torchcaps.errors import UserError
from torchcaps.exchange.check import compare
from torchcaps.exchange.onnx_file import runner, write_onnx
from torchcaps.exchange.program import export_wrapper
from torchcaps.layers import ConvCaps2d, DeconvCaps2d
from torchcaps.models import (
    EMCapsNet,
    SceneCaps,
    SegmentationModel,
    SegmentationOutput,
    SynthesisModel,
    create_model,
    shipped_models,
)
from torchcaps.models.capsule_unet import CapsuleUNet
from torchcaps.models.synthesis import noise_vectors

TINY = {
    "image_shape": (1, 14, 14),
    "num_classes": 3,
    "channels": 4,
    "types": 2,
    "dim": 4,
    "class_dim": 4,
    "hidden": [5],
}
SMALL = {
    "one class, leaky": ("capsnet_small", {**TINY, "num_classes": 1, "variant": "authors", "leaky": True}),
    "inverted attention": ("capsnet_small", {**TINY, "routing": "inverted_attention", "decoder": "conv"}),
    "unet": ("unet", {"image_shape": (2, 17, 21), "num_classes": 3, "channels": 2, "depth": 1}),
    "pix2pix": ("pix2pix", {"image_shape": (1, 16, 16), "channels": 2, "z": 3, "depth": 2}),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_models_of_every_kind(name, tmp_path):
    kind, options = SMALL[name]
    model = create_model(kind, **options)
    agreement = write_onnx(
        model, tmp_path / "x.onnx"
    )  # compared on several batches, and on another size if sizes are free
    assert agreement.difference < 1e-5
    assert agreement.examples == (12 if "capsnet" in kind else 14)


class TwoLayers(SegmentationModel):
    """Local routing to half the size and back: what SegCaps has twelve layers of, which take a minute to trace."""

    multiple = 2

    def __init__(self):
        super().__init__((1, 8, 8), 2)
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.halve = ConvCaps2d(1, 4, 3, 5, kernel=3, stride=2)
        self.stay = ConvCaps2d(3, 5, 2, 4, kernel=3, shared=False)
        self.grow = DeconvCaps2d(2, 4, 1, 4)

    def forward(self, images, targets=None, *, each=None):
        seen = self.stay(self.halve(self.conv(self.normalise(images))[:, None]))
        return SegmentationOutput(self.grow(seen).activation)


@pytest.mark.slow
def test_local_routing_for_images_of_any_size(tmp_path):
    answers = export_wrapper(TwoLayers())
    write_onnx(answers.model, tmp_path / "x.onnx")
    run = runner(tmp_path / "x.onnx")
    for size in ((8, 8), (2, 30), (26, 4)):
        images = torch.rand(3, 1, *size)
        assert compare(answers, run, (images,)) < 1e-5
        lengths, masks = run((images,))
        assert torch.equal(masks, (lengths[:, 0] > 0.5).long())


def digits(shape, count=200):
    """The embedded digits, 20×20 in the middle of an image as MNIST has them, or as large as it is."""
    channels, height, width = shape
    images = torch.from_numpy(load_digits().images[:count]).float()[:, None] / 16
    side = 20 if min(height, width) >= 28 else min(height, width)
    grown = functional.interpolate(images, (side, side), mode="bilinear", align_corners=False)
    left, top = (width - side) // 2, (height - side) // 2
    return functional.pad(grown, (left, width - side - left, top, height - side - top)).expand(-1, channels, -1, -1)


def inputs_of(model, count=200):
    if isinstance(model, SynthesisModel | SegmentationModel):
        axons = draw_axons(count, model.image_shape[1])
        if isinstance(model, SynthesisModel):
            return torch.stack(axons.masks).long(), noise_vectors(0, range(count), model.z)
        return (torch.stack(axons.images).float() / 255,)
    return (digits(model.image_shape, count).contiguous(),)


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_models())
def test_shipped_models_answer_alike_for_200_inputs(name, tmp_path):
    model = torchcaps.load(name)
    if isinstance(model, SceneCaps):
        with pytest.raises(UserError, match="cannot be exported: use `torchcaps detect`"):
            write_onnx(model, tmp_path / "x.onnx")
        return
    if isinstance(model, (CapsuleUNet, EMCapsNet)) and not os.environ.get("TORCHCAPS_EVERY_EXPORT"):
        pytest.skip("half a minute of tracing; `make exports` does it")
    write_onnx(model, tmp_path / "x.onnx")
    answers, run = export_wrapper(model), runner(tmp_path / "x.onnx")
    inputs = inputs_of(model)
    parts = list(zip(*(each.split(20) for each in inputs)))
    worst = max(compare(answers, run, part) for part in parts)  # more than 1e-4 is an error
    print(f"{name}: largest difference {worst:.1e}")
    if not isinstance(model, SynthesisModel | SegmentationModel):
        with torch.no_grad():
            expected = torch.cat([answers(*part)[0] for part in parts]).argmax(1)
        found = torch.cat([run(part)[0] for part in parts]).argmax(1)
        assert len(expected) == 200
        np.testing.assert_array_equal(found, expected)
        assert len(expected.unique()) > 5
