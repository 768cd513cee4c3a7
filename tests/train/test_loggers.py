"""Callbacks of a run, by name and given; the loggers with their real packages, without a network."""

import json
import sys

import pytest

from torchcaps.errors import UserError
from torchcaps.train import loop, run
from torchcaps.train.callbacks import Callback
from torchcaps.train.loggers import CALLBACKS, make_callbacks, register_callback
from torchcaps.train.loggers.values import figures, settings
from torchcaps.train.recipe import load_recipe
from torchcaps.train.tasks import ClassificationTask

TINY = [
    *("data.image_size=12", "data.limit=96", "data.validation=40", "data.test=40", "train.batch_size=32"),
    *("model.channels=4", "model.types=2", "model.hidden=[16]", "train.epochs=2"),
]


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch):
    def blank(task, report, *rest):
        report.path.write_text("")
        return report.path

    monkeypatch.setattr(ClassificationTask, "write_report", blank)


class Diary(Callback):
    def __init__(self):
        self.lines = []

    def on_start(self, folder, recipe, state):
        self.lines.append(f"start {recipe.name} at {state.step}")

    def on_epoch(self, state, line):
        self.lines.append(f"epoch {int(line['epoch'])}")

    def on_finish(self, folder, summary):
        self.lines.append(f"finish {summary['epochs']}")

    def on_exit(self, error):
        self.lines.append(f"exit {type(error).__name__}")


class Stop(Callback):
    def should_stop(self):
        return True


def test_a_run_calls_its_callbacks_in_order(tmp_path):
    diary = Diary()
    run.start_run(load_recipe("digits", TINY), out=tmp_path / "run", device="cpu", callbacks=[diary])
    assert diary.lines == ["start digits at 0", "epoch 1", "epoch 2", "finish 2", "exit NoneType"]


def test_a_registered_callback_is_named_in_the_recipe_and_told_of_an_interruption(tmp_path):
    made = []
    try:

        @register_callback(name="diary")
        def make():
            made.append(Diary())
            return made[-1]

        recipe = load_recipe("digits", [*TINY, "train.callbacks=[diary]"])
        with pytest.raises(loop.Interrupted):
            run.start_run(recipe, out=tmp_path / "run", device="cpu", callbacks=[Stop()])
        run.resume_run(tmp_path / "run", device="cpu")
    finally:
        CALLBACKS.pop("diary", None)
    assert made[0].lines == ["start digits at 0", "exit Interrupted"]
    assert made[1].lines == ["start digits at 1", "epoch 1", "epoch 2", "finish 2", "exit NoneType"]


def test_an_unknown_callback_and_a_missing_package_are_told_before_anything_is_written(tmp_path, monkeypatch):
    for names, message in (("[wand]", "did you mean 'wandb'"), ("[mlflow]", r"pip install 'torchcaps\[mlflow\]'")):
        monkeypatch.setitem(sys.modules, "mlflow", None)  # as if it were not installed
        recipe = load_recipe("digits", [*TINY, f"train.callbacks={names}"])
        with pytest.raises(UserError, match=message):
            run.start_run(recipe, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_what_makes_no_callback_is_refused():
    try:
        register_callback(dict, name="nothing")
        with pytest.raises(UserError, match="nothing makes a dict"):
            make_callbacks(["nothing"])
    finally:
        CALLBACKS.pop("nothing", None)


def test_values_are_flat_and_finite():
    assert dict(settings({"train": {"epochs": 2, "stop_at": None}, "name": "a"})) == {"train.epochs": 2, "name": "a"}
    line = {"epoch": 1, "val_accuracy": float("nan"), "resumed": False, "baselines": {"hog_svm": 0.5, "note": "x"}}
    assert figures(line) == {"epoch": 1.0, "baseline_hog_svm": 0.5}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the package itself
def test_mlflow_gets_settings_curves_and_files_and_a_resumed_run_continues(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.chdir(tmp_path)  # where artifacts go
    recipe = load_recipe("digits", [*TINY, "train.callbacks=[mlflow]"])
    with pytest.raises(loop.Interrupted):
        run.start_run(recipe, out=tmp_path / "run", device="cpu", callbacks=[Stop()])
    client = mlflow.MlflowClient(uri)
    (experiment,) = [each for each in client.search_experiments() if each.name == "torchcaps"]
    assert [each.info.status for each in client.search_runs([experiment.experiment_id])] == ["KILLED"]
    run.resume_run(tmp_path / "run", device="cpu")
    (found,) = client.search_runs([experiment.experiment_id])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found.info.status == "FINISHED"
    assert found.data.params["train.epochs"] == "2"
    assert found.data.metrics["test_accuracy"] == pytest.approx(summary["test_accuracy"])
    assert len(client.get_metric_history(found.info.run_id, "val_accuracy")) == 3  # two epochs, and the summary
    assert {each.path for each in client.list_artifacts(found.info.run_id)} >= {"model", "report.html", "summary.json"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the package itself
def test_wandb_keeps_a_run_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_SILENT", "true"), ("HOME", str(tmp_path))):
        monkeypatch.setenv(name, value)
    recipe = load_recipe("digits", [*TINY, "train.callbacks=[wandb]"])
    run.start_run(recipe, out=tmp_path / "run", device="cpu")
    (record,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    content = record.read_bytes()
    assert b"val_accuracy" in content
    assert b"train.epochs" in content
    assert (tmp_path / "run" / "wandb_run.txt").read_text().strip() in record.name
