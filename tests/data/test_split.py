import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchcaps.data import Dataset
from torchcaps.data.split import SplitOptions, allocate, split_dataset, strata
from torchcaps.errors import UserError


def numbered(sizes: list[int]) -> Dataset:
    """Images whose first two pixels spell their number, so that a split can be traced."""
    n = sum(sizes)
    number = torch.arange(n)
    images = torch.stack([number // 256, number % 256], dim=1).byte().view(n, 1, 1, 2)
    targets = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return Dataset(images, targets, tuple(f"class{j}" for j in range(len(sizes))))


def numbers(data: Dataset | None) -> list[int]:
    return [] if data is None else [256 * int(a) + int(b) for a, b in data.images.view(-1, 2)]


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(3, 60), min_size=1, max_size=6),
    validation=st.sampled_from([0, 0.05, 0.1, 0.3, 0.5]),
    test=st.sampled_from([0, 0.1, 0.2, 0.5]),
    seed=st.integers(0, 5),
)
def test_split_is_disjoint_complete_and_stratified(sizes, validation, test, seed):
    data = numbered(sizes)
    parts = split_dataset(data, None, None, SplitOptions(validation, test, seed))
    assert sorted(n for part in parts for n in numbers(part)) == list(range(len(data)))
    for part in parts:
        assert part is None or (part.class_counts() >= 1).all()
    if test:
        assert ((parts[2].class_counts() - test * torch.tensor(sizes)).abs() <= 1.5).all()


def test_split_depends_on_the_seed_and_repeats():
    once, again, other = (split_dataset(numbered([50, 50]), None, None, SplitOptions(seed=s)) for s in (1, 1, 2))
    assert numbers(once[1]) == numbers(again[1]) != numbers(other[1])


def test_the_test_images_do_not_change_with_the_split_seed_or_the_validation_size():
    plans = (SplitOptions(seed=1), SplitOptions(seed=2), SplitOptions(validation=0), SplitOptions(validation=7))
    assert len({tuple(numbers(split_dataset(numbered([30, 40]), None, None, plan)[2])) for plan in plans}) == 1


def test_counts_fractions_and_zero():
    train, validation, test = split_dataset(numbered([40, 60]), None, None, SplitOptions(validation=8, test=0.2))
    assert (len(train), len(validation), len(test)) == (72, 8, 20)
    assert test.class_counts().tolist() == [8, 12]
    assert split_dataset(numbered([2, 2]), None, None, SplitOptions(0, 0))[1:] == (None, None)
    assert (
        len(split_dataset(numbered([9] * 5), None, None, SplitOptions(validation=2, test=0))[1]) == 2
    )  # fewer than classes


def test_parts_that_came_with_the_data_are_left_alone():
    train, own = numbered([10, 10]), numbered([5, 5])
    kept, validation, test = split_dataset(train, own, own, SplitOptions())
    assert (numbers(kept), validation, test) == (numbers(train), own, own)


def test_limit_keeps_a_stratified_part_of_training_only():
    train, validation, test = split_dataset(numbered([60, 30, 10]), None, None, SplitOptions(0, 0.1, limit=20))
    assert train.class_counts().tolist() == [12, 6, 2]
    assert (validation, len(test)) == (None, 10)
    assert len(split_dataset(numbered([5, 5]), None, None, SplitOptions(0, 0, limit=99))[0]) == 10
    assert len(split_dataset(numbered([5] * 4), None, None, SplitOptions(0, 0, limit=2))[0]) == 2


def test_several_labels_are_stratified_by_the_rarest():
    targets = torch.tensor([[1.0, 0], [1, 1], [1, 0], [0, 0]])
    assert strata(targets, 2).tolist() == [0, 1, 0, 2]
    images = torch.zeros(40, 1, 1, 2, dtype=torch.uint8)
    data = Dataset(images, targets.repeat(10, 1), ("common", "rare"))
    assert split_dataset(data, None, None, SplitOptions(0, 0.2))[2].class_counts().tolist() == [6, 2]


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.data())
def test_apportion_reaches_its_total_within_bounds(sizes, data):
    total = data.draw(st.integers(0, sum(sizes)))
    taken = allocate(sizes, total, sizes, 0)
    assert sum(taken) == total
    assert all(0 <= t <= n for t, n in zip(taken, sizes))
    assert all(abs(t - total * n / max(sum(sizes), 1)) <= 1 for t, n in zip(taken, sizes))


def test_a_class_with_one_image_is_named():
    with pytest.raises(UserError, match=r"needs 3 images.*'class1' has 1"):
        split_dataset(numbered([10, 1]), None, None, SplitOptions())
    with pytest.raises(UserError, match=r"and 2 more classes"):
        split_dataset(numbered([1] * 7), None, None, SplitOptions())


@pytest.mark.parametrize("amount", [-0.1, -1, 1.5, float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["validation", "test"])
def test_an_impossible_amount_is_refused(part, amount):
    with pytest.raises(UserError, match=f"{part}="):
        SplitOptions(**{part: amount})


def test_more_than_there_is_cannot_be_held_out():
    with pytest.raises(UserError, match="at most 8"):
        split_dataset(numbered([5, 5]), None, None, SplitOptions(validation=9, test=0))
    with pytest.raises(UserError, match="limit=0"):
        SplitOptions(limit=0)
    with pytest.raises(UserError, match="no training images"):
        split_dataset(numbered([0, 0]), None, None, SplitOptions())


def test_three_images_of_a_class_are_enough_for_three_parts():
    parts = split_dataset(numbered([3, 3]), None, None, SplitOptions(validation=0.1, test=0.6))
    assert [part.class_counts().tolist() for part in parts] == [[1, 1]] * 3


def test_exactly_so_many_of_each_class_whatever_their_sizes():
    targets = torch.tensor([0] * 30 + [1] * 20 + [2] * 5)
    data = Dataset(torch.zeros(55, 1, 2, 2, dtype=torch.uint8), targets, ("a", "b", "c"))
    train, _, _ = split_dataset(data, None, data, SplitOptions(validation=0, per_class=4))
    assert train.class_counts().tolist() == [4, 4, 4]
    other, _, _ = split_dataset(data, None, data, SplitOptions(validation=0, per_class=4, seed=1))
    assert len(other) == 12
    with pytest.raises(UserError, match="fewer images of 'c'"):
        split_dataset(data, None, data, SplitOptions(validation=0, per_class=6))
    with pytest.raises(UserError, match="omit limit"):
        SplitOptions(per_class=3, limit=9)
