import math

import pytest
import torch

from torchcaps.capsules import Capsules
from torchcaps.errors import UserError
from torchcaps.explain import coupling_entropy, maps_on_image, routing_couplings, routing_maps
from torchcaps.models import create_model

J = 4


@pytest.fixture
def model():
    torch.manual_seed(0)
    return create_model("capsnet_small", image_shape=(1, 13, 17), num_classes=J, types=2)  # a grid of 3 × 5


def agreeing(model, monkeypatch, row: int, column: int):
    """One child, of the second type, votes for class 1 with all its weight; the others vote for nothing."""
    child = 1 * 15 + row * 5 + column
    with torch.no_grad():
        model.classes.weight.zero_()
        model.classes.weight[child, 1] = 1.0
    poses = torch.full((2, 30, 8), 0.1)
    monkeypatch.setattr(model, "children_of", lambda images: Capsules(poses))
    return model


def test_the_map_lights_where_the_agreeing_child_sits(model, monkeypatch):
    maps = routing_maps(agreeing(model, monkeypatch, 0, 3), torch.rand(2, 1, 13, 17), weighted=False)
    assert maps.shape == (3, 2, J, 3, 5)
    torch.testing.assert_close(maps[0], torch.full_like(maps[0], 2 / J))  # two types, uniform at first
    elsewhere = torch.ones(3, 5, dtype=torch.bool)
    elsewhere[0, 3] = False
    for later in maps[1:]:
        assert (later[:, 1, 0, 3] > 2 / J + 0.1).all()
        assert (later[:, 0, 0, 3] < 2 / J).all()  # what class 1 gained, the others lost
        torch.testing.assert_close(later[..., elsewhere], torch.full_like(later[..., elsewhere], 2 / J))
    assert (maps[2, :, 1, 0, 3] > maps[1, :, 1, 0, 3]).all()


def test_weighted_maps_count_a_child_by_its_length(model):
    images = torch.rand(3, 1, 13, 17)
    lengths = model.children_of(images).activation
    maps = routing_maps(model, images, iterations=2)
    # Couplings sum to 1 over the classes, so the maps of all classes sum to the lengths, type by type.
    torch.testing.assert_close(maps.sum(2), lengths.view(3, 2, 3, 5).sum(1).expand(2, 3, 3, 5))


def test_couplings_are_those_of_each_iteration(model):
    images = torch.rand(2, 1, 13, 17)
    couplings = routing_couplings(model, images)
    torch.testing.assert_close(couplings[0], torch.full_like(couplings[0], 1 / J))
    _, last = model.classes(model.children_of(images), return_couplings=True)
    torch.testing.assert_close(couplings[-1], last)


def test_entropy_of_uniform_decided_and_leaky_couplings(model, monkeypatch):
    uniform = torch.full((2, 30, J), 1 / J, dtype=torch.float64)
    torch.testing.assert_close(coupling_entropy(uniform), torch.full((2,), math.log(J)).double())
    assert coupling_entropy(torch.eye(J)[None]).tolist() == [0.0]
    leaky = torch.full((1, 30, J), 1 / (J + 1), dtype=torch.float64)  # the rest stays with the child
    torch.testing.assert_close(coupling_entropy(leaky), torch.tensor([math.log(J + 1)]).double())
    falling = coupling_entropy(routing_couplings(agreeing(model, monkeypatch, 1, 1), torch.rand(2, 1, 13, 17)))
    assert (falling.diff(dim=0) < 0).all()


def test_leaky_maps_leave_room_for_no_class():
    leaky = create_model("capsnet_small", image_shape=(1, 13, 13), num_classes=J, leaky=True)
    couplings = routing_couplings(leaky, torch.rand(1, 1, 13, 13))
    torch.testing.assert_close(couplings[0], torch.full_like(couplings[0], 1 / (J + 1)))


@pytest.mark.parametrize("options", [{}, {"padding": 1}, {"stride": 1}, {"kernel": 4, "stride": 3}])
def test_maps_sit_on_the_pixels_that_a_child_looks_at(options):
    model = create_model("capsnet_small", image_shape=(1, 19, 23), num_classes=2, types=1, **options).double()
    rows, columns = model.grid
    row, column = rows // 2, columns // 2 + 1
    one = torch.zeros(rows, columns, dtype=torch.float64)
    one[row, column] = 1
    image = torch.rand(1, 1, 19, 23, dtype=torch.float64, requires_grad=True)
    model.children_of(image).pose[0, row * columns + column].sum().backward()
    seen = image.grad[0, 0].abs() > 0
    assert centre(maps_on_image(model, one)) == pytest.approx(centre(box(seen)))


def box(seen):
    """The bounding box of what is seen, filled: dead ReLUs leave holes in a receptive field."""
    filled = torch.zeros(seen.shape, dtype=torch.float64)
    (top, left), (bottom, right) = seen.nonzero().min(0).values, seen.nonzero().max(0).values
    filled[top : bottom + 1, left : right + 1] = 1
    return filled


def centre(weights) -> list[float]:
    places = torch.stack(torch.meshgrid(*(torch.arange(n) for n in weights.shape), indexing="ij")).double()
    return ((places * weights).sum((1, 2)) / weights.sum()).tolist()


def test_what_cannot_be_routed_says_so(model):
    with pytest.raises(UserError, match="no capsules"):
        routing_maps(create_model("matched_cnn", image_shape=(1, 12, 12), parameters=20_000), torch.rand(1, 1, 12, 12))
    with pytest.raises(UserError, match="at least 1"):
        routing_maps(model, torch.rand(1, 1, 13, 17), iterations=0)
