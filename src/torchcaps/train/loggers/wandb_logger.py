"""Runs in Weights & Biases: settings, a line of figures for each epoch, and the summary."""

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

ID_FILE = "wandb_run.txt"


class WandbLogger(Callback):
    """Logs a run to Weights & Biases; a resumed run continues its record where the service is online.

    Without a network set WANDB_MODE=offline; `wandb sync` then sends the files in the run folder later.

    Args:
        project: to which the run belongs; None for WANDB_PROJECT, or "torchcaps" without it.
        mode: online, offline or disabled; None for WANDB_MODE, or online without it.
    """

    def __init__(self, project: str | None = None, mode: str | None = None):
        (self._wandb,) = import_extra("wandb", "wandb")
        self.project, self.mode = project, mode
        self._run: Any = None

    def on_start(self, folder: Path, recipe: Recipe, state: State) -> None:
        known = known_id(folder / ID_FILE)
        self._run = self._wandb.init(
            project=self.project or os.environ.get("WANDB_PROJECT") or "torchcaps",
            name=folder.name,
            dir=str(folder),
            id=known,
            resume=None if known is None else "allow",
            config=dict(settings(recipe.model_dump(mode="json"))),
            mode=self.mode,
        )
        keep_id(folder / ID_FILE, self._run.id)

    def on_epoch(self, state: State, line: dict[str, float]) -> None:
        self._run.log(figures(line), step=int(line["epoch"]))

    def on_finish(self, folder: Path, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(figures(summary))

    def on_exit(self, error: BaseException | None) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if error is None else 1)
