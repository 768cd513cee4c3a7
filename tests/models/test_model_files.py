"""Saving and loading: what is kept, and where a name is looked for."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import torchcaps
from torchcaps.errors import UserError
from torchcaps.models import CNN, CapsNet, create_model, list_models, load, save, shipped_models
from torchcaps.models import files as model_files
from torchcaps.models.files import make_config


def test_preprocessing_and_names_are_kept(tmp_path):
    about = {"class_names": ["α", "b"], "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "resize_to": (20, 22)}
    model = create_model("capsnet_small", image_shape=(3, 14, 15), num_classes=2, **about).eval()
    loaded = load(save(model, tmp_path))
    assert loaded.class_names == ("α", "b")
    assert loaded.resize_to == (20, 22)
    assert loaded.image_shape == (3, 14, 15)
    assert torch.equal(loaded.mean, model.mean)
    assert torch.equal(loaded.std, model.std)
    assert loaded.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    images = torch.rand(2, 3, 14, 15)
    assert torch.equal(loaded(images).lengths, model(images).lengths)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config == json.loads(json.dumps(make_config(model)))


def test_what_is_set_after_making_is_kept(small, tmp_path):
    small.class_names = ("a", "b", "c")
    small.trained_by = {"recipe": "digits", "seed": 3}
    loaded = load(save(small, tmp_path))
    assert loaded.class_names == ("a", "b", "c")
    assert loaded.trained_by == {"recipe": "digits", "seed": 3}


def test_saving_twice_leaves_only_the_second(small, tmp_path):
    save(small, tmp_path)
    with torch.no_grad():
        small.classes.weight.zero_()
    save(small, tmp_path)
    assert load(tmp_path).classes.weight.abs().max() == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_weights_stored_in_half_precision_load_as_float32(small, tmp_path):
    halves = {name: tensor.half() for name, tensor in small.state_dict().items()}
    save_file(halves, tmp_path / "half.safetensors", {"torchcaps": json.dumps(make_config(small))})
    loaded = load(tmp_path / "half.safetensors")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    images = torch.rand(2, 1, 14, 14)
    torch.testing.assert_close(loaded(images).lengths, small(images).lengths, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("options", [{"num_classes": np.int64(3)}, {"mean": np.float32([0.5])}], ids=["int", "mean"])
def test_numpy_arguments_can_be_saved(options, tmp_path):
    model = create_model("capsnet_small", image_shape=(1, 14, 14), **options)
    assert load(save(model, tmp_path)).num_classes == model.num_classes


def test_the_class_asked_for_is_the_class_given(small, tmp_path):
    small.save_pretrained(tmp_path)
    assert type(CapsNet.from_pretrained(tmp_path)) is CapsNet
    with pytest.raises(UserError, match=r"holds a CapsNet, not a CNN: use torchcaps.load"):
        CNN.from_pretrained(tmp_path)


def test_shipped_models_by_name(small, tmp_path, monkeypatch):
    monkeypatch.setattr(model_files, "WEIGHTS_DIR", tmp_path)
    (tmp_path / "not-a-model").mkdir()
    save(small, tmp_path / "capsnet-mnist")
    assert shipped_models() == ["capsnet-mnist"]
    assert load("capsnet-mnist").num_classes == 3
    with pytest.raises(UserError, match=r"no model 'capsnet-minst': .* did you mean 'capsnet-mnist'"):
        load("capsnet-minst")
    with pytest.raises(UserError, match="choose one of: capsnet-mnist"):
        load("zebra")


def test_missing_names_and_empty_folders_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(model_files, "WEIGHTS_DIR", tmp_path)
    with pytest.raises(UserError, match=r"no model 'capsnet': .*give a run folder or a .safetensors file"):
        load("capsnet")
    with pytest.raises(UserError, match=r"is not a saved model: it holds no model.safetensors"):
        load(tmp_path)
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(UserError, match=r"has not finished: .*--resume"):
        load(tmp_path)


def test_the_hub_is_asked_for_what_looks_like_one_of_its_names(small, tmp_path, monkeypatch):
    asked = []

    def download(repo, name, **options):
        asked.append((repo, name, options))
        if repo == "nobody/nothing":
            raise OSError("no network")
        return str(save(small, tmp_path) / name)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert type(load("someone/capsnet", hub={"revision": "v1"})) is CapsNet
    assert asked == [("someone/capsnet", "model.safetensors", {"revision": "v1"})]
    with pytest.raises(UserError, match=r"no model 'nobody/nothing': .*the hub gave none \(OSError\)"):
        load("nobody/nothing")


def test_saving_where_one_cannot_is_told(small, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="that is a file, give a folder"):
        save(small, tmp_path / "file")
    with pytest.raises(UserError, match=r"cannot save a model to .*Not a directory"):
        save(small, tmp_path / "file" / "folder")


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(UserError, match="no model called 'capsnet_smal': did you mean 'capsnet_small'"):
        create_model("capsnet_smal")
    with pytest.raises(UserError, match="choose one of: " + ", ".join(list_models())):
        create_model("zebra")


def test_from_pretrained_does_not_ignore_other_arguments(small, tmp_path):
    small.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="keeps its arguments; omit num_classes"):
        CapsNet.from_pretrained(tmp_path, num_classes=7)


def test_files_are_flushed_through_handles_that_can_write(tmp_path, monkeypatch):
    """As Windows asks for it; a folder cannot be opened for writing anywhere."""
    flushed = []

    def strict(handle):
        if not stat.S_ISDIR(os.fstat(handle).st_mode) and not fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_RDWR:
            raise OSError(errno.EBADF, "this handle cannot write")
        flushed.append(handle)

    monkeypatch.setattr(os, "fsync", strict)
    saved = torchcaps.save(create_model("capsnet_small", image_shape=(1, 12, 12)), tmp_path / "model")
    assert torchcaps.load(saved)
    assert flushed
