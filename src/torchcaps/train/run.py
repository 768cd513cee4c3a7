"""One run, from a recipe to a folder with a trained model, its figures and a report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from torchcaps._version import __version__
from torchcaps.data import Dataset, SegmentationDataset, Splits, epoch_size, load_data, num_batches
from torchcaps.errors import UserError
from torchcaps.metrics.segmentation import Scores, as_csv, score
from torchcaps.metrics.similarity import ssim
from torchcaps.models import ImageModel, load, save
from torchcaps.train import loop
from torchcaps.train.calibrate import calibrate_thickness, none_threshold
from torchcaps.train.callbacks import Follower, RunWatcher
from torchcaps.train.checkpoint import State, clear, copy_state, load_checkpoint, reason, save_checkpoint, untouched
from torchcaps.train.cudagraph import repeatable
from torchcaps.train.distributed import Distributed
from torchcaps.train.environment import commit, machine, versions
from torchcaps.train.evaluate import evaluate_model
from torchcaps.train.failures import alone, enough_memory, kept, writing
from torchcaps.train.nonfinite import ADVICE, Diverged
from torchcaps.train.recipe import Recipe, load_recipe
from torchcaps.train.reports.classification import write_report, write_whole
from torchcaps.train.reports.segmentation import write_mask_report
from torchcaps.train.reports.synthesis import write_drawing_report
from torchcaps.train.state import make_state, seeded
from torchcaps.train.tasks.classification import Task
from torchcaps.train.tasks.segmentation import Masks, SegmentationTask
from torchcaps.train.tasks.synthesis import Drawings, SynthesisTask


def start_run(
    recipe: Recipe,
    *,
    out: Path | None = None,
    device: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    shard: bool = False,
    console: Console | None = None,
) -> Path:
    """Train a recipe in a new folder, `runs/<recipe>-<time>` unless `out` names one; returns it.

    devices, nodes  processes on each machine, one a device, and machines; under torchrun they are what it started
    shard           each process has a piece of every weight, of its gradient and its moments
    """
    team = _meet(recipe, device, devices, nodes, shard)
    return _run(recipe, team.broadcast_from_main(lambda: _new_folder(recipe, out)), team, console, resume=False)


def resume_run(
    folder: Path,
    overrides: list[str] | tuple[str, ...] = (),
    *,
    device: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    shard: bool = False,
    console: Console | None = None,
) -> Path:
    """Go on with an interrupted run, exactly where it was; on another number of processes but for the order of sums."""
    if not (folder / "recipe.yaml").is_file():
        raise UserError(f"{folder} is not a run: it has no recipe.yaml; give the folder that `torchcaps train` named")
    for override in overrides:
        if override.startswith(("data.", "augment.crop=", "train.batch_size=", "train.seed=", "train.repeat=")):
            raise UserError(f"--resume: {override.partition('=')[0]} is fixed by the run; start a new run to change it")
    recipe = load_recipe(str(folder / "recipe.yaml"), overrides)
    return _run(recipe, folder, _meet(recipe, device, devices, nodes, shard), console, resume=True)


def _meet(recipe: Recipe, device: str, devices: int, nodes: int, shard: bool) -> Distributed:
    """All processes of the run; those that nobody has started yet are started."""
    fabric = loop.make_fabric(device, recipe.train.precision, devices, nodes, shard)
    fabric.launch()
    return Distributed(fabric)


def _new_folder(recipe: Recipe, out: Path | None) -> Path:
    folder = out or Path("runs") / f"{recipe.name}-{datetime.now():%Y%m%d-%H%M%S}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} already exists and is not empty: give another --out, or --resume {folder}")
    return folder


def _run(recipe: Recipe, folder: Path, team: Distributed, console: Console | None, resume: bool) -> Path:
    console = console if console is not None and team.first else Console(quiet=True)
    with ExitStack() as locked, team.together():
        locked.enter_context(repeatable(recipe.train.deterministic))
        if resume:
            team.broadcast_from_main(lambda: locked.enter_context(alone(folder, "make it writable, or move the run")))
        locked.enter_context(enough_memory(recipe, folder, resume))
        return _train(recipe, folder, team, console, resume, locked)


def _train(recipe: Recipe, folder: Path, team: Distributed, console: Console, resume: bool, locked: ExitStack) -> Path:
    started, device = datetime.now().astimezone(), team.fabric.device
    splits = load_data(**recipe.data.model_dump())
    if recipe.train.stop_at is not None and splits.validation is None:
        raise UserError("train.stop_at is for validation images: hold some out with data.validation")
    if recipe.also and isinstance(splits.train, SegmentationDataset):
        raise UserError(f"also: {', '.join(recipe.also)} have classes, and this recipe learns masks; leave it out")
    with seeded(recipe.train.seed, device):
        state, task = make_state(recipe, splits.train, device, torch.device("cpu") if team.in_pieces else None)
        state.data = splits.fingerprint()
        if resume:
            _load(state, folder, splits, team, console)
            if loop.finished(state, recipe.train, task.measure) and (folder / "summary.json").is_file():
                more = "add more with --epochs" if state.epoch >= recipe.train.epochs else "it reached train.stop_at"
                raise UserError(f"{folder} has finished its {state.epoch} epochs: {more}")
        trained = _in_pieces(state, recipe, team) if team.in_pieces else state
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        if not team.first:
            torch.manual_seed(recipe.train.seed + 1_000_003 * team.rank + state.step)  # dropout of its own
        team.broadcast_from_main(lambda: _prepare_folder(recipe, folder, resume, locked))
        _announce(recipe, splits, state.model, team, console)
        examples = epoch_size(splits.train, recipe.augment.crop) * recipe.train.repeat
        steps = num_batches(examples, recipe.train.batch_size)
        watcher = RunWatcher(folder, recipe.train, steps, console, task.measure) if team.first else Follower()
        with team.parting(loop.Interrupted), watcher.watching(state):
            shown = _shown(watcher, state, team)
            try:
                loop.train(trained, splits.train, splits.validation, task, recipe, team.fabric, shown)
                if team.in_pieces:
                    copy_state(trained, state, keep=team.first)
            except Diverged as error:
                raise UserError(f"{error}. {kept(folder)}; {ADVICE}") from error
            except loop.Interrupted:
                if team.in_pieces:
                    copy_state(trained, state, keep=team.first)
                team.broadcast_from_main(
                    lambda: _save(state, folder)
                )  # a process that ended now would end the first as well
                again = f" --devices {team.size} --shard" if team.in_pieces else ""
                console.print(
                    f"\nstopped after step {state.step}; go on with:  torchcaps train --resume {folder}{again}",
                    markup=False,
                    soft_wrap=True,
                )
                raise
    if team.first:
        state.final.to(device)
        with writing(folder):
            _finish(folder, recipe, splits, state, task, started, resume, _peak_memory(device), team.size, console)
    return folder


def _save(state: State, folder: Path) -> None:
    with writing(folder):
        save_checkpoint(state, folder / "checkpoints")


def _in_pieces(state: State, recipe: Recipe, team: Distributed) -> State:
    from torchcaps.train.fsdp import share_out  # which not every build of PyTorch can import

    return share_out(state, recipe, team.fabric)


def _shown(watcher: Follower, state: State, team: Distributed) -> loop.Watcher:
    """Whoever looks on at a model in pieces sees a whole one."""
    if not team.in_pieces:
        return watcher
    from torchcaps.train.fsdp import Gathering

    return Gathering(watcher, state, team)


def _load(state: State, folder: Path, splits: Splits[Any], team: Distributed, console: Console) -> None:
    """The first process goes first: it moves a damaged file out of the way of the others."""
    if team.broadcast_from_main(lambda: untouched(folder / "checkpoints")):
        console.print(f"{folder} was stopped before anything was saved: it begins again", soft_wrap=True, markup=False)
        return
    found = team.broadcast_from_main(lambda: load_checkpoint(state, folder / "checkpoints"))
    if not team.first:
        load_checkpoint(state, folder / "checkpoints")
    for damaged in found:
        console.print(f"{damaged}; going on from the one before, step {state.step}", style="yellow", soft_wrap=True)
    if state.data != splits.fingerprint():
        raise UserError(
            f"the data of {folder} has changed since it began: its test images may have been trained on; put it back "
            "as it was, or start a new run"
        )


def _prepare_folder(recipe: Recipe, folder: Path, resume: bool, locked: ExitStack) -> None:
    """What is wrong with recipe or data has been said by now, and nothing was left behind."""
    if not resume:
        _make_folder(folder)
        locked.enter_context(alone(folder, "choose another folder with --out"))
    clear(folder / "checkpoints")
    with writing(folder):
        write_whole(folder / "recipe.yaml", recipe.to_yaml())
        (folder / "summary.json").unlink(missing_ok=True)  # of the run before it was extended


def _peak_memory(device: torch.device) -> int | None:
    """The most memory, in MiB, that tensors took on a CUDA device while it trained."""
    return round(torch.cuda.max_memory_allocated(device) / 2**20) if device.type == "cuda" else None


def _make_folder(folder: Path) -> None:
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {reason(error)}; choose another folder with --out") from error


def _announce(recipe: Recipe, splits: Splits[Any], model: ImageModel, team: Distributed, console: Console) -> None:
    sizes = [f"{len(splits.train):,} to train on"]
    sizes += [
        f"{len(part):,} {name}" for name, part in (("validation", splits.validation), ("test", splits.test)) if part
    ]
    shape = "×".join(map(str, model.image_shape))
    device, others = team.fabric.device, f" and {team.size - 1} more" if team.size > 1 else ""
    console.print(
        f"{recipe.name}: {recipe.model.name}, {model.parameter_count():,} parameters, on {device}{others}\n"
        f"data: {splits.source}, {shape}, {model.num_classes} classes; images: {', '.join(sizes)}",
        highlight=False,
        markup=False,
    )
    if device.type == "cuda" and recipe.train.fast and team.size == 1:
        console.print(
            "the first steps are slow: the training step is recorded, for a long run also compiled (--no-fast: neither)"
        )


def _finish(
    folder: Path,
    recipe: Recipe,
    splits: Splits[Any],
    state: State,
    task: Task,
    started: datetime,
    resumed: bool,
    peak: int | None,
    processes: int,
    console: Console,
) -> None:
    """Keep the chosen weights, look at the test set (once), write the summary and the report."""
    model = state.final
    best = folder / "checkpoints" / "best"
    if recipe.train.select == "best" and best.is_dir():
        try:
            model = load(best, model.device)
        except UserError as error:
            console.print(f"{error}; the last weights are kept instead", style="yellow", soft_wrap=True, markup=False)
    model.eval()
    model.trained_by = _origin(recipe, splits.train, state)
    model.none_below = none_threshold(model, splits.validation)
    if thickness := calibrate_thickness(model, splits.train, splits.validation):
        model.trained_by["thickness"] = thickness
    save(model, folder / "model")
    parts = {"validation": splits.validation, "test": splits.test if recipe.train.read_test else None}
    measured = {name: part for name, part in parts.items() if part is not None}
    results: dict[str, Any] = {name: loop.evaluate(model, part, task) for name, part in measured.items()}
    scores = {
        name: score(result.found, measured[name], model.class_names)
        for name, result in results.items()
        if isinstance(result, Masks)
    }
    examples = state.epoch * recipe.train.repeat * epoch_size(splits.train, recipe.augment.crop)
    summary = {
        "recipe": recipe.name,
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
        "train_seconds": round(state.seconds, 3),
        "images_per_second": round(examples / state.seconds, 1),
        f"val_{task.measure}": results["validation"].right if "validation" in results else None,
        "val_n": len(measured["validation"]) if "validation" in measured else 0,
        f"test_{task.measure}": results["test"].right if "test" in results else None,
        "test_n": len(measured["test"]) if "test" in measured else 0,
        **_overlaps(scores),
        **_structure(results),
        "also": {name: evaluate_model(model, name)["accuracy"] for name in recipe.also} if "test" in measured else {},
        **({} if model.none_below is None else {"none_below": model.none_below}),
        **({"thickness": thickness} if thickness else {}),
        "peak_memory_mib": peak,
        "processes": processes,
        "resumed": resumed,
        "started": started.isoformat(timespec="seconds"),
        "finished": datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    page: dict[str, Any] = {
        "title": f"{recipe.name} (seed {recipe.train.seed})",
        "summary": summary,
        "recipe_text": recipe.to_yaml(),
        "history": state.history,
        "model": model,
    }
    shown = next((name for name in ("test", "validation") if name in results), "")
    part = measured[shown] if shown else splits.train.subset(torch.arange(0))
    if isinstance(task, SegmentationTask):
        report = _report_masks(folder, page, part, results.get(shown), scores.get(shown))
    elif isinstance(task, SynthesisTask):
        report = write_drawing_report(folder / "report.html", **page, drawings=results.get(shown))
    else:
        report = _report_classes(folder, page, part, results.get(shown))
    # The summary comes last: its presence says that the run is whole.
    write_whole(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    if shown:
        console.print(
            f"\n{shown} {task.measure} {results[shown].right:.2%} on {len(part):,} images",
            style="bold green",
            highlight=False,
        )
    console.print(f"report  {report}\nmodel   {folder / 'model'}", highlight=False, soft_wrap=True, markup=False)


def _origin(recipe: Recipe, data: Dataset | SegmentationDataset, state: State) -> dict[str, Any]:
    """What a model says about where it comes from."""
    labels = {"multi_label": data.multi_label, "labels_each": data.labels_each} if isinstance(data, Dataset) else {}
    about = {"recipe": recipe.name, "seed": recipe.train.seed, "data": recipe.data.model_dump(mode="json")}
    judge = {"judge": recipe.judge} if state.discriminator is not None else {}
    return {**about, **labels, **judge, "fingerprint": state.data}


def _overlaps(scores: Mapping[str, Scores]) -> dict[str, Any]:
    """What a summary has of masks beyond their Dice."""
    figures: dict[str, Any] = {}
    for short, name in (("val", "validation"), ("test", "test")):
        if name in scores:
            means = scores[name].means()
            figures |= {f"{short}_{measure}": value for measure, value in means.items() if measure != "dice"}
            figures[f"{short}_per_class"] = scores[name].per_class()
    return figures


def _structure(results: Mapping[str, Any]) -> dict[str, Any]:
    """What a summary has of drawn images beyond their similarity."""
    return {
        f"{short}_ssim": ssim(results[name].images, [image.float() / 255 for image in results[name].real.images])
        for short, name in (("val", "validation"), ("test", "test"))
        if isinstance(results.get(name), Drawings)
    }


def _report_classes(folder: Path, page: dict[str, Any], part: Dataset, result: loop.Result | None) -> Path:
    model = page["model"]
    return write_report(
        folder / "report.html",
        **page,
        test_images=part.images if result is None else model.prepare(part.images).cpu(),
        test_targets=part.targets,
        test_lengths=torch.zeros(0, model.num_classes) if result is None else result.lengths,
        class_names=model.class_names,
        labels_each=part.labels_each,
    )


def _report_masks(
    folder: Path, page: dict[str, Any], part: SegmentationDataset, result: Masks | None, scores: Scores | None
) -> Path:
    if scores is not None:
        write_whole(folder / "images.csv", as_csv(scores))
    found = [] if result is None else result.found
    return write_mask_report(folder / "report.html", **page, segments=part, found=found, scores=scores)
