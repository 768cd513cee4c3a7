"""Runs on folders whose images are in a cache or streamed: the same as in memory, bit for bit, also when resumed."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from torchcaps.data import FileImages, StreamedLoader, load_data
from torchcaps.errors import UserError
from torchcaps.models import load
from torchcaps.train import callbacks, run
from torchcaps.train.evaluate import evaluate_model
from torchcaps.train.experiments.rerun import compare_runs
from torchcaps.train.experiments.suite import run_suite
from torchcaps.train.fit import fit
from torchcaps.train.recipe import load_recipe

SETTINGS = [
    *("data.image_size=12", "augment.shift=1", "train.batch_size=7", "train.epochs=2", "train.ema=0.9"),
    *("model.channels=4", "model.types=2", "model.hidden=[16]", "data.validation=6"),
]


NO_REPORT = ("data.validation=0", "train.read_test=no")  # drawing one takes longer than training


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for number in range(60):
        path = root / "abc"[number % 3] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 16, 3), dtype=np.uint8)).save(path)
    return root


@pytest.fixture
def recipe(images, tmp_path):
    def recipe(storage, *more):
        where = [f"data.path={json.dumps(str(images))}", f"data.cache_dir={json.dumps(str(tmp_path / 'caches'))}"]
        return load_recipe("folder", [*SETTINGS, *where, f"data.storage={storage}", *more])

    return recipe


def test_a_run_is_the_same_in_every_storage(tmp_path, recipe, monkeypatch):
    taken, take = [], StreamedLoader.take
    monkeypatch.setattr(StreamedLoader, "take", lambda self, *given: (taken.append(1), take(self, *given))[1])
    folders = [
        run.start_run(recipe(storage), out=tmp_path / storage, device="cpu")
        for storage in ("memory", "cache", "stream")
    ]
    assert taken
    for other in folders[1:]:
        assert compare_runs(folders[0], other)[0] == []
        assert (other / "report.html").is_file()
    model = load(folders[1])
    assert evaluate_model(model, rejection=True)["n"] == 12
    assert model.trained_by["data"]["storage"] == "auto"
    assert "cache_dir" not in model.trained_by["data"]
    streamed = {**model.trained_by["data"], "storage": "stream"}
    model.trained_by = {**model.trained_by, "data": streamed}
    assert run_suite(model, "affine", n=6)["data"]


@pytest.fixture
def midway(tmp_path, recipe, monkeypatch):
    """A whole run on a cache, and a copy of it as it was within the second epoch."""
    real = callbacks.save_checkpoint

    def save_checkpoint(state, folder):
        real(state, folder)
        if (state.epoch, state.batch) == (1, 3):
            shutil.copytree(folder.parent, tmp_path / "copy")

    with monkeypatch.context() as patch:
        patch.setattr(callbacks, "save_checkpoint", save_checkpoint)
        patch.setattr(callbacks.RunCallback, "should_save", lambda self: True)
        return run.start_run(recipe("cache", *NO_REPORT), out=tmp_path / "run", device="cpu"), tmp_path / "copy"


def test_a_run_is_resumed_within_an_epoch_and_in_another_storage(tmp_path, midway):
    whole, copy = midway
    for storage in ("cache", "stream", "memory"):
        folder = tmp_path / f"resumed-{storage}"
        shutil.copytree(copy, folder)
        run.resume_run(folder, [f"data.storage={storage}", "data.workers=3"], device="cpu")
        assert compare_runs(whole, folder)[0] == []
    with pytest.raises(UserError, match=r"data\.on_error is fixed by the run"):
        run.resume_run(copy, ["data.on_error=skip"], device="cpu")


def test_a_file_that_is_lost_during_training_ends_the_run_with_a_sentence(tmp_path, recipe, images, monkeypatch):
    copy = tmp_path / "images"
    shutil.copytree(images, copy)
    read = FileImages.read_into

    def lose(self, *given):
        shutil.rmtree(copy, ignore_errors=True)
        read(self, *given)

    monkeypatch.setattr(FileImages, "read_into", lose)
    stream = recipe("stream", f"data.path={json.dumps(str(copy))}")
    with pytest.raises(UserError, match=r"there is no such file\. Nothing had been saved yet"):
        run.start_run(stream, out=tmp_path / "run", device="cpu")


def test_fit_takes_streamed_images(recipe):
    options = {"epochs": 1, "validation": 0.2, "seed": 0, "device": "cpu", "channels": 4, "types": 2, "decoder": "none"}
    found = []
    for storage in ("memory", "stream"):
        data = load_data(**recipe(storage).data.model_dump()).train
        found.append(fit("capsnet_small", data, **options)[1])
    assert found[0][0]["val_loss"] == found[1][0]["val_loss"]


@pytest.mark.slow
def test_two_processes_read_their_shares_and_take_the_steps_of_one(tmp_path, recipe, midway):
    whole, copy = midway
    (tmp_path / "recipe.yaml").write_text(recipe("cache", *NO_REPORT).to_yaml())
    for words in ([str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "two")], ["--resume", str(copy)]):
        command = [sys.executable, "-m", "torchcaps", "train", *words, "--device", "cpu", "--devices", "2"]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    for other in (tmp_path / "two", copy):
        weights = [load_file(each / "model" / "model.safetensors") for each in (whole, other)]
        torch.testing.assert_close(*weights, rtol=0, atol=1e-4)
