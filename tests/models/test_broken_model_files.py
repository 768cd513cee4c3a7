"""What each kind of file that holds no model, or another, is told."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from torchcaps.errors import UserError
from torchcaps.models import load, save
from torchcaps.models.files import make_config


def write(model, path, change=None, tensors=None):
    """A weights file whose config, or tensors, are not what they should be."""
    config = make_config(model)
    if change:
        change(config)
    save_file(model.state_dict() if tensors is None else tensors, path, {"torchcaps": json.dumps(config)})
    return path


def test_a_text_file_is_not_a_model(tmp_path):
    path = tmp_path / "notes.safetensors"
    path.write_text("no model at all, only words, and not few of them")
    with pytest.raises(UserError, match=r"notes.safetensors cannot be read as a model"):
        load(path)


def test_a_truncated_file_is_not_a_model(small, tmp_path):
    weights = save(small, tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"model.safetensors cannot be read as a model"):
        load(tmp_path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"torchcaps": "[]"}], ids=["none", "other", "empty"])
def test_a_foreign_file_is_told(tmp_path, metadata):
    save_file({"weight": torch.zeros(2)}, tmp_path / "x.safetensors", metadata)
    with pytest.raises(UserError, match="was not saved by torchcaps"):
        load(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda config: config.update(architecture="CapsuleGAN"),
            "holds a 'CapsuleGAN': this version .* no such model",
        ),
        (lambda config: config.update(format="9"), "has format '9', this version reads '1': upgrade"),
        (lambda config: config["arguments"].update(num_classes=4, class_names=None), "does not fit .*size mismatch"),
    ],
    ids=["architecture", "format", "state"],
)
def test_a_config_that_does_not_fit_is_told(small, tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        load(write(small, tmp_path / "x.safetensors", change))


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config.pop("arguments"),
        lambda config: config["arguments"].update(from_a_later_version=1),
        lambda config: config["arguments"].update(num_classes="three"),
        lambda config: config["arguments"].update(iterations=0),
    ],
    ids=["none", "unknown", "type", "value"],
)
def test_arguments_that_make_no_model_are_told(small, tmp_path, change):
    path = write(small, tmp_path / "x.safetensors", change)
    with pytest.raises(UserError, match=r"x\.safetensors"):
        load(path)


@pytest.mark.parametrize("change", ["missing", "unexpected"])
def test_a_state_that_does_not_fit_is_told(small, tmp_path, change):
    tensors = dict(small.state_dict())
    if change == "missing":
        del tensors["classes.weight"]
    else:
        tensors["classes.logits"] = torch.zeros(2)
    with pytest.raises(UserError, match="does not fit the model it describes"):
        load(write(small, tmp_path / "x.safetensors", tensors=tensors))
