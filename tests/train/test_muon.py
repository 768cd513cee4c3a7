"""Muon: turned gradients for matrices, AdamW for the rest."""

import copy
import math

import pytest
import torch
from torch import nn

from torchcaps.data import load_data
from torchcaps.layers import DenseCaps
from torchcaps.models import create_model
from torchcaps.train.optim.muon import LIKE_ADAM, NEWTON_SCHULZ, ROUNDS, Muon, by_shape, factors
from torchcaps.train.recipe import load_recipe
from torchcaps.train.setup import make_state


def orthogonal(matrix):
    return torch.mm(*factors(matrix))


OPTIONS = {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.0}


@pytest.mark.parametrize("shape", [(8, 50), (50, 8), (1, 7)])
def test_singular_values_become_about_one_and_directions_stay(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    turned = left.T @ orthogonal(1000 * matrix) @ right.T
    assert values.max() / values.min() > 1.3 or len(values) == 1
    assert torch.all((turned.diagonal() - 1).abs() < 0.35)
    assert (turned - turned.diagonal().diag()).abs().max() < 0.02


@pytest.mark.parametrize("shape", [(8, 50), (50, 8)])
def test_five_rounds_of_the_published_polynomial(shape):
    matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = matrix / matrix.norm()
    for _ in range(ROUNDS):
        a, b, c = NEWTON_SCHULZ
        x = a * x + b * x @ x.T @ x + c * x @ x.T @ x @ x.T @ x
    torch.testing.assert_close(orthogonal(matrix), x)


def test_what_is_nearly_of_lower_rank_does_not_blow_up():
    """Rounding leaves a Gram matrix with small eigenvalues below 0, which rounds of the polynomial enlarge."""
    g = torch.Generator().manual_seed(0)
    matrix = torch.randn(64, 2, generator=g) @ torch.randn(2, 3000, generator=g)
    assert torch.linalg.matrix_norm(orthogonal(matrix), 2) < 1.3


def test_a_gradient_of_nothing_moves_nothing():
    assert torch.equal(orthogonal(torch.zeros(3, 5)), torch.zeros(3, 5))


@pytest.mark.parametrize("rows", [4, 40])  # fewer than columns, and more
@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_a_step_of_a_convolution_by_hand(rows, decay):
    weight = nn.Parameter(torch.randn(rows, 2, 3, 3, generator=torch.Generator().manual_seed(0)))
    optimizer = Muon([{"params": [weight], "rows": (0,)}], **(OPTIONS | {"weight_decay": decay}))
    before, mean = weight.detach().clone(), torch.zeros(rows, 18)
    for seed in (1, 2):
        gradient = torch.randn(rows, 18, generator=torch.Generator().manual_seed(seed))
        weight.grad = gradient.view_as(weight).clone()
        optimizer.step()
        mean = 0.9 * mean + 0.1 * gradient
        before *= 1 - 0.1 * decay
        step = 0.1 * LIKE_ADAM * math.sqrt(max(rows, 18)) * orthogonal(0.1 * gradient + 0.9 * mean)
        before -= step.view_as(before)
        assert torch.equal(weight.grad.view(rows, 18), gradient)
    torch.testing.assert_close(weight.detach(), before)


def test_how_a_weight_lies_in_memory_changes_nothing():
    after = []
    for layout in (torch.contiguous_format, torch.channels_last):
        weight = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0)).to(memory_format=layout)
        weight = nn.Parameter(weight)
        weight.grad = weight.detach().sin()
        Muon([{"params": [weight], "rows": (0,)}], **OPTIONS).step()
        after.append(weight.detach())
    torch.testing.assert_close(*after)


def test_capsules_are_turned_as_one_matrix_from_all_children_to_all_parents():
    layer = DenseCaps(5, 2, 3, 4)
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.randn_like(before)
    Muon(by_shape(layer), **OPTIONS).step()
    step = (layer.weight.detach() - before).permute(1, 2, 0, 3).reshape(12, 10)
    values = torch.linalg.svdvals(step) / (0.1 * LIKE_ADAM * math.sqrt(12))
    assert torch.all((values - 1).abs() < 0.4)


def test_the_rest_is_adamw():
    vectors = [nn.Parameter(torch.linspace(-1, 1, 5)) for _ in range(2)]
    optimizers = [Muon([{"params": vectors[:1]}], **OPTIONS), torch.optim.AdamW(vectors[1:], **OPTIONS)]
    for _ in range(3):
        for vector, optimizer in zip(vectors, optimizers):
            vector.grad = vector.detach().cos()
            optimizer.step()
    assert torch.equal(*vectors)


@pytest.mark.parametrize("name", ["capsnet", "segcaps", "em_capsnet", "efficient_capsnet", "unet"])
def test_every_weight_is_in_one_group(name):
    model = create_model(name, image_shape=(1, 32, 32))
    groups = by_shape(model)
    assert sorted(map(id, model.parameters())) == sorted(id(weight) for group in groups for weight in group["params"])
    assert groups[0]["rows"], "none of them is a matrix"
    assert groups[-1]["rows"] == ()


def test_goes_on_from_its_state_as_if_nothing_had_happened():
    model = nn.Conv2d(2, 3, 2)
    twin = copy.deepcopy(model)
    optimizers = [Muon(by_shape(each), **OPTIONS) for each in (model, twin)]

    def step(module, optimizer):
        for weight in module.parameters():
            weight.grad = weight.detach().sin()
        optimizer.step()

    step(model, optimizers[0])
    twin.load_state_dict(model.state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    for module, optimizer in zip((model, twin), optimizers):
        step(module, optimizer)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), twin.parameters()))


def test_a_recipe_asks_for_it():
    recipe = load_recipe("digits", ["optim.name=muon", "model.channels=2"])
    state, _ = make_state(recipe, load_data("digits", image_size=12).train, torch.device("cpu"))
    assert isinstance(state.optimizer, Muon)
    assert [group["rows"] for group in state.optimizer.param_groups] == [(1, 2), (0,), ()]
