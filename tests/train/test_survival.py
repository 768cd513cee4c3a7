"""Runs that were ended at a bad moment: within an epoch, before anything was saved, with a spoiled best model."""

import io
import json
import shutil

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from torchcaps.errors import UserError
from torchcaps.models import create_model, load, save
from torchcaps.train import callbacks, run
from torchcaps.train.checkpoint import saved_step
from torchcaps.train.experiments.rerun import compare_runs
from torchcaps.train.recipe import load_recipe
from torchcaps.train.totals import Totals

SETTINGS = [
    *("data.image_size=12", "data.limit=100", "data.validation=20", "augment.shift=1", "train.batch_size=8"),
    *(
        "model.channels=4",
        "model.types=2",
        "model.hidden=[16]",
        "train.ema=0.9",
        "train.epochs=2",
        "train.read_test=no",
    ),
]


def recipe(*more):
    return load_recipe("digits", [*SETTINGS, *more])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run.start_run(recipe(), out=tmp_path_factory.mktemp("whole") / "run", device="cpu")


def test_checkpoints_are_written_within_an_epoch_and_resumed_bit_for_bit(tmp_path, monkeypatch, whole):
    saved, real = [], callbacks.save_checkpoint

    def save_checkpoint(state, folder):
        real(state, folder)
        saved.append((state.epoch, state.batch))
        if (state.epoch, state.batch) == (1, 5):
            shutil.copytree(folder.parent, tmp_path / "copy")

    monkeypatch.setattr(callbacks, "save_checkpoint", save_checkpoint)
    monkeypatch.setattr(callbacks.RunCallback, "should_save", lambda self: True)
    folder = run.start_run(recipe(), out=tmp_path / "run", device="cpu")
    assert saved[:3] == [(0, 1), (0, 2), (0, 3)]
    monkeypatch.undo()
    run.resume_run(tmp_path / "copy", device="cpu")
    for other in (folder, tmp_path / "copy"):
        assert compare_runs(whole, other)[0] == []
    seconds = [json.loads((each / "summary.json").read_text())["train_seconds"] for each in (folder, whole)]
    assert 0 < seconds[0] < 60


@pytest.mark.parametrize(("every", "waits"), [(0.0, False), (0.001, True)])
def test_they_come_when_they_are_due_but_not_where_one_an_epoch_is_asked_for(tmp_path, monkeypatch, every, waits):
    saved, real = [], callbacks.save_checkpoint
    monkeypatch.setattr(
        callbacks, "save_checkpoint", lambda state, folder: (real(state, folder), saved.append(state.batch))
    )
    run.start_run(recipe(f"train.save_every={every}"), out=tmp_path / "run", device="cpu")
    assert any(saved) == waits


def test_a_run_that_ended_before_anything_was_saved_begins_again(tmp_path, monkeypatch, whole):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(run, "train", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("the power failed")))
        with pytest.raises(RuntimeError, match="power"):
            run.start_run(recipe(), out=folder, device="cpu")
    assert saved_step(folder / "checkpoints") is None
    words = io.StringIO()
    run.resume_run(folder, device="cpu", console=Console(file=words, width=200))
    assert "was stopped before anything was saved: training starts again" in words.getvalue()
    assert compare_runs(whole, folder)[0] == []


@pytest.mark.parametrize("spoil", ["flip", "cut"])
def test_a_spoiled_best_model_is_not_taken_for_the_best(tmp_path, spoil):
    folder = run.start_run(recipe("train.select=best"), out=tmp_path / "run", device="cpu")
    path = folder / "checkpoints" / "best" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 64
    path.write_bytes(content if spoil == "flip" else content[:-100])
    (folder / "summary.json").unlink()
    words = io.StringIO()
    run.resume_run(folder, device="cpu", console=Console(file=words, width=300))
    assert "the last weights are kept instead" in words.getvalue()
    last, kept = (
        load_file(folder / "checkpoints" / "last.safetensors"),
        load_file(folder / "model" / "model.safetensors"),
    )
    assert all(torch.equal(last[f"average/{name}"], tensor) for name, tensor in kept.items())


def test_a_model_whose_weights_are_not_as_written_is_refused(tmp_path):
    path = save(create_model("capsnet_small"), tmp_path / "model") / "model.safetensors"
    assert load(tmp_path / "model") is not None
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="content has changed since"):
        load(path)


def test_sums_go_on_from_where_they_were():
    """0.1 added ten times is rounded otherwise than five times and five times."""

    def added(stops):
        totals = Totals("cpu", "accuracy")
        for number in range(10):
            if number in stops:
                before, totals = totals.read(), Totals("cpu", "accuracy")
                totals.start(before)
            totals.add(torch.tensor(0.1), {"margin": torch.tensor([0.1 + number])}, torch.tensor([1.0]))
        return totals

    assert added({5}).read() == added(set()).read()
    assert added({5}).new_examples == 5
    assert added(set()).new_examples == 10
