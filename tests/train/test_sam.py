"""Sharpness-aware minimisation: where the slope is taken, that weights come back, and that a run with it learns."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from torchcaps.data import load_data
from torchcaps.errors import UserError
from torchcaps.train import loop
from torchcaps.train.callbacks import Callback
from torchcaps.train.distributed import make_fabric
from torchcaps.train.nonfinite import Diverged
from torchcaps.train.optim.sam import SAM
from torchcaps.train.recipe import load_recipe, make_recipe
from torchcaps.train.run import resume_run, start_run
from torchcaps.train.setup import make_state


def test_weights_go_up_the_slope_by_the_reach_and_come_back_exactly():
    first, second = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([3.0]))
    first.grad, second.grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    before = [each.detach().clone() for each in (first, second)]
    with SAM([first, second], 0.5).perturbed():  # the slope is 5 long
        torch.testing.assert_close(first.detach(), torch.tensor([1.3, 2.0]))
        torch.testing.assert_close(second.detach(), torch.tensor([3.4]))
    assert all(torch.equal(now, then) for now, then in zip((first, second), before))


def test_weights_come_back_after_an_error_and_where_there_is_no_slope():
    weight, without = nn.Parameter(torch.tensor([1.0])), nn.Parameter(torch.ones(2))
    weight.grad = torch.full((1,), 2.0)

    def fail():
        with SAM([weight, without], 0.5).perturbed():
            assert (weight.item(), without.tolist()) == (1.5, [1.0, 1.0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert weight.item() == 1.0
    weight.grad = torch.zeros(1)
    with SAM([weight], 0.5).perturbed():
        assert weight.item() == 1.0


def test_the_slope_is_that_of_the_worst_place_nearby_worked_by_hand():
    """Loss w⁴ at 1: up by 0.1 to 1.1, whose slope is 4 · 1.1³."""
    weight = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    (weight**4).backward()
    with SAM([weight], 0.1).perturbed():
        weight.grad = None
        (weight**4).backward()
    assert weight.grad.item() == pytest.approx(4 * 1.1**3)
    assert weight.item() == 1.0


TINY = [
    *("data.image_size=12", "data.limit=100", "data.validation=0", "train.read_test=no", "train.batch_size=16"),
    *("model.channels=4", "model.types=2", "model.hidden=[16]", "train.epochs=2"),
]
SMALL = [*TINY, "optim.sam_rho=0.05"]


def test_a_run_with_it_learns_otherwise_and_resumes_bit_for_bit(tmp_path):
    def last(folder):
        return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])

    def told(folder):
        return {name: value for name, value in last(folder).items() if name != "images_per_second"}

    whole = start_run(load_recipe("digits", SMALL), out=tmp_path / "whole", device="cpu")
    without = start_run(load_recipe("digits", TINY), out=tmp_path / "without", device="cpu")
    assert last(whole)["train_loss"] != last(without)["train_loss"]
    assert last(whole)["train_loss"] < json.loads((whole / "metrics.jsonl").read_text().splitlines()[0])["train_loss"]
    steady = [*SMALL, "optim.schedule=constant"]
    half = start_run(load_recipe("digits", [*steady, "train.epochs=1"]), out=tmp_path / "half", device="cpu")
    resumed = resume_run(half, ["train.epochs=2"], device="cpu")
    other = start_run(load_recipe("digits", steady), out=tmp_path / "other", device="cpu")
    assert told(resumed) == told(other)


def test_a_loss_that_is_not_finite_after_the_perturbation_ends_the_run(tmp_path):
    """With a perturbation that float32 cannot hold the second loss is not finite, and no weight is updated by it."""
    recipe = load_recipe("digits", [*SMALL, "optim.sam_rho=1e39"])
    data = load_data(**recipe.data.model_dump())
    state, task = make_state(recipe, data.train, torch.device("cpu"))
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    with pytest.raises(Diverged, match="step 1"):
        loop.train(state, data.train, None, task, recipe, make_fabric("cpu", "fp32"), Callback())
    after = state.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_drawn_images_refuse_it():
    from torchcaps.data import draw_axons
    from torchcaps.train.setup import make_state

    recipe = make_recipe({"name": "x", "model": {"name": "capspix2pix_small"}, "optim": {"sam_rho": 0.1}})
    with pytest.raises(UserError, match=r"optim\.sam_rho is not for synthesis"):
        make_state(recipe, draw_axons(2), torch.device("cpu"))


def test_a_negative_reach_is_refused():
    with pytest.raises(UserError, match=r"optim\.sam_rho"):
        load_recipe("digits", ["optim.sam_rho=-1"])
    assert math.isclose(load_recipe("digits", ["optim.sam_rho=0.1"]).optim.sam_rho, 0.1)
