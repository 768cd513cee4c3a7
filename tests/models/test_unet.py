"""U-Net: the usual number of parameters, an answer for every pixel of any image."""

from __future__ import annotations

import pytest
import torch

from torchcaps.errors import UserError
from torchcaps.losses import mask_cross_entropy
from torchcaps.models import create_model, load, save
from torchcaps.models.baselines.unet import UNet


def small(**options):
    return create_model("unet", **{"image_shape": (1, 32, 32), "channels": 4, "depth": 2, **options}).eval()


def count(**options):
    with torch.device("meta"):
        return create_model("unet", **options).parameter_count()


def test_the_usual_parameters():
    def pair(before, after):
        return 9 * before * after + after + 9 * after * after + after

    widths = [64, 128, 256, 512, 1024]
    down = sum(pair(before, after) for before, after in zip([1, *widths], widths))
    up = sum(4 * 2 * n * n + n + pair(2 * n, n) for n in widths[:-1])
    assert count() == down + up + 64 + 1 == 31_030_593
    assert count(num_classes=5) == 31_030_593 + 4 * 65
    assert count(image_shape=(3, 256, 256)) == 31_030_593 + 2 * 9 * 64
    assert count(batch_norm=True) == 31_030_593 + 2 * sum(widths) + 2 * sum(widths[:-1])  # two parameters for one bias


@pytest.mark.parametrize("B", [0, 1, 2], ids="B{}".format)
@pytest.mark.parametrize(
    "size", [(1, 1), (1, 7), (3, 5), (16, 16), (17, 33), (40, 9)], ids=lambda size: "x".join(map(str, size))
)
@pytest.mark.parametrize(("colours", "classes", "K"), [(1, 2, 1), (3, 2, 1), (1, 3, 3), (3, 7, 7)])
def test_any_size_and_any_number_of_classes(size, B, colours, classes, K):
    model = small(image_shape=(colours, 32, 32), num_classes=classes, depth=4)
    out = model(torch.rand(B, colours, *size))
    assert out.probabilities.shape == out.logits.shape == (B, K, *size)
    assert ((out.probabilities >= 0) & (out.probabilities <= 1)).all()
    if K > 1:
        torch.testing.assert_close(out.probabilities.sum(1), torch.ones(B, *size))


def test_a_shifted_image_gives_a_shifted_answer():
    model, step, far = small(), 4, 24  # it looks no further than 2 + 4 + 8 + 4 + 2 pixels, and 3 for the pooling
    image = torch.rand(1, 1, 80, 96)
    answer = model(image).logits
    shifted = model(image[..., step:, 2 * step :]).logits
    expected = answer[..., step + far : -far, 2 * step + far : -far]
    torch.testing.assert_close(shifted[..., far:-far, far:-far], expected)
    assert not torch.allclose(model(image[..., 1:, :]).logits[..., far:-far, far:-far], answer[..., 25:-far, far:-far])


@pytest.mark.parametrize("options", [{}, {"batch_norm": True, "num_classes": 3}], ids=["plain", "batch-norm"])
def test_it_learns_and_every_parameter_takes_part(options):
    model = small(**options).train()
    images = torch.rand(4, 1, 18, 21)
    masks = (images[:, 0] > 0.5).long()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = mask_cross_entropy(model(images).probabilities, masks).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_signals_neither_fade_nor_explode():
    logits = create_model("unet", channels=16)(torch.rand(1, 1, 64, 64)).logits
    assert 0.05 < logits.std() < 5


@pytest.mark.parametrize("batch_norm", [False, True], ids=["plain", "batch-norm"])
def test_saved_and_loaded_is_the_same(batch_norm, tmp_path):
    about = {"class_names": ["tissue", "axon"], "mean": [0.4], "std": [0.2]}
    model = small(batch_norm=batch_norm, **about)
    model.train()(torch.rand(2, 1, 32, 32))  # moves the averages of the normalisation
    model.eval()
    loaded = load(save(model, tmp_path))
    assert type(loaded) is UNet
    assert loaded.class_names == ("tissue", "axon")
    images = torch.rand(2, 1, 20, 27)
    assert torch.equal(loaded(images).probabilities, model(images).probabilities)


def test_mean_and_std_are_applied():
    images = torch.rand(1, 1, 8, 8)
    plain = small()
    normal = small(mean=[0.5], std=[0.25])
    normal.load_state_dict(plain.state_dict())
    assert torch.equal(normal(images).logits, plain((images - 0.5) / 0.25).logits)


def test_compiles_in_one_graph():
    model, images = small(), torch.rand(2, 1, 18, 21)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images).probabilities, model(images).probabilities)


def test_answers_keep_their_digits():
    with torch.autocast("cpu", torch.bfloat16):
        assert small()(torch.rand(2, 1, 9, 9)).probabilities.dtype == torch.float32
    assert small().double()(torch.rand(2, 1, 9, 9, dtype=torch.float64)).probabilities.dtype == torch.float64


def test_mistakes_are_told():
    with pytest.raises(UserError, match="depth must be a whole number, at least 1, got 0"):
        small(depth=0)
    for shape in ((2, 3, 8, 8), (1, 8, 8)):
        with pytest.raises(ValueError, match=r"UNet: expected images of shape \(B, 1, H, W\), got"):
            small()(torch.rand(shape))
