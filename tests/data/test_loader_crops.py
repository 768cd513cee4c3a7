"""Windows of images and masks: where they are taken, how many, and that both change in the same way."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from torchcaps.data import CropLoader, SegmentationDataset, epoch_size, make_loader, tiles
from torchcaps.errors import UserError

RNG = np.random.default_rng(0)


def several(*sizes, channels=1, classes=2) -> SegmentationDataset:
    """Noise of these sizes; a pixel's class is its brightness modulo the number of classes."""
    images = [torch.from_numpy(RNG.integers(0, 256, (channels, *size), dtype=np.uint8)) for size in sizes]
    names = tuple(f"{i:02d}" for i in range(len(sizes)))
    return SegmentationDataset(images, [image[0] % classes for image in images], tuple("abcdef"[:classes]), names)


def seeded(seed=0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4),
    crop=st.integers(1, 7),
    channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 100),
)
def test_a_window_is_a_part_of_its_image_or_ignored(sizes, crop, channels, seed):
    data = several(*sizes, channels=channels, classes=5)
    crops = CropLoader(data, crop, "cpu")
    windows = data.windows(crop)
    assert len(crops) == len(windows) >= len(data)
    chosen = torch.tensor([(windows == i).nonzero()[-1, 0] for i in range(len(data))]).repeat(3)
    indices = windows[chosen]
    images, masks = crops.take(chosen, seeded(seed))[:2]
    assert (images.shape, images.dtype) == ((len(indices), channels, crop, crop), torch.float32)
    assert (masks.shape, masks.dtype) == ((len(indices), crop, crop), torch.int64)
    pixels = (images * 255).round().long()
    inside = masks != 255
    assert torch.equal((pixels[:, 0] % 5)[inside], masks[inside])
    for i, shown, known in zip(indices.tolist(), pixels, inside):
        height, width = (min(crop, side) for side in sizes[i])
        assert int(known.sum()) == height * width  # all of it, but for what had to be added
        top, left = known.nonzero()[0].tolist()
        window = shown[:, top : top + height, left : left + width]
        assert known[top : top + height, left : left + width].all()
        windows = data.images[i].unfold(1, height, 1).unfold(2, width, 1).permute(1, 2, 0, 3, 4)
        assert (windows == window).flatten(2).all(2).any()
    assert all(torch.equal(a, b) for a, b in zip(crops.take(chosen, seeded(seed)), (images, masks)))


def test_every_place_is_as_likely():
    data = several((6, 9), (4, 4))
    places = torch.arange(54, dtype=torch.uint8).view(1, 6, 9)
    data = SegmentationDataset([places, data.images[1]], [places[0] * 0, data.masks[1]], data.class_names, data.names)
    images = CropLoader(data, 4, "cpu").take(torch.zeros(18_000, dtype=torch.long), seeded()).images
    counts = torch.bincount((images[:, 0, 0, 0] * 255).round().long(), minlength=54).view(6, 9)
    assert counts[3:].sum() == counts[:, 6:].sum() == 0
    assert (counts[:3, :6] - 1000).abs().max() < 150


def test_small_images_go_on_as_in_a_mirror():
    image = torch.tensor([[[1, 2, 3]]], dtype=torch.uint8)
    data = SegmentationDataset([image], [torch.ones(1, 3, dtype=torch.uint8)], ("x", "y"), ("a",))
    images, masks = CropLoader(data, 8, "cpu").take(torch.tensor([0]))[:2]
    assert (images[0, 0] * 255).round().int().tolist() == [[3, 2, 1, 2, 3, 2, 1, 2]] * 8
    assert masks[0].tolist() == [[255, 255, 1, 1, 1, 255, 255, 255] if row == 3 else [255] * 8 for row in range(8)]
    dot = SegmentationDataset([image[..., :1]], [torch.ones(1, 1, dtype=torch.uint8)], ("x", "y"), ("a",))
    images, masks = CropLoader(dot, 3, "cpu").take(torch.tensor([0, 0]))[:2]
    assert ((images * 255).round() == 1).all()
    assert (masks == 1).sum((1, 2)).tolist() == [1, 1]


def test_windows_depend_on_the_generator_alone_and_may_be_none():
    crops = CropLoader(several((20, 20), (30, 40)), 5, "cpu")
    indices = torch.tensor([0, 1, 1])
    first, again, other = (crops.take(indices, seeded(seed)).images for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert crops.take(indices[:0]).images.shape == (0, 1, 5, 5)
    assert crops.index_device == torch.device("cpu")
    for crop, data, word in ((0, several((2, 2)), "crop=0"), (3, several(), "no images")):
        with pytest.raises(UserError, match=word):
            CropLoader(data, crop, "cpu")


def test_taking_windows_neither_reads_a_value_nor_shapes_by_one():
    crops = CropLoader(several((9, 9), (4, 12)), 6, "cpu")
    with FakeTensorMode(allow_non_fake_inputs=True):  # tensors without values, as while a CUDA graph is recorded
        images, masks = crops.take(torch.arange(2))[:2]
    assert (images.shape, masks.shape) == ((2, 1, 6, 6), (2, 6, 6))


def test_an_epoch_has_as_many_windows_as_images_have_room_for():
    data = several((8, 8), (8, 16), (3, 3), (20, 10))
    assert data.windows(8).tolist() == [0, 1, 1, 2, 3, 3, 3]
    assert epoch_size(data, 8) == len(make_loader(data, "cpu", crop=8)) == 7
    assert data.window() == 8  # the usual side
    assert several((600, 700)).window() == 256
    assert several((600, 700)).window(512) == 512


CHANGES = [
    {"rotate": 30.0},
    {"scale": 0.2, "shear": 0.1},
    {"elastic": 1.0, "shift": 2},
    {"turn": True, "flip": True, "flip_vertical": True},
]


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: "-".join(changes))
def test_what_a_warp_brings_in_is_image_and_not_black(changes):
    stripes = torch.full((1, 40, 40), 200, dtype=torch.uint8)
    stripes[:, :, ::8] = 90
    data = SegmentationDataset([stripes], [(stripes[0] < 100).byte()], ("a", "b"), ("x",))
    images, masks = make_loader(data, "cpu", crop=16, **changes).take(torch.zeros(40, dtype=torch.long), seeded())[:2]
    assert (images.shape, masks.shape) == ((40, 1, 16, 16), (40, 16, 16))
    assert images.min() > 60 / 255
    sure = (images[:, 0] < 100 / 255) | (images[:, 0] > 190 / 255)
    assert ((images[:, 0] < 145 / 255) == (masks == 1))[sure & (masks != 255)].float().mean() > 0.97
    assert (masks == 255).float().mean() < 0.25  # beyond the image's own edge nothing is known


def test_without_changes_every_pixel_is_as_likely_at_the_edge_as_inside():
    data = SegmentationDataset([torch.zeros(1, 12, 12).byte()], [torch.ones(12, 12).byte()], ("a", "b"), ("x",))
    masks = make_loader(data, "cpu", crop=12, rotate=20.0).take(torch.zeros(8, dtype=torch.long), seeded()).targets
    assert (masks[:, 4:8, 4:8] == 1).all()
    assert (masks == 255).any()


def test_tiles_lie_side_by_side_about_the_middle():
    segments = several((9, 13), (3, 4))
    cut = tiles(segments, 4, 4)
    assert len(cut) == 2 * 3 + 1
    assert (cut.names[:2], cut.names[-1]) == ((f"{segments.names[0]}-0", f"{segments.names[0]}-1"), segments.names[1])
    rows = [torch.cat(cut.images[3 * row : 3 * row + 3], 2) for row in range(2)]
    assert torch.equal(torch.cat(rows, 1), segments.images[0][:, :8, :12])
    assert torch.equal(cut.masks[4], segments.masks[0][4:8, 4:8])
    small = cut.masks[-1]
    assert torch.equal(small[:3], segments.masks[1])  # a row is missing below, and is ignored
    assert (small[3] == 255).all()
    assert torch.equal(cut.images[-1][:, 3], segments.images[1][:, 1])
