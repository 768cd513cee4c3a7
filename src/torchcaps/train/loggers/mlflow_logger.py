"""Runs in MLflow: settings, a line of figures for each epoch, the summary, the report and the model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.extras import import_extra
from torchcaps.train.callbacks import Callback
from torchcaps.train.loggers.values import figures, keep_id, known_id, settings

if TYPE_CHECKING:
    from torchcaps.train.recipe import Recipe
    from torchcaps.train.state import State

MAX_VALUE_CHARACTERS = 500  # of a parameter in MLflow
ID_FILE = "mlflow_run.txt"


class MLflowLogger(Callback):
    """Logs a run to MLflow; a resumed run continues its record.

    Args:
        experiment: to which the run belongs; None for MLFLOW_EXPERIMENT_NAME, or "torchcaps" without it.
        tracking_uri: of the server or the data base; None for MLFLOW_TRACKING_URI, or MLflow's default.
        artifacts: whether to store recipe, report and model, too.
    """

    def __init__(self, experiment: str | None = None, tracking_uri: str | None = None, artifacts: bool = True):
        (self._mlflow,) = import_extra("mlflow", "mlflow")
        self.experiment, self.tracking_uri, self.artifacts = experiment, tracking_uri, artifacts
        self._client: Any = None
        self._run = ""

    def on_start(self, folder: Path, recipe: Recipe, state: State) -> None:
        self._client = self._mlflow.MlflowClient(tracking_uri=self.tracking_uri)
        known = known_id(folder / ID_FILE)
        if known is not None:
            self._run = known
            self._client.update_run(known, status="RUNNING")
            return
        name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "torchcaps"
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        self._run = self._client.create_run(experiment, run_name=folder.name).info.run_id
        keep_id(folder / ID_FILE, self._run)
        for key, value in settings(recipe.model_dump(mode="json")):
            self._client.log_param(self._run, key, str(value)[:MAX_VALUE_CHARACTERS])

    def on_epoch(self, state: State, line: dict[str, float]) -> None:
        self._log(line, int(line["epoch"]))

    def on_finish(self, folder: Path, summary: Mapping[str, Any]) -> None:
        self._log(summary, int(summary["epochs"]))
        if self.artifacts:
            for name in ("recipe.yaml", "summary.json", "report.html"):
                if (folder / name).is_file():
                    self._client.log_artifact(self._run, str(folder / name))
            self._client.log_artifacts(self._run, str(folder / "model"), "model")

    def on_exit(self, error: BaseException | None) -> None:
        if self._run:
            status = "FINISHED" if error is None else "KILLED" if _stopped(error) else "FAILED"
            self._client.set_terminated(self._run, status)

    def _log(self, line: Mapping[str, Any], step: int) -> None:
        for key, value in figures(line).items():
            self._client.log_metric(self._run, key, value, step=step)


def _stopped(error: BaseException) -> bool:
    """Whether the user stopped the run."""
    return type(error).__name__ in ("Interrupted", "KeyboardInterrupt")
