"""Mixup and CutMix: images and targets mixed by the same share."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torchcaps
from torchcaps import losses
from torchcaps.data import CropLoader, DeviceLoader, SegmentationDataset, mix
from torchcaps.data.augment import augment_masks
from torchcaps.data.dataset import Dataset
from torchcaps.errors import UserError
from torchcaps.train.recipe import load_recipe
from torchcaps.train.run import start_run

IDS = torch.tensor([0, 1, 2, 3])
FLAT = (IDS / 3).view(4, 1, 1, 1).expand(-1, 2, 6, 8)  # the brightness of an image says its class


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_mixup_mixes_images_and_targets_by_the_same_share(alpha):
    shares = []
    for seed in range(60):
        images, targets = mix(FLAT, IDS, 4, seeded(seed), mixup=alpha)
        torch.testing.assert_close(images.mean((1, 2, 3)), (targets * IDS / 3).sum(1))
        torch.testing.assert_close(targets.sum(1), torch.ones(4))
        shares += targets[range(4), IDS].tolist()
    shares = torch.tensor(shares)
    assert shares.min() >= 0
    assert (shares < 0.01).float().mean() + (shares > 0.99).float().mean() > (0.3 if alpha == 0.2 else 0)
    assert ((shares > 0.3) & (shares < 0.7)).float().mean() > (0.5 if alpha == 4.0 else 0.05)


def test_cutmix_pastes_one_rectangle_and_counts_its_pixels():
    sides = set()
    for seed in range(40):
        images, targets = mix(FLAT, IDS, 4, seeded(seed), cutmix=1.0)
        for image, target, own in zip(images, targets, range(4)):
            other = image[0] != FLAT[own, 0]
            assert target[own] == pytest.approx(1 - other.float().mean().item()) or not other.any()
            rows, columns = other.any(1).nonzero().flatten(), other.any(0).nonzero().flatten()
            assert other.sum() == len(rows) * len(columns)  # one rectangle
            sides.add((len(rows), len(columns)))
        torch.testing.assert_close(images.mean((1, 2, 3)), (targets * IDS / 3).sum(1))
    assert len(sides) > 8


def test_both_take_turns_and_are_reproducible():
    kinds = []
    for seed in range(20):
        images, targets = mix(FLAT, IDS, 4, seeded(seed), mixup=1.0, cutmix=1.0)
        again = mix(FLAT, IDS, 4, seeded(seed), mixup=1.0, cutmix=1.0)
        assert torch.equal(images, again[0])
        assert torch.equal(targets, again[1])
        torch.testing.assert_close(images.mean((1, 2, 3)), (targets * IDS / 3).sum(1))
        kinds += (images.flatten(1).std(1) > 1e-6).tolist()
    assert 0.1 < sum(kinds) / len(kinds) < 0.6
    with FakeTensorMode():
        assert mix(torch.rand(4, 1, 5, 5), torch.zeros(4).long(), 3, mixup=0.2, cutmix=1.0)[1].shape == (4, 3)
    with pytest.raises(UserError, match="mixup=-1: give 0 or more"):
        mix(FLAT, IDS, 4, mixup=-1)


def test_several_labels_are_mixed_too():
    hot = torch.tensor([[1.0, 1, 0], [0, 0, 1]])
    images, targets = mix(torch.rand(2, 1, 4, 4), hot, 3, seeded(3), mixup=1.0)
    assert targets.amax() <= 1
    torch.testing.assert_close(targets[:, 0], targets[:, 1])
    assert mix(images, hot, 3)[0] is images


def test_masks_follow_cutmix_and_cannot_be_mixed():
    masks = torch.arange(4).view(4, 1, 1).expand(-1, 6, 8)
    images, cut = augment_masks(FLAT, masks, seeded(), cutmix=1.0)
    assert torch.equal((images[:, 0] * 3).round().long(), cut)
    assert not torch.equal(cut, masks)
    data = SegmentationDataset([FLAT[0].mul(255).byte()], [masks[0].byte()], ("a", "b", "c", "d"), ("one",))
    with pytest.raises(UserError, match="a pixel of a mask has one class"):
        CropLoader(data, 4, "cpu", mixup=0.2).take(torch.tensor([0]))


def test_loaders_give_the_mixed_targets():
    data = Dataset((FLAT * 255).byte(), IDS, ("a", "b", "c", "d"))
    batch = DeviceLoader(data, "cpu", cutmix=1.0).take(IDS, seeded())
    assert batch.targets.shape == (4, 4)
    assert DeviceLoader(data, "cpu", flip=True).take(IDS, seeded()).targets.shape == (4,)


def test_losses_of_mixed_targets_by_hand():
    lengths, targets = torch.tensor([[0.7, 0.3]]), torch.tensor([[0.25, 0.75]])
    expected = 0.25 * 0.2**2 + 0.5 * 0.75 * 0.6**2 + 0.75 * 0.6**2 + 0.5 * 0.25 * 0.2**2
    assert losses.margin_loss(lengths, targets).item() == pytest.approx(expected)
    logits = torch.tensor([[2.0, 0.0]])
    soft = losses.cross_entropy(logits, targets, shares=True)
    torch.testing.assert_close(soft, torch.nn.functional.cross_entropy(logits, targets, reduction="none"))
    ids = torch.tensor([1])
    torch.testing.assert_close(
        losses.cross_entropy(logits, torch.tensor([[0.0, 1]]), shares=True), losses.cross_entropy(logits, ids)
    )


@pytest.mark.parametrize("model", ["backbone_caps", "backbone_linear"])
def test_models_learn_from_mixed_images(model):
    images = 0.1 * torch.rand(48, 1, 12, 12) + 0.8 * (torch.arange(48) % 2).view(-1, 1, 1, 1)
    settings = {"augment": {"mixup": 0.2, "cutmix": 1.0}}
    options = {"backbone_options": {"channels": (8,)}, "settings": settings, "lr": 0.003, "batch_size": 16}
    first, again = (
        torchcaps.fit(model, images, torch.arange(48) % 2, epochs=8, validation=16, **options) for _ in range(2)
    )
    assert max(line["val_accuracy"] for line in first.history) == 1
    assert first.history[-1]["train_accuracy"] > 0.6
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), again.model.parameters()))


def test_what_cannot_be_mixed_is_refused():
    images, labels = torch.rand(12, 1, 20, 20), torch.arange(12) % 2
    options = {"epochs": 1, "settings": {"augment": {"mixup": 0.2}}}
    with pytest.raises(UserError, match="the spread loss needs one class"):
        torchcaps.fit("em_capsnet", images, labels, channels=4, primary=2, first=2, second=2, **options)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [("segcaps", "mixup=0.2", "masks cannot be mixed"), ("digits", "hue=0.1", "have colours, these have 1")],
)
def test_it_is_refused_before_anything_is_written(name, change, message, tmp_path):
    tiny = ["data.limit=4", "data.validation=0", "train.read_test=no"] if name == "segcaps" else ["data.limit=64"]
    with pytest.raises(UserError, match=message):
        start_run(load_recipe(name, [*tiny, f"augment.{change}"]), out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
