"""One run, from a recipe to a folder with a trained model, its figures and a report."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

import torch
from rich.console import Console

from torchcaps._version import __version__
from torchcaps.data import Dataset, Splits, load_data, num_batches
from torchcaps.errors import UserError
from torchcaps.models import ImageModel, load, save
from torchcaps.train import engine
from torchcaps.train.checkpoint import State, load_checkpoint, save_checkpoint
from torchcaps.train.evaluate import evaluate_model
from torchcaps.train.machine import machine
from torchcaps.train.recipe import Recipe, load_recipe
from torchcaps.train.report import write_report
from torchcaps.train.setup import make_state, seeded
from torchcaps.train.tasks import Classify
from torchcaps.train.watch import RunWatcher


def start_run(recipe: Recipe, *, out: Path | None = None, device: str = "auto", console: Console | None = None) -> Path:
    """Train a recipe in a new folder, `runs/<recipe>-<time>` unless `out` names one; returns it."""
    folder = out or Path("runs") / f"{recipe.name}-{datetime.now():%Y%m%d-%H%M%S}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} already exists and is not empty: give another --out, or --resume {folder}")
    return _run(recipe, folder, device, console or Console(quiet=True), resume=False)


def resume_run(
    folder: Path, overrides: list[str] | tuple[str, ...] = (), *, device: str = "auto", console: Console | None = None
) -> Path:
    """Go on with an interrupted run, exactly where it was."""
    if not (folder / "recipe.yaml").is_file():
        raise UserError(f"{folder} is not a run: it has no recipe.yaml; give the folder that `torchcaps train` named")
    for override in overrides:
        if override.startswith(("data.", "train.batch_size=", "train.seed=", "train.repeat=")):
            raise UserError(f"--resume: {override.partition('=')[0]} is fixed by the run; start a new run to change it")
    recipe = load_recipe(str(folder / "recipe.yaml"), overrides)
    return _run(recipe, folder, device, console or Console(quiet=True), resume=True)


def _run(recipe: Recipe, folder: Path, device: str, console: Console, resume: bool) -> Path:
    started = datetime.now().astimezone()
    fabric = engine.make_fabric(device, recipe.train.precision)
    splits = load_data(**recipe.data.model_dump())
    if recipe.train.stop_at is not None and splits.validation is None:
        raise UserError("train.stop_at is an accuracy on validation images: hold some out with data.validation")
    with seeded(recipe.train.seed, fabric.device):
        state, task = make_state(recipe, splits.train, fabric.device)
        if fabric.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(fabric.device)
        last = folder / "checkpoints" / "last.safetensors"
        state.data = splits.fingerprint()
        if resume:
            load_checkpoint(state, last)
            if state.data != splits.fingerprint():
                raise UserError(
                    f"the data of {folder} has changed since it began: its test images may have been trained on"
                )
            if engine.finished(state, recipe.train, task.measure) and (folder / "summary.json").is_file():
                more = "add more with --epochs" if state.epoch >= recipe.train.epochs else "it reached train.stop_at"
                raise UserError(f"{folder} has finished its {state.epoch} epochs: {more}")
        _prepare_folder(folder, recipe)
        (folder / "summary.json").unlink(missing_ok=True)  # of the run before it was extended
        _announce(recipe, splits, state.model, fabric.device, console)
        steps = num_batches(len(splits.train) * recipe.train.repeat, recipe.train.batch_size)
        watcher = RunWatcher(folder, recipe.train.epochs, steps, console, task.measure)
        try:
            with watcher.watching(state):
                engine.train(state, splits.train, splits.validation, task, recipe, fabric, watcher)
        except engine.Interrupted:
            save_checkpoint(state, last)
            console.print(
                f"\nstopped after step {state.step}; go on with:  torchcaps train --resume {folder}",
                markup=False,
                soft_wrap=True,
            )
            raise
    _finish(folder, recipe, splits, state, task, started, resume, _peak_memory(fabric.device), console)
    return folder


def _peak_memory(device: torch.device) -> int | None:
    """The most memory, in MiB, that tensors took on a CUDA device while it trained."""
    return round(torch.cuda.max_memory_allocated(device) / 2**20) if device.type == "cuda" else None


def _prepare_folder(folder: Path, recipe: Recipe) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot write to {folder}: {error.strerror or error}; choose another folder with --out"
        ) from error


def _announce(recipe: Recipe, splits: Splits, model: ImageModel, device: torch.device, console: Console) -> None:
    sizes = [f"{len(splits.train):,} to train on"]
    sizes += [
        f"{len(part):,} {name}" for name, part in (("validation", splits.validation), ("test", splits.test)) if part
    ]
    shape = "×".join(map(str, model.image_shape))
    console.print(
        f"{recipe.name}: {recipe.model.name}, {model.parameter_count():,} parameters, on {device}\n"
        f"data: {splits.source}, {shape}, {model.num_classes} classes; images: {', '.join(sizes)}",
        highlight=False,
        markup=False,
    )
    if device.type == "cuda" and recipe.train.fast:
        console.print("the first steps are slow: the training step is compiled and recorded (--no-fast turns that off)")


def _finish(
    folder: Path,
    recipe: Recipe,
    splits: Splits,
    state: State,
    task: Classify,
    started: datetime,
    resumed: bool,
    peak: int | None,
    console: Console,
) -> None:
    """Keep the chosen weights, look at the test set (once), write the summary and the report."""
    model = state.final
    best = folder / "checkpoints" / "best"
    if recipe.train.select == "best" and best.is_dir():
        model = load(best, model.device)
    model.eval()
    model.trained_by = {
        "recipe": recipe.name,
        "seed": recipe.train.seed,
        "data": recipe.data.model_dump(mode="json"),
        "multi_label": splits.train.multi_label,
        "labels_each": splits.train.labels_each,
        "fingerprint": state.data,
    }
    save(model, folder / "model")
    parts = {"validation": splits.validation, "test": splits.test if recipe.train.read_test else None}
    measured = {name: part for name, part in parts.items() if part is not None}
    results = {name: engine.evaluate(model, part, task) for name, part in measured.items()}
    summary = {
        "recipe": recipe.name,
        "seed": recipe.train.seed,
        "version": __version__,
        "model": recipe.model.name,
        "parameters": model.parameter_count(),
        "device": str(model.device),
        "machine": machine(model.device),
        "epochs": state.epoch,
        "steps": state.step,
        "train_n": len(splits.train),
        "train_seconds": round(state.seconds, 3),
        "images_per_second": round(state.epoch * recipe.train.repeat * len(splits.train) / state.seconds, 1),
        "val_accuracy": results["validation"].right if "validation" in results else None,
        "val_n": len(measured["validation"]) if "validation" in measured else 0,
        "test_accuracy": results["test"].right if "test" in results else None,
        "test_n": len(measured["test"]) if "test" in measured else 0,
        "also": {name: evaluate_model(model, name)["accuracy"] for name in recipe.also} if "test" in measured else {},
        "peak_memory_mib": peak,
        "resumed": resumed,
        "started": started.isoformat(timespec="seconds"),
        "finished": datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    shown = "test" if "test" in results else "validation" if "validation" in results else None
    dataset: Dataset = measured[shown] if shown else splits.train.subset(torch.arange(0))
    lengths = results[shown].lengths if shown else torch.zeros(0, model.num_classes)
    report = write_report(
        folder / "report.html",
        title=f"{recipe.name} (seed {recipe.train.seed})",
        summary=summary,
        recipe_text=recipe.to_yaml(),
        history=state.history,
        model=model,
        test_images=model.prepare(dataset.images).cpu() if shown else dataset.images,
        test_targets=dataset.targets,
        test_lengths=lengths,
        class_names=model.class_names,
        labels_each=splits.train.labels_each,
    )
    # The summary comes last: its presence says that the run is whole.
    aside = folder / ".summary.json"
    aside.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    os.replace(aside, folder / "summary.json")
    if shown:
        console.print(
            f"\n{shown} accuracy {results[shown].right:.2%} on {len(dataset):,} images",
            style="bold green",
            highlight=False,
        )
    console.print(f"report  {report}\nmodel   {folder / 'model'}", highlight=False, soft_wrap=True, markup=False)
