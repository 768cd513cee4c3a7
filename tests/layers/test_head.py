"""Capsules behind any network, with matrices that all places share."""

import pytest
import torch
from torch import nn

import torchcaps
from torchcaps.errors import UserError
from torchcaps.layers import ROUTINGS, CapsHead, DenseCaps
from torchcaps.ops import dynamic_routing

SQUARE = {"dim": 4, "class_dim": 4}  # which EM can route, too


@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_shared_matrices_are_repeated_matrices(iterations, leaky):
    u, weight, bias = (torch.randn(*s, dtype=torch.float64) for s in ((3, 5 * 6, 4), (5, 7, 9, 4), (7, 9)))
    found = []
    for places in (1, 6):
        inputs = [each.clone().requires_grad_() for each in (u, weight, bias)]
        used = inputs[1].repeat_interleave(6, 0) if places == 1 else inputs[1]
        options = {
            "bias": inputs[2],
            "leaky": leaky,
            "places": places,
            "inverse_temperature": 3.0,
            "return_couplings": True,
        }
        routed = dynamic_routing(inputs[0], used, iterations, **options)
        total = routed.poses.sin().sum() + routed.couplings.square().sum()
        gradients = torch.autograd.grad(total, inputs)
        found.append([routed.poses, routed.couplings, *gradients])
    for one, other in zip(*found):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("routing", sorted(ROUTINGS))
def test_a_layer_that_shares_is_a_layer_of_equal_matrices(routing):
    torch.manual_seed(0)
    shared = DenseCaps(3 * 5, 4, 6, 4, routing=routing, places=5)
    each = DenseCaps(3 * 5, 4, 6, 4, routing=routing)
    assert shared.weight.shape[:2] == (3, 6)
    each.load_state_dict({name: value.detach() for name, value in shared.weights.items()})
    children = torch.rand(2, 15, 4)
    one, other = (layer(children, return_couplings=True) for layer in (shared, each))
    torch.testing.assert_close(one[0].activation, other[0].activation)
    torch.testing.assert_close(one[0].pose, other[0].pose)
    if other[1] is not None:
        torch.testing.assert_close(one[1], other[1])


def test_places_must_divide_the_children():
    with pytest.raises(UserError, match="multiple of places"):
        DenseCaps(10, 4, 3, 4, places=4)


@pytest.mark.parametrize("routing", sorted(ROUTINGS))
@pytest.mark.parametrize("classes", [2, 1000])
def test_a_head_of_any_routing_and_number_of_classes(routing, classes):
    torch.manual_seed(0)
    head = CapsHead(12, (3, 2), classes, types=4, routing=routing, **SQUARE)
    capsules = head(torch.randn(5, 12, 3, 2))
    assert capsules.pose.shape == (5, classes, 4)
    assert ((capsules.activation >= 0) & (capsules.activation <= 1)).all()
    capsules.activation.sum().backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in head.parameters())


@pytest.mark.parametrize(("classes", "least", "most"), [(2, 0.3, 0.8), (10, 0.3, 0.8), (100, 0.3, 0.8)])
def test_classes_start_about_half_as_long_as_they_can_get(classes, least, most):
    torch.manual_seed(0)
    head = CapsHead(64, (7, 7), classes)
    lengths = head(5 * torch.rand(16, 64, 7, 7)).activation
    assert least < lengths.mean() < most


def test_parameters_do_not_depend_on_the_size_of_the_map():
    counts = {size: CapsHead(64, size, 10).parameter_count() for size in ((1, 1), (7, 7), (16, 16), (56, 40))}
    assert len(set(counts.values())) == 1
    head = CapsHead(64, (56, 40), 10)
    assert head.grid == (4, 4)
    assert head.children_of(torch.rand(2, 64, 56, 40)).pose.shape == (2, 16 * 16, 8)
    assert "4×4, 256 capsules → 10 classes" in repr(head)


def test_windows_at_the_border_average_what_is_there():
    head = CapsHead(2, (5, 5), 3, types=1, dim=2, grid=3).eval()
    maps = torch.zeros(1, 2, 5, 5)
    maps[..., 4, 4] = 1
    ones = head.children_of(torch.ones(1, 2, 5, 5)).pose
    torch.testing.assert_close(head.children_of(maps).pose[:, -1], ones[:, -1])


class Features(nn.Module):
    """A network with several feature maps."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, 2), nn.Conv2d(4, 6, 3, 2)

    def forward(self, images):
        maps = self.first(images).relu()
        return [maps, self.second(maps).relu()]


def test_a_head_behind_any_network():
    backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)).train()
    backbone[1].eval()
    head = CapsHead.behind(backbone, (1, 9, 7), 3, types=2)
    assert (head.in_channels, head.size) == (4, (7, 5))
    assert backbone[0].training
    assert not backbone[1].training
    assert backbone[1].num_batches_tracked == 0
    images, labels = torch.rand(12, 1, 14, 14), torch.arange(12) % 2
    network = nn.Sequential(several := Features(), CapsHead.behind(several, (1, 14, 14), 2, types=2))
    trained, history = torchcaps.fit(network, images, labels, epochs=1, batch_size=6)
    assert trained is network
    assert history[0]["train_loss"] > 0


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Flatten(), "returned a tensor .1, 81., and capsules need a feature map"),
        (nn.Conv2d(3, 4, 3), "cannot be applied to images of .1, 9, 9."),
        (nn.LSTM(9, 9), "cannot be applied|returned a"),
    ],
)
def test_what_is_no_backbone(network, message):
    with pytest.raises(UserError, match=message):
        CapsHead.behind(network, (1, 9, 9), 3)


def test_maps_of_another_shape():
    head = CapsHead(4, (3, 3), 2)
    with pytest.raises(ValueError, match=r"expected a feature map of shape \(B, 4, 3, 3\), got \(2, 4, 5, 5\)"):
        head(torch.rand(2, 4, 5, 5))
    with pytest.raises(UserError, match="size must be"):
        CapsHead(4, (0, 3), 2)
    with pytest.raises(UserError, match="same square number"):
        CapsHead(4, (3, 3), 2, routing="em")
