"""Results of recipes over several seeds, trained side by side on one GPU.

Each seed is a run of `torchcaps train` in its own process and folder. Finished runs are kept and interrupted ones are
resumed, so the same command can be repeated until it is done.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from rich.console import Console

from torchcaps.errors import UserError
from torchcaps.io.folders import make_folder
from torchcaps.models import load
from torchcaps.train.checkpoint import has_checkpoint
from torchcaps.train.evaluate import evaluate_ensemble, evaluate_model
from torchcaps.train.recipe import ClaimSection, Recipe, import_plugins, list_recipes, load_recipe

SIDE_BY_SIDE = 5  # runs at a time on one GPU; benchmarks/results/h200-log.md has the gain
MARKS = re.compile(r"(<!-- results(?: of (\S+))? -->\n).*?(<!-- end of results -->)", re.DOTALL)
HEAD = ("result", "paper", "best open", "ours", "on", "by")


class Job(NamedTuple):
    """One seed of one recipe.

    Attributes:
        given: the recipe's name or file.
        settings: the overrides, with the seed.
        recipe: the recipe with these settings.
        folder: of the run.
    """

    given: str
    settings: tuple[str, ...]
    recipe: Recipe
    folder: Path

    @staticmethod
    def of(given: str, seed: int, overrides: Sequence[str], runs: Path) -> Job:
        asked = load_recipe(given, tuple(overrides))
        settings = [*overrides, f"train.seed={seed}"]
        if asked.data.limit is not None or asked.data.per_class is not None:
            settings.append(f"data.split_seed={seed}")  # each seed draws other images
        return Job(given, tuple(settings), load_recipe(given, tuple(settings)), runs / f"{asked.name}-{seed}")

    @property
    def done(self) -> bool:
        return (self.folder / "summary.json").is_file()

    @property
    def log(self) -> Path:
        return self.folder.parent / f"{self.folder.name}.log"

    def check(self) -> None:
        """Check that the folder, if it exists, holds this very run: no other may count as its result."""
        if not self.folder.exists():
            return
        if not (self.folder / "recipe.yaml").is_file():
            raise UserError(f"{self.folder} is not a run: move it away, or give another folder with --runs")
        try:
            same = _settings(load_recipe(str(self.folder / "recipe.yaml"))) == _settings(self.recipe)
        except UserError:  # a recipe of another version
            same = False
        if not same:
            raise UserError(
                f"{self.folder} was made with other settings: remove it, or give another folder with --runs"
            )

    def command(self, device: str) -> list[str]:
        train = [sys.executable, "-m", "torchcaps", "train", "--device", device]
        if has_checkpoint(self.folder / "checkpoints"):
            return [*train, "--resume", str(self.folder)]
        if self.folder.exists():  # it was stopped before its first checkpoint
            shutil.rmtree(self.folder)
        return [*train, self.given, *(f"--set={each}" for each in self.settings), "--out", str(self.folder)]


def reproduce(
    names: Sequence[str],
    seeds: int,
    *,
    out: Path,
    runs: Path,
    device: str = "auto",
    side_by_side: int | None = None,
    overrides: list[str] | tuple[str, ...] = (),
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Train each recipe with the seeds 0 … seeds − 1; write `out/<recipe>.json` and the table in `out.md`."""
    console = console or Console(quiet=True)
    given = [str(Path(name).resolve()) if name.endswith((".yaml", ".yml")) else name for name in names or claimed()]
    groups = {name: [Job.of(name, seed, overrides, runs) for seed in range(seeds)] for name in given}
    jobs = [job for group in groups.values() for job in group]
    for job in jobs:
        if job.recipe.claim is None:
            known = ", ".join(claimed())
            raise UserError(
                f"{job.recipe.name} has no claimed result: `reproduce` is for recipes that have one, {known}"
            )
        if not job.recipe.train.read_test:
            raise UserError("train.read_test=no: a result is read off the test set; use `torchcaps train` to choose")
        job.check()
        import_plugins(job.recipe)  # also for the models that are evaluated here
    _check_place(out)
    place = "cuda" if torch.cuda.is_available() and device in ("auto", "cuda") else "cpu"
    results: dict[str, dict[str, Any]] = {}

    def write_whole() -> None:
        """Write each result as soon as it is complete, in case a later run fails or is interrupted."""
        for name, group in groups.items():
            if name not in results and all(job.done for job in group):
                results[name] = _write(out, group, overrides, side_by_side, place)
                if not fill_results(write_page(out), out):
                    console.print(f"{out}.md has no <!-- results --> to fill", highlight=False, markup=False)

    write_whole()
    failed = run_jobs(jobs, device, side_by_side, console, lambda _: write_whole(), _told)
    check_failed(failed, jobs)
    return [results[name] for name in groups]


def _settings(recipe: Recipe) -> dict[str, Any]:
    """The settings of a recipe that decide a run's result."""
    return recipe.model_dump(mode="json", exclude={"name", "description", "claim", "plugins"})


def _check_place(out: Path) -> None:
    if not out.name:
        raise UserError(f"--out {out}: give a folder by its name; the table is written beside it")
    make_folder(out)


def claimed() -> list[str]:
    """The recipes with a claimed result."""
    return [name for name in list_recipes() if load_recipe(name).claim is not None]


def run_jobs(
    jobs: Sequence[Job],
    device: str,
    side_by_side: int | None,
    console: Console,
    after_each: Callable[[Job], None],
    describe: Callable[[Job], str],
) -> list[Job]:
    """Train all jobs that are not done yet, several at a time on a GPU.

    Args:
        jobs: in the order in which they start.
        device: auto, cpu, cuda or mps.
        side_by_side: jobs at a time; by default SIDE_BY_SIDE on CUDA, else 1.
        console: one line is printed for each job.
        after_each: called for each job that has just finished without an error.
        describe: what to print of a finished job.

    Returns:
        The jobs that failed.
    """
    cuda = torch.cuda.is_available() and device in ("auto", "cuda")
    at_once = side_by_side or (SIDE_BY_SIDE if cuda else 1)
    jobs = [job for job in jobs if not job.done]
    waiting, running, failed = list(jobs), dict[Path, tuple[Job, subprocess.Popen[bytes]]](), list[Job]()
    at_once = min(at_once, len(jobs))
    with _stopped_by_sigterm(), _shared_gpu(cuda and at_once > 1) as environment:
        if at_once > 1:  # else each run starts as many threads as there are cores
            environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // at_once)))
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    job = waiting.pop(0)
                    job.folder.parent.mkdir(parents=True, exist_ok=True)
                    with job.log.open("ab") as log:
                        # In its own session: a Ctrl-C reaches only this process, which then stops each run once, below.
                        process = subprocess.Popen(
                            job.command(device),
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            env=environment,
                            start_new_session=True,
                        )
                    running[job.folder] = job, process
                for folder in [folder for folder, (_, process) in running.items() if process.poll() is not None]:
                    job, _ = running.pop(folder)
                    words = describe(job) if job.done else f"failed: {_last_line(job.log)}"
                    console.print(f"{folder.name}: {words}", highlight=False, markup=False)
                    if job.done:
                        after_each(job)
                    else:
                        failed.append(job)
                time.sleep(0.2)
        finally:
            for _, process in running.values():  # each saves its state and stops
                process.terminate()
            for _, process in running.values():
                process.wait()
    return failed


def check_failed(failed: Sequence[Job], jobs: Sequence[Job]) -> None:
    """Raise an error that names the failed jobs and their logs."""
    if failed:
        raise UserError(
            f"{len(failed)} of {len(jobs)} runs failed; their logs: {', '.join(str(job.log) for job in failed[:3])}. "
            "Run the same command to continue"
        )


def _last_line(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    return text.splitlines()[-1] if text else "no message"


def _told(job: Job) -> str:
    summary = json.loads((job.folder / "summary.json").read_text(encoding="utf-8"))
    return f"{_measured(job.recipe, summary):.2f} % {_claim(job.recipe).measure}"


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Handle SIGTERM as a Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _shared_gpu(wanted: bool) -> Iterator[dict[str, str]]:
    """The environment for processes that share a GPU: with NVIDIA's multi-process service, if installed, their
    kernels run concurrently."""
    control = shutil.which("nvidia-cuda-mps-control")
    if not wanted or control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield dict(os.environ)
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}

        def ask(words: bytes) -> bool:
            return subprocess.run([control], input=words, env=environment, capture_output=True).returncode == 0

        started = subprocess.run([control, "-d"], env=environment, capture_output=True).returncode == 0
        deadline = time.monotonic() + 5
        # A process that starts before the service answers would run outside it.
        while started and not (ready := ask(b"get_server_list\n")) and time.monotonic() < deadline:
            time.sleep(0.1)
        try:
            yield environment if started and ready else dict(os.environ)
        finally:
            if started:
                ask(b"quit\n")


def _write(
    out: Path, jobs: list[Job], overrides: Sequence[str], side_by_side: int | None, place: str
) -> dict[str, Any]:
    """One recipe's result over its seeds, written to `out/<recipe>.json`."""
    recipe, claim = jobs[0].recipe, _claim(jobs[0].recipe)
    summaries = [json.loads((job.folder / "summary.json").read_text(encoding="utf-8")) for job in jobs]
    values = [_measured(recipe, summary) for summary in summaries]
    also = {f"{name}, accuracy": [100 * summary["also"][name] for summary in summaries] for name in recipe.also}
    if claim.measure == "dice":
        others = {"IoU": "test_iou", "wrong pixels": "test_pixel_error"}
        also |= {name: [100 * summary[key] for summary in summaries] for name, key in others.items()}
    models = [load(job.folder, place) for job in jobs] if claim.views or claim.ensemble else []
    if claim.views:
        accuracies = [evaluate_model(model, views=True)["accuracy"] for model in models]
        also["with nine views"] = [_percent(recipe, accuracy) for accuracy in accuracies]
    if claim.ensemble:
        also[f"{len(models)} together"] = [_percent(recipe, evaluate_ensemble(models)["accuracy"])]
    asked = f" --side-by-side {side_by_side}" if side_by_side else ""
    asked += "".join(f" --set {each}" for each in overrides)
    result = {
        "recipe": recipe.name,
        "result": claim.result,
        "measure": claim.measure,
        **_spread(values),
        "values": {summary["seed"]: round(value, 4) for summary, value in zip(summaries, values)},
        "test_n": summaries[0]["test_n"],
        "also": {name: _spread(figures) for name, figures in also.items()},
        "parameters": summaries[0]["parameters"],
        "epochs": [summary["epochs"] for summary in summaries],
        "seconds": None if any(summary["resumed"] for summary in summaries) else round(_busy(summaries)),
        "machine": "; ".join(dict.fromkeys(summary["machine"] for summary in summaries)),
        "command": f"torchcaps reproduce {recipe.name} --seeds {len(jobs)}{asked}",
        "settings": _settings(recipe),
        "paper": claim.paper,
        "open": claim.open,
        "note": claim.note,
    }
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
    (out / f"{recipe.name}.json").write_text(text, encoding="utf-8")
    return result


def _claim(recipe: Recipe) -> ClaimSection:
    assert recipe.claim is not None  # `reproduce` has checked it
    return recipe.claim


def _measured(recipe: Recipe, summary: dict[str, Any]) -> float:
    """The recipe's measure, in percent."""
    return _percent(recipe, summary["test_dice" if _claim(recipe).measure == "dice" else "test_accuracy"])


def _percent(recipe: Recipe, right: float) -> float:
    return 100 * (1 - right if _claim(recipe).measure == "error" else right)


def _spread(values: list[float]) -> dict[str, Any]:
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"n": len(values), "mean": round(statistics.mean(values), 4), "std": None if std is None else round(std, 4)}


def _busy(summaries: list[dict[str, Any]]) -> float:
    """Seconds during which at least one of the runs ran."""
    spans = [(summary["started"], summary["finished"]) for summary in summaries]
    total, until = 0.0, -math.inf
    for start, end in sorted(
        (datetime.fromisoformat(a).timestamp(), datetime.fromisoformat(b).timestamp()) for a, b in spans
    ):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def write_page(out: Path) -> Path:
    """The page `out.md`; a new one has a place for the table."""
    page = out.with_name(f"{out.name}.md")
    if not page.is_file():
        page.write_text("# Results\n\n<!-- results -->\n<!-- end of results -->\n", encoding="utf-8")
    return page


def fill_results(page: Path, folder: Path) -> bool:
    """Put the results of a folder between the marks of a page: <!-- results --> or <!-- results of A,B,… -->.

    Returns:
        Whether the page has such marks.
    """
    paths = sorted(folder.glob("*.json"), key=lambda path: path.stem)  # a recipe before its variants
    files = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    found = {each["recipe"]: each for each in files if "recipe" in each and "measure" in each}

    def table(match: re.Match[str]) -> str:
        names = match[2].split(",") if match[2] else list(found)
        rows = [HEAD, ("---",) * len(HEAD), *(_row(found[name]) for name in names if name in found)]
        return match[1] + "".join(f"| {' | '.join(row)} |\n" for row in rows) + match[3]

    text, count = MARKS.subn(table, page.read_text(encoding="utf-8"))
    page.write_text(text, encoding="utf-8")
    return count > 0


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    also = "".join(f"; {name} {_figure(each)}" for name, each in result["also"].items())
    device = result["machine"].split(",")[0]
    shown = ["–" if value is None else f"{value:g}" for value in (result["paper"], result["open"])]
    words = result["result"] + (f" ({result['note']})" if result["note"] else "")
    seconds = "" if result["seconds"] is None else f", {result['seconds']} s"
    return (
        words,
        *shown,
        f"**{result['mean']:.2f}**{_figure(result, mean=False)}{also}",
        device + seconds,
        f"`{result['command']}`",
    )


def _figure(spread: dict[str, Any], mean: bool = True) -> str:
    std = f" ± {spread['std']:.2f}" if spread["std"] is not None else ""
    return (f"{spread['mean']:.2f}" if mean else "") + f"{std} (n = {spread['n']})"
