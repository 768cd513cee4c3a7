"""Looking on while a run trains: progress bar, metrics files, checkpoints, and the wish to stop."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from torchcaps.models.files import write_model
from torchcaps.train.checkpoint import State, save_checkpoint
from torchcaps.train.failures import writing
from torchcaps.train.loop import Totals
from torchcaps.train.recipe import TrainSection

REFRESH = 0.5  # seconds between two looks at the metrics: each makes an accelerator wait
COST = 0.01  # the share of a run's time that writing checkpoints may take,
MAX_INTERVALS = 20.0  # unless they would be more than so many times `save_every` apart: a disk may be slow but once


def pause(save_every: float, took: float) -> float:
    """Seconds until the next checkpoint, after one that took so long; 0 if one after every epoch is asked for."""
    return min(max(save_every, took / COST), MAX_INTERVALS * save_every)


class Quiet:
    """Looks on without a word; for `fit` and for tests."""

    def step(self, state: State, totals: Totals) -> None: ...

    def epoch(self, state: State, line: dict[str, float]) -> None: ...

    def wants(self, state: State, line: dict[str, float]) -> bool:
        """Whether it will look at the weights when it is told of this epoch."""
        return False

    def stopping(self) -> bool:
        return False

    def due(self) -> bool:
        """Whether it is time for a checkpoint, though the epoch is not over."""
        return False

    def save(self, state: State) -> None: ...


class Follower(Quiet):
    """Of a process that does not write: it stops when it is asked to, together with the others."""

    def __init__(self) -> None:
        self._stop = False

    @contextmanager
    def watching(self, state: State) -> Iterator[None]:
        with self._signals():
            yield

    def stopping(self) -> bool:
        return self._stop

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C (or SIGTERM) asks to stop after the current step, the second stops at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class RunWatcher(Follower):
    """Shows progress and keeps a run folder up to date.

    metrics.jsonl                  one line for each epoch
    tensorboard/                   the same as curves
    checkpoints/last.safetensors   the state at the end, every `save_every` seconds (less often where writing takes
                                   long; after an epoch where that is 0), and when the run was interrupted;
                                   previous.safetensors, the one before
    checkpoints/best/              the model that was best on validation
    """

    def __init__(self, folder: Path, recipe: TrainSection, steps_per_epoch: int, console: Console, measure: str):
        self.folder, self.epochs, self.console, self.measure = folder, recipe.epochs, console, measure
        self._save_every = recipe.save_every  # epochs on a GPU may take less than writing a checkpoint does
        super().__init__()
        self._steps = steps_per_epoch
        self._next_look = self._next_save = self._began_save = 0.0
        self._saved = 0
        self._better = self._due = False
        self._decided = 0  # after how many steps these two were
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn(
                "{task.fields[rate]:>7,.0f} img/s  loss {task.fields[loss]:.4f}  "
                + measure
                + " {task.fields[right]:.2%}"
            ),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    @contextmanager
    def watching(self, state: State) -> Iterator[None]:
        """Progress bar, TensorBoard writer and signal handlers, for as long as the block runs."""
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
            right=0.0,
        )
        self._began, self._first = time.perf_counter(), state.step
        with self._signals(), self._progress:
            try:
                yield
                with writing(self.folder):
                    self._save(state)
            finally:
                with suppress(OSError):  # its curves are in metrics.jsonl as well
                    self._board.close()

    def step(self, state: State, totals: Totals) -> None:
        now = time.perf_counter()
        if self._progress.disable or now < self._next_look:
            return
        self._next_look = now + REFRESH
        means = totals.means()
        images = totals.read()["examples"] / max(1, state.batch)
        self._progress.update(
            self._bar,
            completed=state.step,
            epoch=f"{state.epoch + 1}/{self.epochs}",
            rate=(state.step - self._first) * images / (now - self._began),
            loss=means["loss"],
            right=means[self.measure],
        )

    def wants(self, state: State, line: dict[str, float]) -> bool:
        if self._decided != state.step:
            right = line.get(f"val_{self.measure}")
            self._began_save = time.perf_counter()
            self._better = right is not None and (state.best is None or right > state.best)
            self._due = self._began_save >= self._next_save
            self._decided = state.step
        return self._better or self._due

    def epoch(self, state: State, line: dict[str, float]) -> None:
        self.wants(state, line)
        with writing(self.folder):
            self._write_epoch(state, line)
        right = line.get(f"val_{self.measure}")
        seen = "" if right is None else f"  val {right:.2%}"
        passed = f"  {line['passed_over']:.0f} steps passed over" if "passed_over" in line else ""
        self.console.print(
            f"epoch {int(line['epoch']):>3}/{self.epochs}  loss {line['train_loss']:.4f}  "
            f"train {line[f'train_{self.measure}']:.2%}{seen}  {line['images_per_second']:,.0f} img/s{passed}",
            highlight=False,
        )

    def due(self) -> bool:
        now = time.perf_counter()
        return self._save_every > 0 and now >= max(self._next_save, self._began + self._save_every)

    def save(self, state: State) -> None:
        self._began_save = time.perf_counter()
        with writing(self.folder):
            self._save(state)

    def _write_epoch(self, state: State, line: dict[str, float]) -> None:
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        for name, value in line.items():
            if name not in ("epoch", "step"):
                self._board.add_scalar(name.replace("_", "/", 1), value, int(line["epoch"]))
        if self._better:
            state.best = line[f"val_{self.measure}"]
            best = self.folder / "checkpoints" / "best"
            best.mkdir(parents=True, exist_ok=True)
            write_model(state.final, best)
        if self._due:
            self._save(state)

    def _save(self, state: State) -> None:
        if self._saved != state.step:
            save_checkpoint(state, self.folder / "checkpoints")
        now = time.perf_counter()
        self._saved, self._next_save = state.step, now + pause(self._save_every, now - self._began_save)

    def _write_history(self, state: State) -> None:
        # What an interrupted run had written after its last checkpoint is not part of the run that goes on.
        lines = "".join(json.dumps(line) + "\n" for line in state.history)
        (self.folder / "metrics.jsonl").write_text(lines, encoding="utf-8")
