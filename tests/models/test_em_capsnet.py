"""EM-CapsNet: its sizes, its schedule, and that it learns."""

import pytest
import torch

from torchcaps.data import load_data
from torchcaps.errors import UserError
from torchcaps.losses import spread_loss
from torchcaps.models import create_model, load, save
from torchcaps.train.recipe import LossSection
from torchcaps.train.tasks.classification import ClassificationTask

SMALL = {"channels": 8, "primary": 2, "first": 3, "second": 4, "size": 2}


def test_published_sizes():
    # The paper gives 68 K for A = 64, B = 8, C = D = 16, and 310 K for 32 of each, both for its smallNORB crops.
    norb = {"image_shape": (2, 32, 32), "num_classes": 5, "batch_norm": False}
    assert create_model("em_capsnet", **norb).parameter_count() == pytest.approx(68_000, rel=0.02)
    assert create_model("em_capsnet_large", **norb).parameter_count() == pytest.approx(310_000, rel=0.03)


@pytest.mark.parametrize("shape", [(1, 13, 13), (1, 28, 28), (3, 20, 31)])
def test_images_of_any_shape(shape):
    model = create_model("em_capsnet", image_shape=shape, num_classes=4, **SMALL)
    out = model(torch.rand(2, *shape))
    assert (out.lengths.shape, out.poses.shape) == ((2, 4), (2, 4, 4))
    assert out.reconstruction is None
    assert model(torch.rand(0, *shape)).lengths.shape == (0, 4)


def test_images_that_are_too_small_are_refused():
    with pytest.raises(UserError, match="at least 13×13"):
        create_model("em_capsnet", image_shape=(1, 12, 28))


def test_saved_with_the_temperature_it_was_trained_to(tmp_path):
    model = create_model("em_capsnet", image_shape=(1, 16, 16), **SMALL).eval()
    cold = model(torch.ones(1, 1, 16, 16)).lengths
    model.anneal(1.0)
    warm = model(torch.ones(1, 1, 16, 16)).lengths
    assert not torch.allclose(cold, warm)
    save(model, tmp_path / "model")
    assert torch.equal(load(tmp_path / "model")(torch.ones(1, 1, 16, 16)).lengths, warm)


def test_temperature_and_margin_go_from_start_to_end():
    model = create_model("em_capsnet", inverse_temperature=(0.1, 0.5), **SMALL)
    task = ClassificationTask.make(model, load_data("digits", image_size=28).train, LossSection())
    assert set(task.weights) == {"spread"}
    seen = []
    for progress in (0.0, 0.5, 1.0):
        model.anneal(progress)
        task.anneal(progress)
        seen.append((float(model.classes.inverse_temperature), float(task.spread_margin)))
    assert seen == [pytest.approx(each) for each in ((0.1, 0.2), (0.3, 0.55), (0.5, 0.9))]


def test_spread_loss_by_hand():
    lengths = torch.tensor([[0.7, 0.1, 0.6], [0.2, 0.9, 0.3]])
    # Row 0, class 0: 0.9 - 0.6 = 0.3 and 0.9 - 0.1 = 0.8; row 1, class 1: 0.9 - 0.7 and 0.9 - 0.6.
    expected = [0.3**2 + 0.8**2, 0.2**2 + 0.3**2]
    assert spread_loss(lengths, torch.tensor([0, 1])).tolist() == pytest.approx(expected)
    assert spread_loss(lengths, torch.tensor([0, 1]), 0.2).tolist() == pytest.approx([0.01, 0.0])
    with pytest.raises(ValueError, match="2 examples, but 1 targets"):
        spread_loss(lengths, torch.tensor([0]))


def test_it_learns():
    torch.manual_seed(0)
    data = load_data("digits", image_size=16).train
    images, targets = data.images[:64].float() / 255, data.targets[:64]
    model = create_model("em_capsnet", image_shape=(1, 16, 16), inverse_temperature=(0.1, 0.1), **{**SMALL, "size": 4})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(40):
        loss = spread_loss(model(images).lengths, targets, 0.5).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
