"""PartCaps: numbers in pixels and degrees, read where a part is; losses that are zero for exact answers."""

import math

import pytest
import torch

from torchcaps.errors import UserError
from torchcaps.layers import PartCaps, PartMaps
from torchcaps.similarity import Similarity

STRIDE, SYMMETRY = 2, (2, 1, 0)
SIZE = torch.tensor([[[6.0, 3.0], [4.0, 4.0]]])


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return PartCaps(5, 3, symmetry=SYMMETRY, stride=STRIDE, appearance=2).double()


def known():
    """A bar at (6.5, 4.25), turned by 200 degrees, and a triangle at (11, 9), turned by -60."""
    x, y = torch.tensor([[6.5, 11.0]]), torch.tensor([[4.25, 9.0]])
    pose = Similarity.of(x=x, y=y, angle=torch.tensor([[200.0, -60.0]]), scale=torch.tensor([[1.3, 0.8]])).numbers
    return torch.tensor([[0, 1]]), pose.double()


def exact(label, pose, size, h=8, w=8):
    """The maps that say exactly this at every position."""
    numbers = torch.zeros(1, 3, 7, h, w, dtype=torch.float64)
    logits = torch.full((1, 3, h, w), -30.0, dtype=torch.float64)
    rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    for n in range(label.shape[1]):
        type, (x, y, cos, sin) = int(label[0, n]), pose[0, n].tolist()
        turns, angle = SYMMETRY[type], math.atan2(sin, cos)
        numbers[0, type, 0], numbers[0, type, 1] = x / STRIDE - columns, y / STRIDE - rows
        numbers[0, type, 2], numbers[0, type, 3] = math.cos(turns * angle), math.sin(turns * angle)
        numbers[0, type, 4] = math.log(math.hypot(cos, sin))
        numbers[0, type, 5:] = size[0, n].log()[:, None, None]
        logits[0, type, math.floor(y / STRIDE + 0.5), math.floor(x / STRIDE + 0.5)] = 30
    return PartMaps(logits, numbers, torch.zeros(1, 3, 2, h, w, dtype=torch.float64))


def test_a_part_is_read_in_pixels_and_degrees(layer):
    label, pose = known()
    maps = exact(label, pose, SIZE)
    found = layer.pick(maps, 4, 0.5)
    assert (found.presence > 0).tolist() == [[True, True, False, False]]
    order = found.types[0, :2].argmax(-1).argsort()
    placed = Similarity(found.pose[0, :2][order])
    torch.testing.assert_close(placed.numbers[:, :2], pose[0, :, :2])
    torch.testing.assert_close(placed.angle, torch.tensor([20.0, -60.0]).double())  # 200 is 20 for half a turn
    torch.testing.assert_close(placed.scale, torch.tensor([1.3, 0.8]).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.size[0, :2][order], SIZE[0].double())
    read, size, _ = layer.read(maps, label, pose)
    torch.testing.assert_close(Similarity(read).angle[0], torch.tensor([20.0, -60.0]).double())
    torch.testing.assert_close(size, SIZE.double())


def test_exact_answers_have_no_loss_and_wrong_ones_have(layer):
    label, pose = known()
    maps, there = exact(label, pose, SIZE), torch.ones(1, 2, dtype=torch.bool)
    found, posed = layer.losses(maps, label, pose, SIZE.double(), there)
    assert found.item() < 1e-9
    assert posed.item() < 1e-9
    turned = (Similarity(pose) @ Similarity.of(angle=torch.tensor(180.0).double())).numbers
    _, posed = layer.losses(maps, label, turned, SIZE.double(), there)
    assert posed.item() > 1  # of the triangle; the bar is the same
    _, posed = layer.losses(maps, label, turned, SIZE.double(), torch.tensor([[True, False]]))
    assert posed.item() < 1e-9
    found, _ = layer.losses(maps._replace(logits=-maps.logits), label, pose, SIZE.double(), there)
    assert found.item() > 10


def test_a_disc_has_no_angle(layer):
    label, pose = torch.tensor([[2]]), known()[1][:, :1]
    maps, there = exact(label, pose, SIZE), torch.ones(1, 1, dtype=torch.bool)
    turned = (Similarity(pose) @ Similarity.of(angle=torch.tensor(77.0).double())).numbers
    assert layer.losses(maps, label, turned, SIZE[:, :1].double(), there)[1].item() < 1e-9
    assert Similarity(layer.pick(maps, 1, 0.5).pose).angle.item() == 0


def test_padding_and_parts_outside_count_for_nothing(layer):
    maps = layer(torch.randn(2, 5, 8, 8, dtype=torch.float64))
    label = torch.zeros(2, 1, dtype=torch.long)
    outside = torch.tensor([[[99.0, 3, 1, 0]], [[3, -50, 1, 0]]], dtype=torch.float64)
    for pose, there in ((outside, True), (torch.zeros(2, 1, 4).double(), False)):
        found, posed = layer.losses(maps, label, pose, torch.ones(2, 1, 2), torch.full((2, 1), there))
        assert posed.tolist() == [0, 0]
        assert found.isfinite().all()
        assert layer.f1(maps._replace(logits=maps.logits - 50), label, pose, torch.full((2, 1), there)).tolist() == [
            1,
            1,
        ]


def test_moving_the_map_moves_the_poses(layer):
    maps = layer(torch.randn(1, 5, 8, 8, dtype=torch.float64))
    moved = PartMaps(*(each.roll((1, 2), (-2, -1)) for each in maps))
    label, pose = torch.tensor([[1]]), torch.tensor([[[5.0, 7.0, 1, 0]]]).double()
    step = torch.tensor([2 * STRIDE, STRIDE, 0, 0]).double()
    before, after = layer.read(maps, label, pose)[0], layer.read(moved, label, pose + step)[0]
    torch.testing.assert_close(after, before + step)


def test_neighbours_of_a_peak_are_no_parts(layer):
    label, pose = known()
    maps = exact(label, pose, SIZE)
    maps.logits[0, 0, 2, 2:5] = torch.tensor([1.0, 2.0, 1.0]).double()
    assert (layer.pick(maps, 9, 0.5).presence > 0.5).sum().item() == 2
    there = torch.ones(1, 2, dtype=torch.bool)
    assert layer.f1(maps, label, pose, there).item() == 1
    maps.logits[0, 2, 6, 6] = 3.0  # a disc where there is none: two of three
    assert layer.f1(maps, label, pose, there).item() == pytest.approx(2 * 2 / (3 + 2))


def test_gradients(layer):
    label, pose = known()
    there = torch.ones(1, 2, dtype=torch.bool)

    def loss(features):
        return sum(layer.losses(layer(features), label, pose, SIZE.double(), there))

    torch.autograd.gradcheck(loss, torch.randn(1, 5, 6, 6, dtype=torch.float64, requires_grad=True))


def test_wrong_arguments_are_named():
    with pytest.raises(UserError, match="symmetry for each of the 3 types"):
        PartCaps(5, 3, symmetry=(1,))
    with pytest.raises(UserError, match="types"):
        PartCaps(5, 0)
