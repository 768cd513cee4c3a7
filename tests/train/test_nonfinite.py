"""A nonfinite loss: the step and the layer are named, and the weights stay as they were, or the step is skipped."""

import math

import pytest
import torch
from torch import nn

from torchcaps.data import load_data, mask_sources
from torchcaps.errors import UserError
from torchcaps.train import loop, run
from torchcaps.train import state as train_state
from torchcaps.train.callbacks import Callback
from torchcaps.train.checkpoint import saved_step
from torchcaps.train.distributed import make_fabric
from torchcaps.train.nonfinite import Diverged, NonfiniteGuard, find_nonfinite_layer
from torchcaps.train.recipe import load_recipe
from torchcaps.train.setup import make_state
from torchcaps.train.state import seeded

CPU = torch.device("cpu")
TINY = [
    *("data.image_size=12", "data.limit=80", "data.validation=0", "data.test=20", "model.channels=2", "model.types=2"),
    *("model.hidden=[4]", "train.batch_size=16", "train.epochs=2"),
]


class Spoiled(nn.Module):
    """Passes on what it gets, but for some calls: then a number of it is none, or one of its gradient."""

    def __init__(self, calls, backward):
        super().__init__()
        self.calls, self.backward, self.seen = set(calls), backward, 0

    def forward(self, values):
        self.seen += 1
        if self.seen not in self.calls:
            return values
        if not self.backward:
            return values * math.nan
        kept = values.clone()
        kept.register_hook(lambda gradient: gradient * math.nan)
        return kept


def trained(*more, calls=(), backward=False, steps=None, recipe="digits", settings=TINY):
    """A state after training with a first layer that spoils some steps; it stops after so many."""

    class Stop(Callback):
        def should_stop(self):
            return state.step == steps

    recipe = load_recipe(recipe, [*settings, *more])
    data = load_data(**recipe.data.model_dump()).train
    with seeded(0, CPU):
        state, task = make_state(recipe, data, CPU)
        spoil = Spoiled(calls, backward)
        layer = state.model.conv
        state.model.conv = nn.Sequential(layer, spoil)
        try:
            loop.train(state, data, None, task, recipe, make_fabric("cpu", "fp32"), Stop())
        except loop.Interrupted:
            pass
        except Diverged as error:
            return state, str(error)
    return state, ""


def weights(state):
    return torch.cat([parameter.detach().flatten() for parameter in state.model.parameters()])


@pytest.mark.parametrize("optimiser", ["adam", "adamw", "muon"])
def test_the_step_and_the_layer_are_named_and_the_weights_are_those_from_before(optimiser):
    spoiled, told = trained(f"optim.name={optimiser}", calls=range(3, 99))
    assert told == "the loss became NaN or infinite in step 3 (epoch 1): layer conv.1 produced NaN or inf"
    assert torch.equal(weights(spoiled), weights(trained(f"optim.name={optimiser}", steps=2)[0]))


def test_a_step_in_the_second_epoch_is_counted_on():
    assert "in step 8 (epoch 2): " in trained(calls=range(8, 99))[1]


@pytest.mark.parametrize("backward", [False, True], ids=["loss", "gradient"])
@pytest.mark.parametrize("optimiser", ["adam", "muon"])
def test_steps_are_skipped_steps_where_that_is_asked_for(optimiser, backward):
    state, told = trained(
        "train.on_nan=skip", f"optim.name={optimiser}", "optim.clip=1", calls=(3, 7), backward=backward
    )
    assert (told, state.step) == ("", 10)
    assert weights(state).isfinite().all()
    assert [line["skipped_steps"] for line in state.history] == [1, 1]
    assert all(math.isfinite(line["train_loss"]) and line["train_loss"] > 0 for line in state.history)


def test_a_step_that_is_skipped_steps_is_as_if_it_had_not_been():
    """But for what it took of the random numbers and of the learning rate's way, and both are the same here."""
    settings = ("train.on_nan=skip", "optim.schedule=constant", "augment.shift=0")
    with_it, _ = trained(*settings, calls=(5,), steps=5)
    assert torch.equal(weights(with_it), weights(trained(*settings, steps=4)[0]))


def test_an_epoch_of_nothing_else_ends_the_run():
    assert trained("train.on_nan=skip", calls=range(1, 99))[1].startswith("the loss was NaN or infinite in every step")


def test_an_epoch_without_such_a_step_says_nothing_of_it():
    assert "skipped_steps" not in trained()[0].history[0]


def test_of_two_networks_either_counts(monkeypatch):
    monkeypatch.setattr(mask_sources, "AXONS", 12)
    monkeypatch.setattr(mask_sources, "TEST_AXONS", 2)
    small = ["model.channels=2", "augment.crop=16", "data.image_size=16", "discriminator.channels=2"]
    recipe = load_recipe("capspix2pix", [*small, "train.epochs=1", "train.batch_size=4", "data.validation=0"])
    data = load_data(**recipe.data.model_dump()).train
    with seeded(0, CPU):
        state, task = make_state(recipe, data, CPU)
        with torch.no_grad():
            next(state.discriminator.parameters()).fill_(math.nan)
        before = weights(state)
        with pytest.raises(Diverged, match="in step 1 "):
            loop.train(state, data, None, task, recipe, make_fabric("cpu", "fp32"), Callback())
    assert torch.equal(weights(state), before)


def test_first_and_count_are_kept_until_they_are_read():
    guard = NonfiniteGuard(CPU, [], step=10, skips=False)
    for loss in (1.0, math.inf, 1.0, math.nan):
        guard.check_loss(torch.tensor(loss))
    assert guard.read() == (12, 2)
    assert guard.read() == (None, 0)


def test_where_numbers_stop_being_numbers():
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 1))
    data = torch.ones(4, 2)
    assert find_nonfinite_layer(model, lambda: model(data).sum()) == "it did not happen again with another batch"
    assert (
        find_nonfinite_layer(model, lambda: model(data).sum() / 0)
        == "the loss itself is not finite although the model's outputs are"
    )
    handle = model[1][0].register_forward_hook(lambda module, inputs, output: output / 0)
    assert find_nonfinite_layer(model, lambda: model(data).sum()) == "layer 1.0 produced NaN or inf"
    handle.remove()
    model[0].weight.register_hook(lambda gradient: gradient * math.nan)
    assert find_nonfinite_layer(model, lambda: model(data).sum()) == "the gradient of 0.weight is not finite"
    with torch.no_grad():
        model[2].bias.fill_(math.inf)
        model[2].weight.fill_(math.nan)
    assert find_nonfinite_layer(model, lambda: model(data).sum()) == "the weight 2.weight is not finite (and 1 more)"
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_run_names_the_last_good_state(tmp_path, monkeypatch):
    real = train_state.learning_rate
    monkeypatch.setattr(train_state, "learning_rate", lambda step, *rest: math.nan if step >= 6 else real(step, *rest))
    folder = tmp_path / "run"
    told = rf"in step 8 \(epoch 2\): the weight .* The state after step 5 is saved; .*--resume {folder}; lower optim"
    with pytest.raises(UserError, match=told):
        run.start_run(load_recipe("digits", TINY), out=folder, device="cpu")
    assert saved_step(folder / "checkpoints") == 5
