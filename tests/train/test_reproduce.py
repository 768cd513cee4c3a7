"""Several seeds of a recipe, each a process of its own, and the table they end in."""

import json
import os
from pathlib import Path

import pytest
import yaml

from torchcaps.errors import UserError
from torchcaps.train import reproduce as module
from torchcaps.train.recipe import list_recipes, load_recipe
from torchcaps.train.reproduce import Job, fill_results, reproduce, write_table

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
        "machine": "a GPU, torch 2",
        "command": f"do {name}",
    }
    return {**known, **more}


def test_seeds_are_trained_measured_and_put_into_a_table(tmp_path):
    settings = {"out": tmp_path / "results", "runs": tmp_path / "runs", "device": "cpu", "overrides": TINY}
    (first,) = reproduce(["digits"], 2, **settings, side_by_side=2)
    summaries = [json.loads((tmp_path / "runs" / f"digits-{seed}" / "summary.json").read_text()) for seed in (0, 1)]
    assert [summary["seed"] for summary in summaries] == [0, 1]
    accuracies = [100 * summary["test_accuracy"] for summary in summaries]
    assert first["mean"] == pytest.approx(sum(accuracies) / 2, abs=1e-3)
    assert first["std"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5, abs=1e-3)
    assert (first["n"], first["test_n"]) == (2, 359)
    assert first["also"]["with nine views"]["n"] == 2
    assert first["also"]["2 together"]["n"] == 1
    assert json.loads((tmp_path / "results" / "digits.json").read_text())["mean"] == first["mean"]
    assert f"**{first['mean']:.2f}**" in (tmp_path / "results.md").read_text()

    # What is finished is not trained again; what was stopped before its first checkpoint starts anew.
    stamp = (tmp_path / "runs" / "digits-0" / "summary.json").stat().st_mtime_ns
    stopped = tmp_path / "runs" / "digits-2"
    stopped.mkdir()
    (stopped / "recipe.yaml").write_text("half")
    (again,) = reproduce(["digits"], 3, **settings)
    assert again["n"] == 3
    assert (tmp_path / "runs" / "digits-0" / "summary.json").stat().st_mtime_ns == stamp


def test_an_interrupted_run_goes_on(tmp_path):
    job = Job(load_recipe("digits"), 1, tmp_path / "digits-1")
    assert job.command("cpu", ["a=b"])[4:] == [
        *("--device", "cpu", "digits", "--set=a=b", "--set=train.seed=1", "--out", str(tmp_path / "digits-1")),
    ]
    (tmp_path / "digits-1" / "checkpoints").mkdir(parents=True)
    (tmp_path / "digits-1" / "checkpoints" / "last.safetensors").touch()
    assert job.command("cpu", [])[4:] == ["--device", "cpu", "--resume", str(tmp_path / "digits-1")]


def test_of_few_images_each_seed_gets_others(tmp_path):
    job = Job(load_recipe("digits", ["data.limit=50"]), 3, tmp_path / "digits-3")
    assert "--set=data.split_seed=3" in job.command("cpu", [])


def test_a_failed_run_is_named_and_the_others_count(tmp_path):
    settings = {"out": tmp_path / "results", "runs": tmp_path / "runs", "device": "cpu"}
    with pytest.raises(UserError, match=r"1 of 1 runs failed.*digits-0\.log"):
        reproduce(["digits"], 1, **settings, overrides=["data.source=folder", "data.path=nowhere"])
    assert "nowhere" in (tmp_path / "runs" / "digits-0.log").read_text()
    assert not (tmp_path / "results" / "digits.json").exists()


def test_a_recipe_without_a_claim_is_refused(tmp_path):
    with pytest.raises(UserError, match="claims no result"):
        reproduce(["folder"], 1, out=tmp_path / "results", runs=tmp_path / "runs")


def test_tables_show_the_results_a_page_asks_for(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    for each in (result("one"), result("two", std=None, n=1, also={"extra": {"mean": 99.2}})):
        (folder / f"{each['recipe']}.json").write_text(json.dumps(each))
    page = write_table(folder)
    assert page.read_text().count("| one error % | 0.25 | – | **0.31** ± 0.03 (n = 3) | a GPU, 61 s | `do one` |") == 1
    assert "**0.31** (n = 1); extra 99.20" in page.read_text()
    before = page.read_text()
    write_table(folder)
    assert page.read_text() == before
    other = tmp_path / "other.md"
    other.write_text("text\n<!-- results of two -->\nold\n<!-- end of results -->\nmore\n")
    fill_results(other, folder)
    assert "one error" not in other.read_text()
    assert "old" not in other.read_text()
    assert other.read_text().endswith("more\n")


def test_time_with_several_runs_at_once_counts_once():
    at = "2026-01-01T00:00:{:02d}+00:00".format
    assert module._busy([(at(0), at(10)), (at(5), at(20)), (at(30), at(40)), (at(31), at(32))]) == 30


RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_every_claimed_figure_is_the_measured_one():
    for name in list_recipes():
        recipe = load_recipe(name)
        if recipe.claim is None or recipe.claim.mean is None:
            continue
        measured = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        assert measured["mean"] == pytest.approx(recipe.claim.mean, abs=0.005), name
        assert measured["measure"] == recipe.claim.measure
        assert measured["n"] >= 1
        assert yaml.safe_load(recipe.to_yaml())["claim"]["mean"] == recipe.claim.mean


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
