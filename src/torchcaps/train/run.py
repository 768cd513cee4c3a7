"""One run, from a recipe to a folder with a trained model, its figures and a report."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from torchcaps._version import __version__
from torchcaps.data import Examples, Splits, epoch_size, load_data, num_batches
from torchcaps.errors import UnreadableImage, UserError
from torchcaps.io.atomic import write_text
from torchcaps.models import ImageModel, load
from torchcaps.models.costs import training_costs
from torchcaps.models.files import check_savable, write_model
from torchcaps.plugins import absolute, inherited
from torchcaps.train.callbacks import Callback, Callbacks, RunCallback, WorkerCallback
from torchcaps.train.checkpoint import (
    clear,
    copy_state,
    has_checkpoint,
    load_checkpoint,
    never_saved,
    reason,
    save_checkpoint,
)
from torchcaps.train.cudagraph import deterministic
from torchcaps.train.distributed import Distributed, make_fabric
from torchcaps.train.environment import commit, machine, versions
from torchcaps.train.evaluate import evaluate_model
from torchcaps.train.failures import enough_memory, lock_folder, saved_state, writing
from torchcaps.train.loggers import make_callbacks
from torchcaps.train.loop import Interrupted, finished, train, why_stopped
from torchcaps.train.nonfinite import ADVICE, Diverged
from torchcaps.train.recipe import Recipe, import_plugins, load_recipe
from torchcaps.train.reports.answer import one_line
from torchcaps.train.reports.page import Report
from torchcaps.train.setup import make_model, make_state, start_from
from torchcaps.train.state import State, improved_epoch, seeded
from torchcaps.train.tasks import Task

MACHINE_SETTINGS = ("data.storage=", "data.workers=", "data.cache_dir=")  # results never depend on these
FIXED_SETTINGS = (
    "data.",
    "augment.crop=",
    "transfer.",
    "train.batch_size=",
    "train.seed=",
    "train.repeat=",
)  # by a run


def start_run(
    recipe: Recipe,
    *,
    out: Path | None = None,
    device: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    shard: bool = False,
    console: Console | None = None,
    callbacks: Sequence[Callback] = (),
) -> Path:
    """Train a recipe in a new folder and return the folder.

    Args:
        recipe: what to train, and how.
        out: the folder; by default `runs/<recipe>-<time>`.
        device: auto, cpu, cuda or mps.
        devices: processes on each machine, one for each device; under torchrun, those that it started.
        nodes: machines.
        shard: whether each rank has a shard of every weight, its gradient and its moments.
        console: where to print; by default nowhere.
        callbacks: beside those that the recipe names in `train.callbacks`.
    """
    import_plugins(recipe)
    # So that the folder's recipe.yaml is enough to resume the run, from any folder.
    plugins = tuple(dict.fromkeys((*map(absolute, recipe.plugins), *inherited())))
    recipe = recipe.model_copy(update={"plugins": plugins})
    dist = _launch(recipe, device, devices, nodes, shard)
    folder = dist.broadcast_from_main(lambda: _new_folder(recipe, out))
    return _Run(recipe, folder, dist, console, resume=False, callbacks=callbacks).start()


def resume_run(
    folder: Path,
    overrides: list[str] | tuple[str, ...] = (),
    *,
    device: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    shard: bool = False,
    console: Console | None = None,
    callbacks: Sequence[Callback] = (),
) -> Path:
    """Resume an interrupted run exactly where it was. The number of processes may change, and with it the order of
    sums.

    Args:
        folder: of the run.
        overrides: settings to change, "train.epochs=20".
        device, devices, nodes, shard, console, callbacks: as in `start_run`.
    """
    if not (folder / "recipe.yaml").is_file():
        raise UserError(f"{folder} is not a run: it has no recipe.yaml; give the folder that `torchcaps train` named")
    for override in overrides:
        if override.startswith(FIXED_SETTINGS) and not override.startswith(MACHINE_SETTINGS):
            raise UserError(f"--resume: {override.partition('=')[0]} is fixed by the run; start a new run to change it")
    recipe = load_recipe(str(folder / "recipe.yaml"), overrides)
    import_plugins(recipe)
    dist = _launch(recipe, device, devices, nodes, shard)
    return _Run(recipe, folder, dist, console, resume=True, callbacks=callbacks).start()


def _launch(recipe: Recipe, device: str, devices: int, nodes: int, shard: bool) -> Distributed:
    """All ranks of the run; starts those that no launcher has started."""
    fabric = make_fabric(device, recipe.train.precision, devices, nodes, shard)
    fabric.launch()
    return Distributed(fabric)


def _unused(folder: Path) -> Path:
    """The folder, or one with a number, if two runs begin within a second."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([folder], numbered) if not each.exists())


def _new_folder(recipe: Recipe, out: Path | None) -> Path:
    folder = out or _unused(Path("runs") / f"{recipe.name}-{datetime.now():%Y%m%d-%H%M%S}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} already exists and is not empty: give another --out, or --resume {folder}")
    return folder


class _Run:
    """One run on one rank: lock the folder, load the data, train, evaluate, write."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        dist: Distributed,
        console: Console | None,
        resume: bool,
        callbacks: Sequence[Callback],
    ):
        self.recipe, self.folder, self.dist, self.resume = recipe, folder, dist, resume
        named = make_callbacks(recipe.train.callbacks)  # on every rank, so that all report a mistake
        self.given = Callbacks([*named, *callbacks] if dist.is_main else [])
        self.console = console if console is not None and dist.is_main else Console(quiet=True)
        self.started, self.device = datetime.now().astimezone(), dist.fabric.device
        self.lock = ExitStack()

    def start(self) -> Path:
        """Train and write everything; returns the folder."""
        with self.lock, self.dist.report_lost_rank():
            self.lock.enter_context(deterministic(self.recipe.train.deterministic))
            if self.resume:
                self.dist.broadcast_from_main(lambda: self._lock("make it writable, or move the run"))
            self.lock.enter_context(enough_memory(self.recipe, self.folder, self.resume))
            processes = self.dist.size_on_this_machine
            splits = load_data(**self.recipe.data.model_dump(), processes=processes, console=self.console)
            self._check(splits)
            self.lock.push(self._exit_callbacks)
            with seeded(self.recipe.train.seed, self.device):
                state, task = self._train(splits)
            if self.dist.is_main:
                state.final.to(self.device)
                self.peak_memory = self._peak_memory()
                with writing(self.folder):
                    self._finish(splits, state, task)
        return self.folder

    def _check(self, splits: Splits[Any]) -> None:
        for setting in ("stop_at", "patience"):
            if getattr(self.recipe.train, setting) is not None and splits.validation is None:
                raise UserError(f"train.{setting} is for validation images: hold some out with data.validation")
        if self.recipe.also and "classification" not in splits.train.tasks:
            raise UserError(f"also: {', '.join(self.recipe.also)} have classes, but this recipe learns masks; omit it")

    def _train(self, splits: Splits[Any]) -> tuple[State, Task]:
        recipe, dist, settings = self.recipe, self.dist, self.recipe.train
        home = torch.device("cpu") if dist.sharded else None
        model = make_model(recipe, splits.train)
        if recipe.transfer.weights is not None and not (self.resume and has_checkpoint(self.folder / "checkpoints")):
            self.console.print(start_from(model, recipe.transfer.weights), highlight=False, markup=False)
        state, task = make_state(recipe, splits.train, self.device, home, model)
        state.data = splits.fingerprint()
        with torch.random.fork_rng(devices=[]):
            check_savable(state.model)  # now, not after hours of training
        if self.resume:
            self._load(state, splits, task)
        trained = self._sharded(state)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        if not dist.is_main:
            torch.manual_seed(settings.seed + 1_000_003 * dist.rank + state.step)  # each rank's own dropout
        dist.broadcast_from_main(self._prepare_folder)
        self._announce(splits, state.model)
        examples = epoch_size(splits.train, recipe.augment.crop) * settings.repeat
        steps = num_batches(examples, settings.batch_size)
        callback = WorkerCallback()
        if dist.is_main:
            callback = RunCallback(self.folder, settings, steps, self.console, task.measure)
        dist.broadcast_from_main(lambda: self.given.on_start(self.folder, recipe, state))
        shown = self._gathered(Callbacks([callback, self.given]), state)
        with dist.barrier_on(Interrupted), callback.active(state):
            try:
                train(trained, splits.train, splits.validation, task, recipe, dist.fabric, shown)
                self._say_why(trained, task)
                self._gather(trained, state)
            except UnreadableImage as error:  # a file that was there when the run began
                raise UserError(f"{error}. {saved_state(self.folder)}") from error
            except Diverged as error:
                raise UserError(f"{error}. {saved_state(self.folder)}; {ADVICE}") from error
            except Interrupted:
                self._gather(trained, state)
                dist.broadcast_from_main(lambda: self._save(state))  # a rank that ended now would end rank 0 as well
                again = f" --devices {dist.size} --shard" if dist.sharded else ""
                self.console.print(
                    f"\nstopped after step {state.step}; resume with:  torchcaps train --resume {self.folder}{again}",
                    markup=False,
                    soft_wrap=True,
                )
                raise
        return state, task

    def _say_why(self, state: State, task: Task) -> None:
        if why_stopped(state, self.recipe.train, task.measure) == "train.patience":
            last = improved_epoch(state.history, task.measure)
            self.console.print(f"no better on validation since epoch {last}: stopped (train.patience)", highlight=False)

    def _exit_callbacks(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.given.on_exit(error)

    def _sharded(self, state: State) -> State:
        """The state to train: with --shard, this rank's shards of it."""
        if not self.dist.sharded:
            return state
        from torchcaps.train.fsdp import shard_state  # not every build of PyTorch can import it

        return shard_state(state, self.recipe, self.dist.fabric)

    def _gathered(self, callback: Callback, state: State) -> Callback:
        """With --shard, a callback that is shown the whole state."""
        if not self.dist.sharded:
            return callback
        from torchcaps.train.fsdp import GatheredCallback

        return GatheredCallback(callback, state, self.dist)

    def _gather(self, trained: State, state: State) -> None:
        if self.dist.sharded:
            copy_state(trained, state, keep=self.dist.is_main)

    def _save(self, state: State) -> None:
        with writing(self.folder):
            save_checkpoint(state, self.folder / "checkpoints")

    def _load(self, state: State, splits: Splits[Any], task: Task) -> None:
        """Load the checkpoint, rank 0 first: it renames a damaged file before the others look for one."""
        checkpoints = self.folder / "checkpoints"
        if self.dist.broadcast_from_main(lambda: never_saved(checkpoints)):
            self.console.print(
                f"{self.folder} was stopped before anything was saved: training starts again",
                soft_wrap=True,
                markup=False,
            )
        else:
            found = self.dist.broadcast_from_main(lambda: load_checkpoint(state, checkpoints))
            if not self.dist.is_main:
                load_checkpoint(state, checkpoints)
            for damaged in found:
                words = f"{damaged}; resuming from the previous checkpoint, step {state.step}"
                self.console.print(words, style="yellow", soft_wrap=True)
            if state.data != splits.fingerprint():
                raise UserError(
                    f"the data of {self.folder} has changed since the run began: its test images may have been trained "
                    "on; restore the data, or start a new run"
                )
        if finished(state, self.recipe.train, task.measure) and (self.folder / "summary.json").is_file():
            ended = why_stopped(state, self.recipe.train, task.measure)
            more = f"{ended} ended it" if ended else "add more with --epochs"
            raise UserError(f"{self.folder} has finished its {state.epoch} epochs: {more}")

    def _lock(self, remedy: str) -> None:
        self.lock.enter_context(lock_folder(self.folder, remedy))

    def _prepare_folder(self) -> None:
        """Make or clean the folder. Mistakes in recipe and data have been reported by now, with nothing written."""
        if not self.resume:
            try:
                (self.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
            except OSError as error:
                remedy = "choose another folder with --out"
                raise UserError(f"cannot write to {self.folder}: {reason(error)}; {remedy}") from error
            self._lock("choose another folder with --out")
        clear(self.folder / "checkpoints")
        with writing(self.folder):
            write_text(self.folder / "recipe.yaml", self.recipe.to_yaml())
            (self.folder / "summary.json").unlink(missing_ok=True)  # of the run before it was extended

    def _announce(self, splits: Splits[Any], model: ImageModel) -> None:
        sizes = [f"{len(splits.train):,} to train on"]
        sizes += [
            f"{len(part):,} {name}" for name, part in (("validation", splits.validation), ("test", splits.test)) if part
        ]
        shape, size = "×".join(map(str, model.image_shape)), self.dist.size
        self.console.print(
            f"{self.recipe.name}: {self.recipe.model.name}, {model.parameter_count():,} parameters, on {self.device}"
            f"{f' and {size - 1} more' if size > 1 else ''}\n"
            f"data: {splits.source}, {shape}, {model.num_classes} classes; images: {', '.join(sizes)}",
            highlight=False,
            markup=False,
        )
        costs = training_costs(model) if model.task == "classification" else None
        if costs is not None:
            self.console.print(costs.describe(self.recipe.train.batch_size), highlight=False, soft_wrap=True)
        if self.device.type == "cuda" and self.recipe.train.fast and size == 1:
            self.console.print(
                "the first steps are slow: the training step is recorded as a CUDA graph, for a long run also compiled "
                "(--no-fast: neither)"
            )

    def _finish(self, splits: Splits[Any], state: State, task: Task) -> None:
        """Keep the chosen weights, evaluate on the test set (once), write the summary and the report."""
        model = self._chosen_model(state)
        about = {"recipe": self.recipe.name, "seed": self.recipe.train.seed}
        about |= {} if self.recipe.transfer.weights is None else {"from": self.recipe.transfer.weights}
        data = self.recipe.data.model_dump(mode="json", exclude={"workers", "cache_dir"}) | {"storage": "auto"}
        about |= {"data": data, **task.origin(self.recipe, splits.train)}
        model.trained_by = {**about, "fingerprint": state.data}
        calibrated = task.calibrate(model, splits.train, splits.validation)
        (self.folder / "model").mkdir(exist_ok=True)
        write_model(model, self.folder / "model")  # what training has set is no reason to lose it
        results = _Results.of(splits, self.recipe, task, model)
        summary = self._summary(splits, state, task, results, calibrated)
        if self.recipe.train.baselines and results.last:
            summary["baselines"] = task.baselines(splits.train, results.parts[results.last])
        title = f"{summary['data']}: {self.recipe.name} (seed {self.recipe.train.seed})"
        page = Report(self.folder / "report.html", title, summary, self.recipe.to_yaml(), state.history, model)
        report = task.write_report(page, *results.shown(splits))
        # The summary comes last: its presence says that the run is complete.
        write_text(self.folder / "summary.json", json.dumps(summary, indent=2) + "\n")
        self.given.on_finish(self.folder, summary)
        if results.last:
            score, count = results.evaluations[results.last].score, len(results.parts[results.last])
            self.console.print(
                f"\n{results.last} {task.measure} {score:.2%} on {count:,} images", style="bold green", highlight=False
            )
            if told := one_line(summary, "val" if results.last == "validation" else "test"):
                self.console.print(told, highlight=False, markup=False)
        self.console.print(
            f"report  {report}\nmodel   {self.folder / 'model'}", highlight=False, soft_wrap=True, markup=False
        )

    def _chosen_model(self, state: State) -> ImageModel:
        """The last weights, or with train.select=best the best on validation."""
        model, best = state.final, self.folder / "checkpoints" / "best"
        if self.recipe.train.select == "best" and best.is_dir():
            try:
                model = load(best, model.device)
            except UserError as error:
                words = f"{error}; the last weights are kept instead"
                self.console.print(words, style="yellow", soft_wrap=True, markup=False)
        return model.eval()

    def _summary(
        self, splits: Splits[Any], state: State, task: Task, results: _Results, calibrated: dict[str, Any]
    ) -> dict[str, Any]:
        recipe, model = self.recipe, results.model
        examples = state.epoch * recipe.train.repeat * epoch_size(splits.train, recipe.augment.crop)
        also = recipe.also if "test" in results.parts else ()
        return {
            "recipe": recipe.name,
            "data": _data_name(recipe),
            "seed": recipe.train.seed,
            "version": __version__,
            "model": recipe.model.name,
            "parameters": model.parameter_count(),
            "device": str(model.device),
            "machine": machine(model.device),
            "versions": versions(),
            "commit": commit(),
            "data_checksum": state.data,
            "epochs": state.epoch,
            "steps": state.step,
            "train_n": len(splits.train),
            **({"left_out": len(splits.left_out)} if splits.left_out else {}),
            "train_seconds": round(state.seconds, 3),
            "images_per_second": round(examples / state.seconds, 1),
            **results.scores(task.measure),
            **task.summarise(results.evaluations, results.parts, model),
            "also": {name: evaluate_model(model, name)["accuracy"] for name in also},
            **calibrated,
            "peak_memory_mib": self.peak_memory,
            "processes": self.dist.size,
            "resumed": self.resume,
            "started": self.started.isoformat(timespec="seconds"),
            "finished": datetime.now().astimezone().isoformat(timespec="seconds"),
        }

    def _peak_memory(self) -> int | None:
        """The most memory, in MiB, that tensors took on a CUDA device during training."""
        return round(torch.cuda.max_memory_allocated(self.device) / 2**20) if self.device.type == "cuda" else None


def _data_name(recipe: Recipe) -> str:
    """What a report calls the data: the name of the folder or file, else of the source."""
    return Path(recipe.data.path).name if recipe.data.path else recipe.data.source


@dataclass(frozen=True)
class _Results:
    """The evaluations of a finished run, by the name of the part: "validation", "test"."""

    model: ImageModel
    parts: dict[str, Examples]
    evaluations: dict[str, Any]

    @staticmethod
    def of(splits: Splits[Any], recipe: Recipe, task: Task, model: ImageModel) -> _Results:
        named = {"validation": splits.validation, "test": splits.test if recipe.train.read_test else None}
        parts = {name: part for name, part in named.items() if part is not None}
        return _Results(model, parts, {name: task.evaluate(model, part) for name, part in parts.items()})

    @property
    def last(self) -> str:
        """The part that the report is about: the test images, else the validation images, else none."""
        return next((name for name in ("test", "validation") if name in self.parts), "")

    def shown(self, splits: Splits[Any]) -> tuple[Any, Any]:
        """The part that the report is about, and its evaluation."""
        if not self.last:
            return splits.train.subset(torch.arange(0)), None
        return self.parts[self.last], self.evaluations[self.last]

    def scores(self, measure: str) -> dict[str, Any]:
        """The fields of the summary that every task has."""
        found: dict[str, Any] = {}
        for short, name in (("val", "validation"), ("test", "test")):
            there = name in self.parts
            found[f"{short}_{measure}"] = self.evaluations[name].score if there else None
            found[f"{short}_n"] = len(self.parts[name]) if there else 0
        return found
