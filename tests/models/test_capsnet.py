"""CapsNet: the paper's numbers, any image, any number of classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchcaps.errors import UserError
from torchcaps.layers import ConvDecoder, Decoder, mask_capsules
from torchcaps.models import create_model


def count(**options):
    with torch.device("meta"):
        return create_model("capsnet", **options).parameter_count()


def test_the_papers_parameters():
    assert count() == 8_215_568
    assert count(decoder="none") == 6_804_224  # 6.8 M
    # The authors' code: the same, less 256 biases of the second convolution, plus 32·8 and 10·16 inside routing
    assert count(variant="authors") == 8_215_568 + 160


def test_the_papers_sizes():
    with torch.device("meta"):
        model = create_model("capsnet")
    assert model.grid == (6, 6)
    assert tuple(model.classes.weight.shape) == (1152, 10, 16, 8)
    assert model.classes.iterations == 3


def test_authors_initialisation():
    model = create_model("capsnet_small", variant="authors", leaky=True)
    assert model.primary.scale == pytest.approx(1 / 9)
    weights = {0.05: [model.conv.weight], 0.1: [model.primary.conv.weight, model.classes.weight]}
    weights[0.1] += [layer.weight for layer in model.decoder.layers if hasattr(layer, "weight")]
    for std, tensors in weights.items():
        for tensor in tensors:
            assert tensor.abs().max() <= 2 * std
            assert tensor.std().item() == pytest.approx(0.88 * std, rel=0.05)  # of a normal cut off at two deviations
    biases = [tensor for name, tensor in model.named_parameters() if name.endswith("bias")]
    assert len(biases) == 6  # one convolution, primary and class capsules, three decoder layers
    assert all((bias == 0.1).all() for bias in biases)


@pytest.mark.parametrize("B", [0, 1, 2], ids="B{}".format)
@pytest.mark.parametrize(
    ("image_shape", "classes"),
    [((1, 17, 23), 2), ((3, 17, 23), 10), ((3, 32, 32), 1), ((1, 9, 9), 2), ((1, 14, 14), 200), ((3, 65, 40), 2)],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else f"J{value}",
)
def test_any_image_and_any_number_of_classes(image_shape, classes, B):
    model = create_model("capsnet_small", image_shape=image_shape, num_classes=classes)
    images = torch.rand(B, *image_shape)
    for targets in (None, torch.arange(B) % classes, torch.ones(B, classes)):
        out = model(images, targets)
        assert out.lengths.shape == (B, classes)
        assert out.poses.shape == (B, classes, 16)
        assert out.reconstruction.shape == images.shape
    (out.lengths.sum() + out.reconstruction.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_targets_choose_what_is_reconstructed(small):
    images = torch.rand(3, 1, 14, 14)
    out = small(images)
    longest = out.lengths.argmax(-1)
    expected = small.decoder(mask_capsules(out.poses, longest))
    torch.testing.assert_close(out.reconstruction, expected)
    other = small(images, (longest + 1) % 3)
    assert torch.equal(other.lengths, out.lengths)
    assert not torch.allclose(other.reconstruction, expected)
    torch.testing.assert_close(small(images, torch.nn.functional.one_hot(longest, 3)).reconstruction, expected)


@pytest.mark.parametrize(
    ("shape", "kind"), [((1, 64, 64), Decoder), ((2, 64, 64), ConvDecoder), ((3, 40, 40), ConvDecoder)]
)
def test_large_images_get_the_convolutional_decoder(shape, kind):
    with torch.device("meta"):
        assert type(create_model("capsnet_small", image_shape=shape).decoder) is kind
        assert type(create_model("capsnet_small", image_shape=shape, decoder="dense").decoder) is Decoder
        assert create_model("capsnet_small", image_shape=shape, decoder="none").decoder is None


def test_without_a_decoder_nothing_is_reconstructed():
    model = create_model("capsnet_small", image_shape=(1, 14, 14), decoder="none")
    assert model(torch.rand(2, 1, 14, 14), torch.tensor([0, 1])).reconstruction is None


def test_padding_keeps_small_images():
    model = create_model("capsnet_small", image_shape=(1, 8, 8), padding=2)
    assert model.grid == (4, 4)
    assert model(torch.rand(2, 1, 8, 8)).lengths.shape == (2, 10)


def test_options_reach_the_layers():
    model = create_model("capsnet_small", iterations=2, routing="uniform", class_dim=5, dim=3, leaky=True)
    layer = model.classes
    assert (layer.iterations, layer.routing, layer.out_dim, layer.in_dim, layer.leaky) == (2, "uniform", 5, 3, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_shape": (1, 8, 20)}, "images of 8×20 are too small.*at least 9×9.*data.image_size"),
        ({"image_shape": (1, 28)}, r"such as \(1, 28, 28\), got \(1, 28\)"),
        ({"image_shape": 28}, r"must be \(channels, height, width\), such as \(1, 28, 28\), got 28"),
        ({"image_shape": (1, 28.5, 28)}, r"such as \(1, 28, 28\), got \(1, 28.5, 28\)"),
        ({"image_shape": (28, 28, 1)}, r"would be 28 channels of 28×1 pixels; .* give \(1, 28, 28\)"),
        ({"num_classes": 0}, "num_classes must be a whole number, at least 1, got 0"),
        ({"num_classes": 2.5}, "num_classes must be a whole number, at least 1, got 2.5"),
        ({"num_classes": "ten"}, "num_classes must be a whole number, at least 1, got 'ten'"),
        ({"class_names": ["a"]}, "1 class names were given for 10 classes"),
        ({"mean": [0.5, 0.5]}, "mean must have one value for each of 1 channels"),
        ({"std": 0.5}, "std must have one value for each of 1 channels, got 0.5"),
        ({"variant": "keras"}, "variant must be 'paper' or 'authors', got 'keras'"),
        ({"decoder": "big"}, "decoder must be 'auto', 'dense', 'conv' or 'none', got 'big'"),
        ({"iteration": 3}, "model capsnet_small has no option 'iteration': did you mean 'iterations'"),
        ({"image_shape": (1, 3, 3), "kernel": 9, "primary_kernel": 3, "padding": 2}, "images of 3×3 are too small"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(UserError, match=message):
        create_model("capsnet_small", **options)


@pytest.mark.parametrize("shape", [(2, 3, 14, 14), (2, 1, 14, 13), (1, 14, 14)], ids=str)
def test_wrong_images_are_named(small, shape):
    with pytest.raises(ValueError, match=r"CapsNet: expected images of shape \(B, 1, 14, 14\), got"):
        small(torch.rand(shape))


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (np.zeros((2, 1, 14, 14)), TypeError, r"expected a tensor of images, got ndarray; use model.prepare\("),
        (
            torch.zeros(2, 1, 14, 14, dtype=torch.uint8),
            TypeError,
            r"floats in \[0, 1\], got torch.uint8; use .*prepare",
        ),
        (torch.rand(1, 14, 14), ValueError, r"a batch has one more axis: use images\[None\]"),
        (torch.rand(2, 14, 14, 1), ValueError, r"the channels come first: use images.permute\(0, 3, 1, 2\)"),
    ],
    ids=["an array", "bytes", "one image", "channels last"],
)
def test_wrong_images_are_named_with_the_fix(small, images, error, message):
    with pytest.raises(error, match=message):
        small(images)


def test_an_array_is_prepared_only_as_a_tensor(small):
    with pytest.raises(TypeError, match=r"prepare: expected a tensor of images, got ndarray"):
        small.prepare(np.zeros((2, 1, 14, 14)))
