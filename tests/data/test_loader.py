import pytest
import torch

from torchcaps.data import Dataset, DeviceLoader, batches, class_weights, num_batches
from torchcaps.data import batches as batches_function
from torchcaps.errors import UserError


def numbered(n=23) -> Dataset:
    images = torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1).expand(n, 1, 2, 3).contiguous()
    return Dataset(images, torch.arange(n), tuple(map(str, range(n))))


def order(data, batch_size=5, *, seed=0, epoch=0, **options) -> list[int]:
    stream = batches(data, batch_size, device="cpu", seed=seed, epoch=epoch, **options)
    return [int(i) for _, targets in stream for i in targets]


def test_order_depends_only_on_seed_and_epoch():
    data, loader = numbered(), DeviceLoader(numbered(), "cpu")
    expected = order(data, seed=3, epoch=4)
    torch.rand(7)  # the global generator has no say
    assert order(loader, seed=3, epoch=4) == expected
    assert order(data, 7, seed=3, epoch=4) == expected
    assert sorted(expected) == list(range(23)) != expected
    assert expected != order(data, seed=4, epoch=3)
    assert order(data, seed=0, epoch=1) != order(data, seed=1, epoch=0)


def test_start_skips_batches():
    data = numbered()
    assert order(data, epoch=2, start=3) == order(data, epoch=2)[15:]
    assert order(data, start=99) == []


def test_images_are_scaled_and_stay_with_their_targets():
    for images, targets in batches(numbered(), 4, device="cpu", seed=1, epoch=1):
        assert images.dtype == torch.float32
        assert images.shape[1:] == (1, 2, 3)
        torch.testing.assert_close(images[:, 0, 0, 0] * 255, targets.float())
    white = Dataset(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8), torch.tensor([0]), ("a",))
    assert float(next(batches(white, 1, device="cpu", seed=0, epoch=0))[0]) == 1.0


def test_the_data_set_is_not_changed_by_its_batches():
    data = numbered()
    for images, _ in batches(data, 23, device="cpu", seed=0, epoch=0, shuffle=False):
        images.zero_()
    assert torch.equal(data.images, numbered().images)


@pytest.mark.parametrize(
    ("n", "size", "drop", "count"), [(23, 5, False, 5), (23, 5, True, 4), (20, 5, True, 4), (0, 5, False, 0)]
)
def test_the_number_of_batches(n, size, drop, count):
    assert num_batches(n, size, drop_last=drop) == count
    sizes = [len(t) for _, t in batches(numbered(n), size, device="cpu", seed=0, epoch=0, drop_last=drop)]
    assert len(sizes) == count
    assert all(s == size for s in sizes[: n // size])


def test_without_shuffling_the_order_is_that_of_the_data():
    assert order(numbered(), shuffle=False) == list(range(23))


def test_images_too_large_for_the_device_stay_on_the_host(monkeypatch):
    import sys

    module = sys.modules[batches_function.__module__]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (300, 1000))
    cuda = torch.device("cuda")
    assert module._fits(torch.zeros(149, dtype=torch.uint8), cuda)
    assert not module._fits(torch.zeros(150, dtype=torch.uint8), cuda)
    # a loader whose images stayed behind hands out the same batches
    monkeypatch.setattr(module, "_fits", lambda images, device: False)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    assert not DeviceLoader(numbered(), "cpu").on_device
    host = order(numbered(), seed=5)
    monkeypatch.undo()
    assert host == order(numbered(), seed=5)


def test_mistakes_are_refused_before_the_first_batch():
    with pytest.raises(UserError, match="batch_size=0"):
        batches(numbered(), 0, device="cpu", seed=0, epoch=0)
    with pytest.raises(UserError, match="start=-1"):
        batches(numbered(), 1, device="cpu", seed=0, epoch=0, start=-1)


def test_class_weights_are_inverse_frequencies_with_mean_one():
    def weights(targets, names=("a", "b", "c")):
        return class_weights(Dataset(torch.zeros(len(targets), 1, 1, 1).byte(), targets, names))

    torch.testing.assert_close(weights(torch.tensor([0, 0, 0, 1, 2])), torch.tensor([1 / 7, 3 / 7, 3 / 7]) * 3)
    torch.testing.assert_close(weights(torch.tensor([0, 1])), torch.tensor([1.0, 1.0, 0.0]))
    torch.testing.assert_close(weights(torch.tensor([[1.0, 0], [1, 1]]), ("a", "b")), torch.tensor([2 / 3, 4 / 3]))


def test_float_images_reach_the_batch_unchanged():
    images = torch.rand(3, 1, 2, 2)
    data = Dataset(images, torch.tensor([0, 1, 0]), ("a", "b"))
    ((batch, _),) = batches(data, 3, device="cpu", seed=0, epoch=0, shuffle=False)
    assert torch.equal(batch, images)
