import pytest
import torch

from torchcaps.data import Dataset
from torchcaps.data.dataset import count_classes
from torchcaps.errors import UserError


def make(n=6, targets=None, names=("a", "b", "c"), **kw) -> Dataset:
    images = torch.arange(n * 2 * 3 * 4, dtype=torch.uint8).view(n, 2, 3, 4)
    return Dataset(images, torch.arange(n) % 3 if targets is None else targets, names, **kw)


def test_a_dataset_describes_itself():
    data = make()
    assert (len(data), data.image_shape, data.num_classes, data.multi_label) == (6, (2, 3, 4), 3, False)
    assert data.class_counts().tolist() == [2, 2, 2]


def test_subset_keeps_images_targets_and_files_together():
    part = make(files=tuple("uvwxyz")).subset(torch.tensor([4, 1]))
    assert part.files == ("y", "v")
    assert part.targets.tolist() == [1, 1]
    assert torch.equal(part.images, make().images[[4, 1]])
    assert make().subset(torch.tensor([0])).files is None


def test_multi_hot_targets_are_multi_label_and_counted_by_column():
    data = make(3, torch.tensor([[1.0, 1, 0], [0, 1, 0], [0, 0, 0]]))
    assert data.multi_label
    assert data.class_counts().tolist() == [1, 2, 0]


def test_a_class_that_does_not_occur_is_counted_as_zero():
    assert count_classes(torch.tensor([0, 0]), 3).tolist() == [2, 0, 0]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Dataset(torch.zeros(2, 1, 3, 3).double(), torch.zeros(2).long(), ("a", "b")), "uint8"),
        (lambda: Dataset(torch.zeros(2, 3, 3).byte(), torch.zeros(2).long(), ("a", "b")), r"\(N, C, H, W\)"),
        (lambda: make(6, torch.zeros(5).long()), "6 targets"),
        (lambda: make(6, files=("x",)), "files"),
        (lambda: make(2, torch.tensor([0, 3])), "0..2"),
        (lambda: make(2, torch.tensor([-1, 0])), "0..2"),
        (lambda: make(2, torch.zeros(2)), "int64"),
        (lambda: make(2, torch.zeros(2, 2)), "one column for each"),
    ],
)
def test_a_dataset_that_cannot_be_right_is_refused(build, message):
    with pytest.raises(UserError, match=message):
        build()
