import pytest
import torch

from torchcaps.data import Dataset, Splits, dataset, load_data, make_loader
from torchcaps.data.datasets import multimnist
from torchcaps.errors import UserError


def digits(count=40, classes=4):
    """Solid 28×28 frames whose brightness names the digit."""
    values = torch.arange(1, count + 1, dtype=torch.uint8)
    return Dataset(
        values[:, None, None, None].expand(count, 1, 28, 28).clone(),
        torch.arange(count) % classes,
        tuple("abcd"[:classes]),
    )


def pairs_of(batch):
    first, second = (batch.parts * 255).round().amax((2, 3, 4)).int().unbind(1)
    return list(zip(first.tolist(), second.tolist()))


def test_a_batch_overlays_each_digit_with_one_of_another_class():
    source = make_loader(multimnist.Digits(*vars(digits()).values()), "cpu")
    batch = source.take(torch.arange(40), torch.Generator().manual_seed(0))
    assert batch.images.shape == (40, 1, 36, 36)
    assert batch.parts.shape == (40, 2, 1, 36, 36)
    assert torch.equal(batch.images, batch.parts.sum(1).clamp(max=1))
    assert (batch.labels[:, 0] != batch.labels[:, 1]).all()
    assert torch.equal(batch.targets, torch.eye(4)[batch.labels].sum(1))
    for (first, second), labels in zip(pairs_of(batch), batch.labels.tolist()):
        assert labels == [(first - 1) % 4, (second - 1) % 4]
    assert [first for first, _ in pairs_of(batch)] == list(range(1, 41))
    assert batch.parts.gt(0).sum((2, 3, 4)).eq(28 * 28).all()  # nothing is cut off


def test_every_partner_of_another_class_is_equally_likely():
    data = digits(9, classes=3)
    partners = multimnist.Partners(data, "cpu")
    drawn = partners.draw(torch.zeros(60_000, dtype=torch.long), torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn, minlength=9)
    assert counts[data.targets == 0].sum() == 0
    assert counts[data.targets != 0].float().sub(10_000).abs().max() < 400


@pytest.mark.parametrize("shift", [4, 6])
def test_digits_move_by_whole_pixels_up_to_the_shift(shift):
    one = torch.zeros(2000, 1, 28, 28)
    one[..., 14, 14] = 1
    placed = multimnist.place(one, shift, torch.Generator().manual_seed(0))
    rows, columns = placed.flatten(1).argmax(1) // 36, placed.flatten(1).argmax(1) % 36
    for places in (rows, columns):
        assert set(places.tolist()) == set(range(18 - shift, 18 + shift + 1))


def test_fixed_pairs_are_the_same_every_time_and_only_for_their_seed():
    made = multimnist.overlay_pairs(digits(), 100, seed=1)
    assert (len(made), made.image_shape, made.labels_each) == (100, (1, 36, 36), 2)
    assert made.images.dtype == torch.uint8
    assert made.checksum() == multimnist.overlay_pairs(digits(), 100, seed=1).checksum()
    assert made.checksum() != multimnist.overlay_pairs(digits(), 100, seed=2).checksum()
    batches = list(multimnist.draw_pairs(digits(), 100, seed=1))
    assert torch.equal((torch.cat([batch.images for batch in batches]) * 255).round().byte(), made.images)
    assert made.targets.sum(1).eq(2).all()
    assert made.subset(torch.tensor([3])).labels_each == 2


def test_bright_digits_are_clipped_not_wrapped():
    white = Dataset(torch.full((4, 1, 28, 28), 200, dtype=torch.uint8), torch.arange(4), tuple("abcd"))
    assert multimnist.overlay_pairs(white, 8, seed=0).images.max() == 255
    assert set(multimnist.overlay_pairs(white, 8, seed=0).images.unique().tolist()) == {0, 200, 255}


def test_the_parts_of_a_split_stay_apart(monkeypatch):
    monkeypatch.setattr(multimnist, "TEST_PAIRS", 50)
    monkeypatch.setattr(multimnist, "VALIDATION_PAIRS", 30)
    whole = digits(60)
    parts = [whole.subset(torch.arange(20 * part, 20 * part + 20)) for part in range(3)]
    splits = multimnist.multimnist_splits(Splits(*parts, "mnist"))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (20, 30, 50)
    assert splits.train.image_shape == (1, 36, 36)
    assert splits.train.multi_label
    # The brightest overlaid values come from the part's own digits: 1 to 20, 21 to 40, 41 to 60.
    assert splits.validation.images.max() <= 80
    assert splits.validation.images[splits.validation.images > 0].min() >= 21
    assert splits.test.images[splits.test.images > 0].min() >= 41


def test_the_test_pairs_of_mnist_must_be_the_published_ones(monkeypatch):
    monkeypatch.setattr(multimnist, "TEST_PAIRS", 20)
    monkeypatch.setattr(dataset, "MNIST_TEST_CHECKSUM", digits().checksum())
    splits = Splits(digits(), None, digits(), "mnist")
    with pytest.raises(UserError, match="would not be comparable"):
        multimnist.multimnist_splits(splits)
    assert multimnist.multimnist_splits(splits, shift=6).source == "multimnist-shift6"  # has no published figure


def test_one_class_cannot_be_paired():
    with pytest.raises(UserError, match="at least two classes"):
        multimnist.overlay_pairs(digits(5, classes=1), 4, seed=0)


def test_the_source_asks_for_mnist(tmp_path):
    with pytest.raises(UserError, match="does not hold train-images"):
        load_data("multimnist", path=tmp_path)
