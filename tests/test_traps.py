"""Every trap that the popular capsule repositories fell into, as a test that this one does not.

Those of training (shifts at test time, choosing on the test set, an optimiser rebuilt each epoch) are in tests/train.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import torchcaps
from torchcaps import testing
from torchcaps.errors import UserError
from torchcaps.layers import DenseCaps, PrimaryCaps
from torchcaps.losses import margin_loss, reconstruction_loss
from torchcaps.models import create_model, load, save
from torchcaps.models.files import write_model
from torchcaps.ops import dynamic_routing, squash

SOURCES = sorted(Path(torchcaps.__file__).parent.rglob("*.py"))
BACKENDS = pytest.mark.parametrize("backend", ["reference", "chunked"])


@pytest.fixture
def model():
    return create_model("capsnet_small", image_shape=(1, 14, 14), num_classes=3)


def route(u, weight):
    return dynamic_routing(u, weight, return_couplings=True)


@BACKENDS
def test_trap_softmax_is_over_parents(monkeypatch, backend):
    monkeypatch.setenv("TORCHCAPS_BACKEND", backend)
    u, weight = torch.randn(2, 7, 4), torch.randn(7, 3, 5, 4)
    testing.assert_couplings_normalised(route, u, weight)
    couplings = route(u, weight).couplings
    assert not torch.allclose(couplings.sum(1), torch.ones(2, 3), atol=0.1)  # over children it would be 1


@BACKENDS
def test_trap_logits_are_per_example(monkeypatch, backend, model):
    monkeypatch.setenv("TORCHCAPS_BACKEND", backend)
    testing.assert_batch_independent(route, torch.randn(4, 7, 4), torch.randn(7, 3, 5, 4))
    image, others = torch.rand(1, 1, 14, 14), torch.rand(5, 1, 14, 14)
    alone = model(image).lengths
    for company in (others, 0 * others, others.flip(0)):
        torch.testing.assert_close(model(torch.cat([image, company])).lengths[:1], alone)


def test_trap_no_persistent_logits():
    layer, children = DenseCaps(7, 4, 3, 5), torch.randn(2, 7, 4)
    before, attributes = layer(children).pose, set(vars(layer))
    layer(torch.randn(9, 7, 4)).pose.sum().backward()  # another batch, of another size, in training
    assert torch.equal(layer(children).pose, before)
    assert list(layer.state_dict()) == ["weight"]
    assert not list(layer.buffers())
    assert set(vars(layer)) == attributes


def test_trap_squash_axis():
    # One type of 2-dimensional capsules on 3 positions, 1×1 convolution left as it is: (3, 4), (0, 0) and (1, 0)
    layer = PrimaryCaps(2, types=1, dim=2, kernel_size=1, stride=1)
    with torch.no_grad():
        layer.conv.weight.copy_(torch.eye(2)[:, :, None, None])
        layer.conv.bias.zero_()
    features = torch.tensor([[[[3.0, 0.0, 1.0]], [[4.0, 0.0, 0.0]]]])
    expected = torch.tensor([[[0.6 * 25 / 26, 0.8 * 25 / 26], [0.0, 0.0], [0.5, 0.0]]])
    torch.testing.assert_close(layer(features).pose, expected)
    lengths = dynamic_routing(torch.randn(2, 7, 4) * 100, torch.randn(7, 3, 5, 4)).poses.norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones(2, 3), atol=1e-3, rtol=0)


@BACKENDS
def test_trap_squash_zero(monkeypatch, backend, model):
    monkeypatch.setenv("TORCHCAPS_BACKEND", backend)
    zero = torch.zeros(2, 7, 4, requires_grad=True)
    squash(zero).sum().backward()
    assert torch.equal(zero.grad, torch.zeros(2, 7, 4))
    testing.assert_finite_gradients(route, torch.randn(2, 7, 4), torch.randn(7, 3, 5, 4))
    for parameter in (model.conv.bias, model.primary.conv.bias):
        torch.nn.init.zeros_(parameter)  # a black image now makes capsules that are exactly zero
    out = model(torch.zeros(2, 1, 14, 14), torch.tensor([0, 1]))
    assert out.lengths.max() == 0
    (margin_loss(out.lengths, torch.tensor([0, 1])).sum() + out.reconstruction.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_trap_primary_capsules_do_not_mix_positions():
    layer = PrimaryCaps(1, types=3, dim=4, kernel_size=3, stride=2)
    features = torch.rand(1, 1, 11, 13)
    changed = features.clone()
    changed[..., 0, 0] += 1  # only the position (0, 0) of the 5×6 looks at it
    before, after = (layer(x).pose.view(3, 5, 6, 4) for x in (features, changed))
    moved = (before != after).any(-1)
    assert moved[:, 0, 0].all()
    assert moved.sum() == 3
    maps = layer.conv(features)[0]  # (12, 5, 6): pose k of type t is channel 4t + k
    for t, y, x in [(0, 0, 5), (1, 4, 0), (2, 2, 3)]:
        torch.testing.assert_close(before[t, y, x], squash(maps[[4 * t + k for k in range(4)], y, x]))


def test_trap_no_softmax_of_lengths(model):
    right = torch.tensor([[0.95, 0.05, 0.0]])
    assert margin_loss(right, torch.tensor([0])).item() == 0
    out = model(torch.rand(4, 1, 14, 14))
    torch.testing.assert_close(out.lengths, out.poses.norm(dim=-1))
    assert (out.lengths.sum(-1) - 1).abs().min() > 1e-3


def test_trap_margin_is_squared():
    # (0.9 − 0.5)² + ½ (0.3 − 0.1)²; not squared it would be 0.4 + 0.1
    assert margin_loss(torch.tensor([[0.5, 0.3]]), torch.tensor([0])).item() == pytest.approx(0.16 + 0.02)


def test_trap_reconstruction_is_summed():
    assert reconstruction_loss(torch.ones(2, 1, 28, 28), torch.zeros(2, 1, 28, 28)).tolist() == [784.0, 784.0]


def test_trap_inputs_stay_in_0_1():
    """Mean and std are applied inside: the images that a reconstruction is compared with stay in [0, 1]."""
    options = {"image_shape": (2, 14, 14), "num_classes": 3}
    model = create_model("capsnet_small", mean=(0.3, 0.5), std=(0.2, 0.1), **options)
    plain = create_model("capsnet_small", **options)
    plain.load_state_dict(model.state_dict())
    images = model.prepare(torch.randint(0, 256, (4, 2, 14, 14), dtype=torch.uint8))
    assert images.min() == pytest.approx(0, abs=0.02)
    assert images.max() == pytest.approx(1, abs=0.02)
    untouched, out = images.clone(), model(images)
    assert torch.equal(images, untouched)
    assert ((out.reconstruction >= 0) & (out.reconstruction <= 1)).all()
    by_hand = (images - torch.tensor([0.3, 0.5]).view(2, 1, 1)) / torch.tensor([0.2, 0.1]).view(2, 1, 1)
    torch.testing.assert_close(out.lengths, plain(by_hand).lengths)


def test_trap_mask_by_target_in_training(model):
    images = torch.rand(2, 1, 14, 14)
    wrong = (model(images).lengths.argmax(-1) + 1) % 3
    wrong[1] = wrong[0]
    out = model.train()(images, wrong)
    torch.testing.assert_close(out.reconstruction, model.reconstruct(out.poses, wrong))
    assert not torch.allclose(out.reconstruction, model(images).reconstruction)
    (gradient,) = torch.autograd.grad(out.reconstruction.sum(), out.poses)
    assert gradient.abs().sum((0, 2)).gt(0).tolist() == [j == wrong[0] for j in range(3)]


@pytest.mark.parametrize("pattern", [r"\.cuda\(", r"device\s*=\s*[\"']cuda", r"\.to\([\"']cuda"])
def test_trap_no_cuda_hard_coded(pattern):
    assert len(SOURCES) > 15
    assert [path.name for path in SOURCES if re.search(pattern, path.read_text(encoding="utf-8"))] == []


def test_trap_batch_of_one(model):
    images = torch.rand(3, 1, 14, 14)
    one, three = model(images[:1], torch.tensor([2])), model(images, torch.tensor([2, 0, 1]))
    for a, b in zip(one[:3], three[:3]):
        torch.testing.assert_close(a, b[:1])
    margin_loss(one.lengths, torch.tensor([2])).mean().backward()
    # A bare squeeze drops the batch axis too, when it is 1
    assert [path.name for path in SOURCES if ".squeeze()" in path.read_text(encoding="utf-8")] == []


def test_trap_failed_load_raises(model, tmp_path):
    (tmp_path / "words.safetensors").write_text("not a model, by any means")
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "words.safetensors")
    del model.classes  # saved without the class capsules: their weights must not stay random
    with pytest.raises(UserError, match="classes was removed"):
        save(model, tmp_path / "part")
    (tmp_path / "part").mkdir()
    with pytest.raises(UserError, match="does not fit"):
        load(write_model(model, tmp_path / "part"))
