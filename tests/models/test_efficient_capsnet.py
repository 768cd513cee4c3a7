"""Efficient-CapsNet: the paper's numbers, any image, any number of classes, and that it learns."""

from __future__ import annotations

import pytest
import torch

from torchcaps import explain
from torchcaps.data import load_data
from torchcaps.errors import UserError
from torchcaps.layers import mask_capsules
from torchcaps.losses import combine, margin_loss, reconstruction_loss
from torchcaps.models import EfficientCapsNet, create_model, load, save
from torchcaps.ops.attention import squash_exponential

SMALL = {"channels": (4, 6, 6, 8), "dim": 4, "class_dim": 6, "hidden": (16,)}


def made(image_shape=(1, 13, 15), classes=3, **options):
    return create_model("efficient_capsnet", image_shape=image_shape, num_classes=classes, **{**SMALL, **options})


def test_the_papers_parameters():
    with torch.device("meta"):
        model, bare = create_model("efficient_capsnet"), create_model("efficient_capsnet", decoder="none")
    # Convolutions 832 + 18,496 + 36,928 + 73,856; a scale and a shift for each of 288 maps;
    # a 9×9 kernel and a bias for each of 128 maps; 16·10 matrices of 16×8; a prior for each
    expected = 832 + 18_496 + 36_928 + 73_856 + 2 * 288 + 128 * (81 + 1) + 160 * 16 * 8 + 160
    assert bare.parameter_count() == expected == 161_824
    assert model.parameter_count() == expected + 1_411_344  # the decoder of CapsNet


def test_the_papers_sizes():
    model = create_model("efficient_capsnet").eval()
    images = torch.rand(2, 1, 28, 28)
    assert model.conv(images).shape == (2, 128, 9, 9)
    assert model.children_of(images).pose.shape == (2, 16, 8)
    assert tuple(model.classes.weight.shape) == (16, 10, 16, 8)
    assert torch.equal(model.classes.prior, torch.zeros(16, 10))
    assert model.classes.weight.std().item() == pytest.approx(0.88 * (2 / 1280) ** 0.5, rel=0.05)  # cut at 2 deviations


def test_a_capsule_is_made_of_neighbouring_channels():
    model = made()
    maps = torch.randn(2, 8, 2, 3)
    numbers = (maps * model.primary.conv.weight[:, 0]).sum((2, 3)) + model.primary.conv.bias
    expected = squash_exponential(torch.stack([numbers[:, :4], numbers[:, 4:]], dim=1))
    torch.testing.assert_close(model.primary(maps).pose, expected)


@pytest.mark.parametrize("B", [0, 2, 3], ids="B{}".format)
@pytest.mark.parametrize(
    ("image_shape", "classes"),
    [((1, 11, 11), 2), ((3, 17, 24), 10), ((3, 32, 32), 1), ((2, 70, 40), 5), ((1, 12, 29), 100)],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else f"J{value}",
)
def test_any_image_and_any_number_of_classes(image_shape, classes, B):
    model = made(image_shape, classes)
    images = torch.rand(B, *image_shape)
    for targets in (None, torch.arange(B) % classes, torch.ones(B, classes)):
        out = model(images, targets)
        assert out.lengths.shape == (B, classes)
        assert out.poses.shape == (B, classes, 6)
        assert out.reconstruction.shape == images.shape
    assert model(images, each=torch.zeros(B, 2, dtype=torch.long)).reconstruction.shape == (B, 2, *image_shape)
    (out.lengths.sum() + out.reconstruction.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_targets_choose_what_is_reconstructed():
    model, images = made().eval(), torch.rand(3, 1, 13, 15)
    out = model(images)
    longest = out.lengths.argmax(-1)
    torch.testing.assert_close(out.reconstruction, model.decoder(mask_capsules(out.poses, longest)))
    other = (longest + 1) % 3
    assert not torch.allclose(model(images, other).reconstruction, out.reconstruction)
    drawn = model(images, each=torch.stack([longest, other], dim=1)).reconstruction
    torch.testing.assert_close(drawn[:, 0], out.reconstruction)
    torch.testing.assert_close(drawn[:, 1], model(images, other).reconstruction)
    assert made(decoder="none")(images, longest).reconstruction is None


def test_black_images_have_finite_gradients():
    model = made()
    out = model(torch.zeros(4, 1, 13, 15), torch.tensor([0, 1, 2, 0]))
    (margin_loss(out.lengths, torch.tensor([0, 1, 2, 0])).sum() + out.reconstruction.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_saved_and_loaded_is_the_same(tmp_path):
    model, images = made(mean=[0.3], std=[0.5]), torch.rand(4, 1, 13, 15)
    model(images)  # moves the statistics of batch normalisation
    loaded = load(save(model, tmp_path))
    assert type(loaded) is EfficientCapsNet
    for a, b in zip(model.eval()(images)[:3], loaded(images)[:3]):
        assert torch.equal(a, b)


def test_explanations():
    model, images = made().eval(), torch.rand(2, 1, 13, 15)
    assert explain.reconstructions(model, images).from_predicted.shape == images.shape
    assert explain.sweep(model, images, values=(-0.1, 0.1)).shape == (2, 6, 2, 1, 13, 15)
    couplings = explain.routing_couplings(model, images)
    assert couplings.shape == (1, 2, 2, 3)
    torch.testing.assert_close(couplings.sum(-1), torch.ones(1, 2, 2))
    heat = explain.maps_on_image(model, explain.routing_maps(model, images))
    assert heat.shape == (1, 2, 3, 13, 15)
    assert heat.flatten(3).argmax(-1).unique().tolist() == [6 * 15 + 7]  # brightest in the middle


def test_learns_digits():
    data = load_data("digits", image_size=28, limit=96).train
    model = create_model("efficient_capsnet", hidden=(64, 128))
    images, targets = model.prepare(data.images), data.targets
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    history = []
    for step in range(15):
        batch = torch.arange(32) + 32 * (step % 3)
        out = model(images[batch], targets[batch])
        terms = {"margin": margin_loss(out.lengths, targets[batch])}
        terms["reconstruction"] = reconstruction_loss(out.reconstruction, images[batch])
        loss = combine(terms, {"margin": 1.0, "reconstruction": 0.0005})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    assert sum(history[-3:]) < 0.5 * sum(history[:3])
    with torch.no_grad():
        correct = model(images).lengths.argmax(-1) == targets
    assert correct.float().mean() > 0.7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_shape": (1, 10, 40)}, "images of 10×40 are too small.*at least 11×11.*data.image_size"),
        ({"channels": (4, 8)}, r"channels must be 4 numbers, got \(4, 8\)"),
        ({"dim": 3}, "dim must divide the last channels, got 3 and 8"),
        ({"decoder": "big"}, "decoder must be 'auto', 'dense', 'conv' or 'none', got 'big'"),
        ({"iterations": 3}, "model efficient_capsnet has no option 'iterations': .*capsnet, capsnet_small, .* have it"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(UserError, match=message):
        made(**options)
