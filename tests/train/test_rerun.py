"""A run once more: the same numbers, and a difference is found and explained."""

import json
import shutil

import pytest
import torch

from torchcaps.errors import UserError
from torchcaps.train.cudagraph import deterministic
from torchcaps.train.environment import commit, versions
from torchcaps.train.experiments.rerun import compare_runs, rerun
from torchcaps.train.recipe import load_recipe
from torchcaps.train.run import resume_run, start_run

TINY = [
    *("data.image_size=12", "data.limit=80", "data.validation=20", "data.test=20", "model.channels=2", "model.types=2"),
    *("model.hidden=[4]", "train.batch_size=16", "train.epochs=2", "train.deterministic=yes"),
]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return start_run(load_recipe("digits", TINY), out=tmp_path_factory.mktemp("runs") / "run", device="cpu")


def test_the_same_recipe_gives_the_same_numbers_on_a_cpu(first, tmp_path):
    again = rerun(first, out=tmp_path / "again")
    assert compare_runs(first, again) == ([], [])


def test_another_seed_does_not_and_that_is_seen_everywhere(first, tmp_path):
    other = start_run(load_recipe("digits", [*TINY, "train.seed=1"]), out=tmp_path / "other", device="cpu")
    found, about = compare_runs(first, other)
    assert found[0].what == "train_loss of epoch 1"
    assert "weights (checksum)" in [each.what for each in found]
    assert about == []


def test_what_differs_about_two_runs_is_told(first, tmp_path):
    again = rerun(first, out=tmp_path / "again")
    summary = json.loads((again / "summary.json").read_text())
    (again / "summary.json").write_text(json.dumps(summary | {"machine": "another"}))
    (again / "metrics.jsonl").write_text((again / "metrics.jsonl").read_text().splitlines()[0] + "\n")
    found, about = compare_runs(first, again)
    assert [each.what for each in found] == ["epochs"]
    assert [(each.what, each.now) for each in about] == [("machine", "another")]


def test_other_processes_and_an_interruption_are_told(first, tmp_path):
    shutil.copytree(first, tmp_path / "again")
    summary = json.loads((first / "summary.json").read_text())
    (tmp_path / "again" / "summary.json").write_text(json.dumps(summary | {"processes": 2, "resumed": True}))
    about = compare_runs(tmp_path / "again", first)[1]
    assert about == [("processes", 2, 1), ("resumed", True, False)]


def test_of_several_processes_only_the_first_compares(first, call, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "torchcaps.train.experiments.rerun.start_run", lambda recipe, *, out, **_: out
    )  # another writes it
    monkeypatch.setenv("RANK", "1")
    assert call("rerun", first, "--out", tmp_path / "again")[0] == 0
    monkeypatch.setenv("RANK", "0")
    assert "again is not a finished run" in call("rerun", first, "--out", tmp_path / "again")[2]


def test_a_run_that_has_not_finished_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a finished run: .* give the folder that `torchcaps train` named"):
        rerun(tmp_path)
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(UserError, match=f"not a finished run: .* finish it with `torchcaps train --resume {tmp_path}`"):
        rerun(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("model/model.safetensors", None, "model.safetensors does not exist"),
        ("model/model.safetensors", "weights", "model.safetensors was not written by a run"),
        ("metrics.jsonl", None, "metrics.jsonl does not exist"),
        ("metrics.jsonl", "{}\n", "metrics.jsonl was not written by a run"),
        ("summary.json", "[]", "summary.json was not written by a run"),
        ("summary.json", "{}", "summary.json was not written by a run"),
        ("summary.json", "{", "summary.json was not written by a run"),
    ],
)
def test_what_cannot_be_compared_is_told_before_training(file, text, message, first, call, tmp_path):
    run, again = tmp_path / "run", tmp_path / "again"
    shutil.copytree(first, run)
    (run / file).unlink()
    if text is not None:
        (run / file).write_text(text)
    code, printed, complaint = call("rerun", run, "--out", again)
    assert (code, printed, complaint.count("\n")) == (2, "", 1)
    assert message in complaint
    assert f"`torchcaps train --resume {run}` writes figures and model again" in complaint
    assert not again.exists()


def test_what_is_missing_from_a_run_is_written_once_more(first, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(first, run)
    shutil.rmtree(run / "model")
    (run / "metrics.jsonl").unlink()
    (run / "summary.json").unlink()  # as the message above has it
    resume_run(run, device="cpu")
    assert compare_runs(first, run) == ([], [("resumed", False, True)])


def test_a_summary_says_what_its_figures_depend_on(first):
    summary = json.loads((first / "summary.json").read_text())
    assert summary["versions"] == versions()
    assert torch.__version__.startswith(summary["versions"]["torch"].partition("+")[0])
    assert summary["commit"] == commit()
    assert len(summary["data_checksum"]) >= 16


def test_repeatable_is_asked_for_and_given_back():
    for asked in (True, False):
        with deterministic(asked):
            assert torch.are_deterministic_algorithms_enabled() == asked
        assert not torch.are_deterministic_algorithms_enabled()
