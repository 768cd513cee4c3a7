"""Several seeds of a recipe, each a process of its own, and the table they end in."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from torchcaps.data import load_data
from torchcaps.errors import UserError
from torchcaps.train.checkpoint import load_checkpoint
from torchcaps.train.experiments import reproduce as module
from torchcaps.train.experiments.reproduce import Job, fill_results, reproduce, write_page
from torchcaps.train.recipe import Recipe, list_recipes, load_recipe
from torchcaps.train.setup import make_state

CPU = torch.device("cpu")

TINY = [
    *("data.image_size=12", "data.validation=40", "model.channels=4", "model.types=2", "model.hidden=[16]"),
    *("train.epochs=1", "train.batch_size=256", "claim.ensemble=true", "claim.views=true"),
]


def result(name, **more):
    known = {"recipe": name, "result": f"{name} error %", "measure": "error", "n": 3, "mean": 0.314, "std": 0.026}
    known |= {
        "also": {},
        "paper": 0.25,
        "open": None,
        "seconds": 61,
        "note": "",
        "machine": "a GPU, torch 2",
        "command": f"do {name}",
    }
    return {**known, **more}


@pytest.mark.slow
def test_seeds_are_trained_measured_and_put_into_a_table(tmp_path):
    settings = {"out": tmp_path / "results", "runs": tmp_path / "runs", "device": "cpu", "overrides": TINY}
    (alone,) = reproduce(["digits"], 1, **settings)
    assert (alone["n"], alone["std"]) == (1, None)

    # What is finished is not trained again; what was stopped before its first checkpoint starts anew.
    stamp = (tmp_path / "runs" / "digits-0" / "summary.json").stat().st_mtime_ns
    stopped = tmp_path / "runs" / "digits-1"
    stopped.mkdir()
    (stopped / "recipe.yaml").write_text(Job.of("digits", 1, TINY, tmp_path).recipe.to_yaml())
    (found,) = reproduce(["digits"], 2, **settings)
    assert (tmp_path / "runs" / "digits-0" / "summary.json").stat().st_mtime_ns == stamp
    summaries = [json.loads((tmp_path / "runs" / f"digits-{seed}" / "summary.json").read_text()) for seed in (0, 1)]
    assert [summary["seed"] for summary in summaries] == [0, 1]
    accuracies = [100 * summary["test_accuracy"] for summary in summaries]
    assert found["mean"] == pytest.approx(sum(accuracies) / 2, abs=1e-3)
    assert found["std"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5, abs=1e-3)
    assert (found["n"], found["test_n"]) == (2, 359)
    assert found["also"]["with nine views"]["n"] == 2
    assert found["also"]["2 together"]["n"] == 1
    assert json.loads((tmp_path / "results" / "digits.json").read_text())["mean"] == found["mean"]
    assert f"**{found['mean']:.2f}**" in (tmp_path / "results.md").read_text()

    # A run with other settings is not taken for this one, whether it is finished or not.
    for changed in (["train.epochs=2"], []):
        with pytest.raises(UserError, match="made with other settings"):
            reproduce(["digits"], 1, **{**settings, "overrides": changed})
    assert json.loads((tmp_path / "results" / "digits.json").read_text())["n"] == 2


def job(tmp_path, *overrides, seed=1):
    return Job.of("digits", seed, overrides, tmp_path)


def test_a_run_with_a_checkpoint_goes_on_from_it(tmp_path):
    asked = job(tmp_path, "train.epochs=3")
    start = [
        "--device",
        "cpu",
        "digits",
        "--set=train.epochs=3",
        "--set=train.seed=1",
        "--out",
        str(tmp_path / "digits-1"),
    ]
    assert asked.command("cpu")[4:] == start
    (asked.folder / "checkpoints").mkdir(parents=True)
    (asked.folder / "checkpoints" / "last.safetensors").touch()
    assert asked.command("cpu")[4:] == ["--device", "cpu", "--resume", str(asked.folder)]


def test_a_recipe_file_is_trained_itself(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(load_recipe("digits", ["train.epochs=7"]).to_yaml())  # its name is digits, too
    asked = Job.of(str(path), 0, [], tmp_path)
    assert str(path) in asked.command("cpu")
    assert asked.recipe.train.epochs == 7


def test_a_folder_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "digits-1").mkdir()
    (tmp_path / "digits-1" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="is not a run"):
        job(tmp_path).check()
    assert (tmp_path / "digits-1" / "thesis.txt").exists()


def test_of_few_images_each_seed_gets_others(tmp_path):
    for few in ("data.limit=50", "data.per_class=5"):
        assert job(tmp_path, few, seed=3).recipe.data.split_seed == 3
    assert job(tmp_path, seed=3).recipe.data.split_seed == 0


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals work otherwise there")
def test_a_stopped_command_lets_its_runs_save_and_goes_on(tmp_path):
    settings = [f"--set={each}" for each in (*TINY, "train.epochs=300")]
    command = [sys.executable, "-m", "torchcaps", "reproduce", "digits", "--seeds", "1", "--device", "cpu", *settings]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a shell lets what it runs aside ignore Ctrl-C
    )
    folder = tmp_path / "runs" / "reproduce" / "digits-0"
    deadline = time.monotonic() + 60
    while not (folder / "metrics.jsonl").exists() or len((folder / "metrics.jsonl").read_text().splitlines()) < 3:
        assert time.monotonic() < deadline, "the run did not start"
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everything that belongs to the command
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "same command to continue" in output
    log = (folder.parent / "digits-0.log").read_text()
    assert "stopped after step" in log
    state, _ = make_state(load_recipe(str(folder / "recipe.yaml")), load_data("digits", image_size=12).train, CPU)
    load_checkpoint(state, folder / "checkpoints")
    assert state.epoch >= 2  # what was done is saved


@pytest.mark.skipif(os.name == "nt", reason="signals work otherwise there")
def test_being_terminated_is_as_being_interrupted():
    assert threading.current_thread() is threading.main_thread()  # elsewhere no signal is caught, and this one kills

    def be_terminated():
        with module._stopped_by_sigterm():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        be_terminated()


@pytest.mark.slow
def test_a_failed_run_is_named_and_the_others_count(tmp_path):
    broken = tmp_path / "broken.yaml"
    text = load_recipe("digits", ["data.source=folder", "data.path=nowhere"]).to_yaml()
    broken.write_text(text.replace("name: digits", "name: broken"))
    settings = {"out": tmp_path / "results", "runs": tmp_path / "runs", "device": "cpu"}
    with pytest.raises(UserError, match=r"1 of 2 runs failed.*broken-0\.log"):
        reproduce(["digits", str(broken)], 1, **settings, overrides=TINY)
    assert "nowhere" in (tmp_path / "runs" / "broken-0.log").read_text()
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["digits.json"]


def finished(name, tmp_path, **measured):
    """A run of this recipe that looks as if it had been trained."""
    ended = Job.of(name, 0, [], tmp_path / "runs")
    ended.folder.mkdir(parents=True)
    (ended.folder / "recipe.yaml").write_text(ended.recipe.to_yaml())
    when = {"started": "2017-10-26T10:00:00+00:00", "finished": "2017-10-26T10:01:00+00:00", "resumed": False}
    known = {"seed": 0, "test_n": 10, "parameters": 1, "epochs": 1, "machine": "a CPU", "also": {}, **when}
    (ended.folder / "summary.json").write_text(json.dumps({**known, **measured}))
    return {"out": tmp_path / "results", "runs": tmp_path / "runs", "device": "cpu"}


def test_what_is_whole_is_written_before_other_runs_end(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    places = finished("mnist-paper", tmp_path, test_accuracy=0.9975)
    monkeypatch.setattr("torchcaps.train.experiments.reproduce.run_jobs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reproduce(["mnist-paper", "mnist-cnn"], 1, **places)
    assert json.loads((tmp_path / "results" / "mnist-paper.json").read_text())["mean"] == pytest.approx(0.25)
    assert "0.25" in (tmp_path / "results.md").read_text()


def test_of_masks_dice_is_claimed_with_what_else_says_how_well_they_fit(tmp_path):
    places = finished("isbi", tmp_path, test_dice=0.8, test_iou=0.7, test_pixel_error=0.05)
    (found,) = reproduce(["isbi"], 1, **places)
    assert found["mean"] == 80
    assert {name: each["mean"] for name, each in found["also"].items()} == {"IoU": 70, "wrong pixels": 5}
    assert "wrong pixels 5.00" in (tmp_path / "results.md").read_text()


def test_a_recipe_without_a_claim_is_refused(tmp_path):
    places = {"out": tmp_path / "results", "runs": tmp_path / "runs"}
    with pytest.raises(UserError, match="has no claimed result"):
        reproduce(["folder"], 1, **places)
    with pytest.raises(UserError, match="read off the test set"):
        reproduce(["digits"], 1, overrides=["train.read_test=no"], **places)
    with pytest.raises(UserError, match="by its name"):
        reproduce(["digits"], 1, out=Path("."), runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_tables_show_the_results_a_page_asks_for(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    extra = {"extra": {"mean": 99.2, "std": 0.1, "n": 3}}
    for each in (result("one"), result("two", std=None, n=1, also=extra, note="by 7 networks", seconds=None)):
        (folder / f"{each['recipe']}.json").write_text(json.dumps(each))
    (folder / "other.json").write_text('{"something": "else"}')
    page = write_page(folder)
    assert fill_results(page, folder)
    assert page.read_text().count("| one error % | 0.25 | – | **0.31** ± 0.03 (n = 3) | a GPU, 61 s | `do one` |") == 1
    assert "| two error % (by 7 networks) |" in page.read_text()
    assert "**0.31** (n = 1); extra 99.20 ± 0.10 (n = 3) | a GPU |" in page.read_text()
    before = page.read_text()
    fill_results(page, folder)
    assert page.read_text() == before
    bare = tmp_path / "bare.md"
    bare.write_text("no marks")
    assert not fill_results(bare, folder)
    other = tmp_path / "other.md"
    other.write_text("text\n<!-- results of two -->\nold\n<!-- end of results -->\nmore\n")
    fill_results(other, folder)
    assert "one error" not in other.read_text()
    assert "old" not in other.read_text()
    assert other.read_text().endswith("more\n")


def test_time_with_several_runs_at_once_counts_once():
    at = "2026-01-01T00:00:{:02d}+00:00".format
    spans = ((at(0), at(10)), (at(5), at(20)), (at(30), at(40)), (at(31), at(32)))
    assert module._busy([{"started": start, "finished": end} for start, end in spans]) == 30


RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_measured_figure_is_claimed_by_the_recipe_that_was_measured(path):
    measured, recipe = json.loads(path.read_text(encoding="utf-8")), load_recipe(path.stem)
    assert recipe.claim is not None
    assert recipe.claim.mean == pytest.approx(measured["mean"], abs=0.005)
    for said in ("result", "measure", "paper", "open", "note"):
        assert getattr(recipe.claim, said) == measured[said]
    assert len(measured["values"]) == measured["n"]
    assert sum(measured["values"].values()) / measured["n"] == pytest.approx(measured["mean"], abs=1e-3)
    settings = measured["settings"]  # read as a recipe
    for chosen in ("seed", "split_seed"):
        for section in ("train", "data"):
            settings[section].pop(chosen, None)
    then, now = (each.model_dump(mode="json") for each in (Recipe.model_validate({"name": "then", **settings}), recipe))
    assert {section: now[section] for section in settings} == {section: then[section] for section in settings}


def test_every_recipe_that_claims_a_result_was_measured_and_no_other():
    claims = {name: claim for name in list_recipes() if (claim := load_recipe(name).claim)}
    measured = {name for name, claim in claims.items() if claim.mean is not None}
    assert measured == {path.stem for path in RESULTS.glob("*.json")}
    assert set(claims) - measured == {"smallnorb"}  # docs/results.md says why


@pytest.fixture
def service(tmp_path, monkeypatch):
    """A stand-in for NVIDIA's control program that writes down what it is asked."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text('#!/bin/sh\n[ "$1" = -d ] && echo start >> "$0.log" || cat >> "$0.log"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return tmp_path / "nvidia-cuda-mps-control.log"


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
def test_runs_that_share_a_gpu_do_so_at_the_same_time(service):
    with module._shared_gpu(True) as environment:
        assert Path(environment["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
        assert service.read_text().split() == ["start", "get_server_list"]
    assert service.read_text().split()[-1] == "quit"
    assert not Path(environment["CUDA_MPS_PIPE_DIRECTORY"]).exists()


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
def test_one_run_or_a_service_that_runs_already_is_left_alone(service, monkeypatch):
    with module._shared_gpu(False) as environment:
        assert "CUDA_MPS_PIPE_DIRECTORY" not in environment
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "theirs")
    with module._shared_gpu(True) as environment:
        assert environment["CUDA_MPS_PIPE_DIRECTORY"] == "theirs"
    assert not service.exists()
