"""Callbacks of a training run: progress bar, metrics files, checkpoints, and requests to stop."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from torchcaps.models.files import write_model
from torchcaps.train.checkpoint import save_checkpoint
from torchcaps.train.failures import writing
from torchcaps.train.recipe import Recipe, TrainSection
from torchcaps.train.state import State, best_epoch
from torchcaps.train.totals import Totals

__all__ = ["Callback"]  # for users

REFRESH_SECONDS = 0.5  # between two reads of the metrics: each makes an accelerator wait
MAX_SAVING_SHARE = 0.01  # of a run's time that writing checkpoints may take,
MAX_INTERVALS = 20.0  # unless they would be further apart than this many times `save_every`


def pause(save_every: float, took: float) -> float:
    """Seconds until the next checkpoint, after one that took `took` seconds; 0 for one after every epoch."""
    return min(max(save_every, took / MAX_SAVING_SHARE), MAX_INTERVALS * save_every)


class Callback:
    """What a run calls. This one does nothing; a callback of your own overrides what it needs.

    `fit` has no run folder and calls neither `on_start` nor `on_finish` nor `on_exit`. Of several processes only the
    main one calls the callbacks of a user.
    """

    def on_start(self, folder: Path, recipe: Recipe, state: State) -> None:
        """Before the first step, also after a resume.

        Args:
            folder: of the run.
            recipe: what is trained, and how.
            state: of the run; `state.step` is 0 unless it was resumed.
        """

    def on_step(self, state: State, totals: Totals) -> None:
        """After every step."""

    def needs_weights(self, state: State, line: dict[str, float]) -> bool:
        """Whether `on_epoch` will read the weights; asked before it, with the same arguments."""
        return False

    def on_epoch(self, state: State, line: dict[str, float]) -> None:
        """After every epoch, with its line of the history."""

    def should_stop(self) -> bool:
        """Whether to stop after this step."""
        return False

    def should_save(self) -> bool:
        """Whether to call `save` after this step."""
        return False

    def save(self, state: State) -> None:
        """Write a checkpoint in the middle of an epoch."""

    def on_finish(self, folder: Path, summary: Mapping[str, Any]) -> None:
        """After the model, the summary and the report were written.

        Args:
            folder: of the run.
            summary: what summary.json holds.
        """

    def on_exit(self, error: BaseException | None) -> None:
        """Last of all, also of a run that failed or was interrupted; release here what `on_start` opened.

        Args:
            error: what ended the run; None if it finished.
        """


class Callbacks(Callback):
    """Several callbacks as one."""

    def __init__(self, callbacks: Sequence[Callback]):
        self.callbacks = callbacks

    def on_start(self, folder: Path, recipe: Recipe, state: State) -> None:
        for each in self.callbacks:
            each.on_start(folder, recipe, state)

    def on_step(self, state: State, totals: Totals) -> None:
        for each in self.callbacks:
            each.on_step(state, totals)

    def needs_weights(self, state: State, line: dict[str, float]) -> bool:
        return any(each.needs_weights(state, line) for each in self.callbacks)

    def on_epoch(self, state: State, line: dict[str, float]) -> None:
        for each in self.callbacks:
            each.on_epoch(state, line)

    def should_stop(self) -> bool:
        return any(each.should_stop() for each in self.callbacks)

    def should_save(self) -> bool:
        return any(each.should_save() for each in self.callbacks)

    def save(self, state: State) -> None:
        for each in self.callbacks:
            each.save(state)

    def on_finish(self, folder: Path, summary: Mapping[str, Any]) -> None:
        for each in self.callbacks:
            each.on_finish(folder, summary)

    def on_exit(self, error: BaseException | None) -> None:
        for each in self.callbacks:
            each.on_exit(error)


class WorkerCallback(Callback):
    """Of a rank that does not write: it takes part in stopping the run."""

    def __init__(self) -> None:
        self._stop = False

    @contextmanager
    def active(self, state: State) -> Iterator[None]:
        """Handle signals inside the block."""
        with self._signals():
            yield

    def should_stop(self) -> bool:
        return self._stop

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C (or SIGTERM) stops the run after the current step, the second at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class RunCallback(WorkerCallback):
    """Shows progress and writes the files of a run folder.

    metrics.jsonl                  one line for each epoch
    tensorboard/                   the same as curves
    checkpoints/last.safetensors   the state at the end, every `save_every` seconds (less often where writing takes
                                   long; after an epoch where that is 0), and when the run was interrupted;
                                   previous.safetensors, the one before
    checkpoints/best/              the model that was best on validation
    """

    def __init__(self, folder: Path, recipe: TrainSection, steps_per_epoch: int, console: Console, measure: str):
        self.folder, self.epochs, self.console, self.measure = folder, recipe.epochs, console, measure
        self._save_every = recipe.save_every  # an epoch on a GPU may be shorter than writing a checkpoint
        super().__init__()
        self._steps = steps_per_epoch
        self._next_refresh = self._next_save = self._save_started = 0.0
        self._saved = 0
        self._improved = self._save_due = False
        self._decided_step = 0  # the step after which these two were decided
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn(
                "{task.fields[rate]:>7,.0f} img/s  loss {task.fields[loss]:.4f}  "
                + measure
                + " {task.fields[score]:.2%}"
            ),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    @contextmanager
    def active(self, state: State) -> Iterator[None]:
        """Show progress, write TensorBoard files and handle signals inside the block."""
        from torch.utils.tensorboard import SummaryWriter

        self._write_history(state)
        self._board = SummaryWriter(str(self.folder / "tensorboard"), purge_step=state.epoch + 1)
        self._bar = self._progress.add_task(
            "",
            total=self.epochs * self._steps,
            completed=state.step,
            epoch=f"{state.epoch + 1}/{self.epochs}",
            rate=0.0,
            loss=0.0,
            score=0.0,
        )
        self._started, self._first = time.perf_counter(), state.step
        with self._signals(), self._progress:
            try:
                yield
                with writing(self.folder):
                    self._save(state)
            finally:
                with suppress(OSError):  # the curves are in metrics.jsonl as well
                    self._board.close()

    def on_step(self, state: State, totals: Totals) -> None:
        now = time.perf_counter()
        if self._progress.disable or now < self._next_refresh:
            return
        self._next_refresh = now + REFRESH_SECONDS
        means = totals.means()
        images = totals.read()["examples"] / max(1, state.batch)
        self._progress.update(
            self._bar,
            completed=state.step,
            epoch=f"{state.epoch + 1}/{self.epochs}",
            rate=(state.step - self._first) * images / (now - self._started),
            loss=means["loss"],
            score=means[self.measure],
        )

    def needs_weights(self, state: State, line: dict[str, float]) -> bool:
        if self._decided_step != state.step:
            self._save_started = time.perf_counter()
            self._improved = bool(state.history) and best_epoch(state.history, self.measure) == len(state.history)
            self._save_due = self._save_started >= self._next_save
            self._decided_step = state.step
        return self._improved or self._save_due

    def on_epoch(self, state: State, line: dict[str, float]) -> None:
        self.needs_weights(state, line)
        with writing(self.folder):
            self._write_epoch(state, line)
        score = line.get(f"val_{self.measure}")
        seen = "" if score is None else f"  val {score:.2%}"
        skipped = f"  {line['skipped_steps']:.0f} steps skipped" if "skipped_steps" in line else ""
        self.console.print(
            f"epoch {int(line['epoch']):>3}/{self.epochs}  loss {line['train_loss']:.4f}  "
            f"train {line[f'train_{self.measure}']:.2%}{seen}  {line['images_per_second']:,.0f} img/s{skipped}",
            highlight=False,
        )

    def should_save(self) -> bool:
        now = time.perf_counter()
        return self._save_every > 0 and now >= max(self._next_save, self._started + self._save_every)

    def save(self, state: State) -> None:
        self._save_started = time.perf_counter()
        with writing(self.folder):
            self._save(state)

    def _write_epoch(self, state: State, line: dict[str, float]) -> None:
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        for name, value in line.items():
            if name not in ("epoch", "step"):
                self._board.add_scalar(name.replace("_", "/", 1), value, int(line["epoch"]))
        if self._improved:
            state.best = line[f"val_{self.measure}"]
            best = self.folder / "checkpoints" / "best"
            best.mkdir(parents=True, exist_ok=True)
            write_model(state.final, best)
        if self._save_due:
            self._save(state)

    def _save(self, state: State) -> None:
        if self._saved != state.step:
            save_checkpoint(state, self.folder / "checkpoints")
        now = time.perf_counter()
        self._saved, self._next_save = state.step, now + pause(self._save_every, now - self._save_started)

    def _write_history(self, state: State) -> None:
        # Lines written after the last checkpoint do not belong to the resumed run.
        lines = "".join(json.dumps(line) + "\n" for line in state.history)
        (self.folder / "metrics.jsonl").write_text(lines, encoding="utf-8")
