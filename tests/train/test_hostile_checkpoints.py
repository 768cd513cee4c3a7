"""Checkpoints that were damaged, or are not what they say: refused by name."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from torchcaps.errors import UserError
from torchcaps.io.tensors import checksum
from torchcaps.models import create_model
from torchcaps.train.checkpoint import LAST, load_checkpoint, save_checkpoint
from torchcaps.train.state import State


def make_state():
    model = create_model("capsnet_small", image_shape=(1, 14, 14), num_classes=2, decoder="none")
    optimizer = torch.optim.Adam(model.parameters())
    sum(parameter.sum() for parameter in model.parameters()).backward()
    optimizer.step()
    return State(model, optimizer, torch.Generator(), epoch=2, step=9, totals={"loss": 1.0}, data="abc")


@pytest.fixture
def rewrite(tmp_path):
    """rewrite(text, tensor=…) saves a good state again with some of it changed, and a checksum of what it then is."""

    def saved(text=None, **changes):
        path = tmp_path / LAST
        save_checkpoint(make_state(), tmp_path)
        with safe_open(path, framework="pt") as file:
            metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        plain = json.loads(metadata["state"])
        tensors |= {name: value for name, value in changes.items() if isinstance(value, torch.Tensor)}
        plain |= {name: value for name, value in changes.items() if not isinstance(value, torch.Tensor)}
        metadata["state"] = json.dumps(plain) if text is None else text
        save_file(tensors, path, metadata | {"checksum": checksum(tensors, metadata)})
        return tmp_path

    return saved


def test_an_unchanged_one_is_read_whole(rewrite):
    state = make_state()
    state.epoch, state.totals = 0, {}
    load_checkpoint(state, rewrite())
    assert (state.epoch, state.step, state.totals, state.data) == (2, 9, {"loss": 1.0}, "abc")


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("[" * 100_000, {}, "not JSON"),
        ("{", {}, "not JSON"),
        ("[]", {}, "its progress: input should be a valid dict"),
        ("{}", {}, "epoch: field required"),
        (None, {"model": 5}, "model: extra inputs are not permitted"),  # which once replaced the model by 5
        (None, {"epoch": "two"}, "epoch: .*integer, got 'two'"),
        (None, {"epoch": True}, "epoch: .*integer, got True"),
        (None, {"step": -1}, "step: .*greater than or equal to 0, got -1"),
        (None, {"history": {}}, "history: .*valid list"),
        (None, {"best": float("nan")}, "best: .*finite number"),
        (None, {"random/torch": torch.zeros(3)}, "another model"),
        (None, {"random/augment": torch.zeros(3, dtype=torch.uint8)}, "another model"),
        (None, {"optimizer/x/exp_avg": torch.zeros(3)}, "another model"),
        (None, {"model/extra": torch.zeros(3)}, "another model"),
    ],
)
def test_a_damaged_one_is_refused_by_name(rewrite, text, changes, message):
    folder = rewrite(text, **changes)
    with pytest.raises(UserError, match=f"last.safetensors .*{message}"):
        load_checkpoint(make_state(), folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer/999/exp_avg": torch.zeros(3)}, "moments of weight 999"),  # once a bare KeyError
        ({"optimizer/0/exp_avg": torch.zeros(3)}, "moments of weight 0"),
        ({"optimizer/0/mean": torch.zeros(3)}, "moments of weight 0 are not what Adam keeps"),
        ({"optimizer/0/step": torch.zeros(2)}, "moments of weight 0"),
    ],
)
def test_moments_that_are_not_of_these_weights(rewrite, changes, message):
    with pytest.raises(UserError, match=f"belongs to another model: .*{message}"):
        load_checkpoint(make_state(), rewrite(**changes))
