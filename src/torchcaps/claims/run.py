"""Train and measure the networks for the table of claims. Finished runs and measurements are reused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from torchcaps.claims.measure import Digits, measure, read_digits
from torchcaps.claims.page import write_page
from torchcaps.claims.plan import COLUMNS, NETWORKS, STUDIES, jobs, settings_of
from torchcaps.io.atomic import write_text
from torchcaps.io.folders import make_folder
from torchcaps.models import ImageModel, load
from torchcaps.robustness.suites import SUITES
from torchcaps.train.experiments.reproduce import Job, check_failed, run_jobs
from torchcaps.train.recipe import load_recipe

CURVES_STUDY = "affine"  # the study whose networks are plotted as curves
CURVE_IMAGES = 1000


def reproduce_claims(
    *,
    out: Path,
    runs: Path,
    studies: Sequence[str] = (),
    networks: Sequence[str] = (),
    device: str = "auto",
    side_by_side: int | None = None,
    console: Console | None = None,
) -> Path:
    """Train and measure the networks of the claims.

    Results are written to `out/<study>.json`. Networks that are not selected keep their stored results.

    Args:
        out: Folder of the results.
        runs: Folder of the runs; finished ones are not trained again.
        studies: Names in STUDIES; empty for all.
        networks: Names in NETWORKS; empty for all.
        device: auto, cpu, cuda or mps.
        side_by_side: Number of concurrent runs; by default 5 on CUDA, otherwise 1.
        console: Where to print progress; by default nowhere.

    Returns:
        The page with the tables, `out.md`.
    """
    console = console or Console(quiet=True)
    groups = jobs(studies, networks, runs)
    every = list({job.folder: job for group in groups.values() for job in group}.values())
    for job in every:
        job.check()
    measured_on = "cuda" if torch.cuda.is_available() and device in ("auto", "cuda") else "cpu"
    digits = cache(read_digits)
    waiting: list[Future[None]] = []

    def after(done: Job) -> None:
        """Measure a finished run in the background, while the next one trains."""
        waiting.append(worker.submit(measure_and_write, done))

    def measure_and_write(done: Job) -> None:
        for (study, network), group in groups.items():
            if done.folder in [job.folder for job in group]:
                _measure(done, study, network, digits, measured_on)
                if all(_measured(job, network).is_file() for job in group):
                    _write(out, study, network, group)

    make_folder(out)
    with ThreadPoolExecutor(1) as worker:
        for job in every:
            if job.done:
                after(job)
        failed = run_jobs(every, device, side_by_side, console, after, _accuracy)
        for each in waiting:
            each.result()
    check_failed(failed, every)
    columns = [groups.get((CURVES_STUDY, name)) for name in COLUMNS]
    if all(columns):
        first = {NETWORKS[name].title: load(groups[CURVES_STUDY, name][0].folder, measured_on) for name in COLUMNS}
        _write_curves(out / "curves", first, digits())
    return write_page(out)


def _accuracy(job: Job) -> str:
    summary = json.loads((job.folder / "summary.json").read_text(encoding="utf-8"))
    return f"{100 * summary['test_accuracy']:.2f} % of {summary['test_n']:,} test images correct"


def _measured(job: Job, network: str) -> Path:
    """The file with a run's results; another network that uses its weights has a file beside it."""
    return job.folder / (f"claims-{network}.json" if NETWORKS[network].weights_of else "claims.json")


def _load(job: Job, study: str, network: str, device: str) -> ImageModel:
    """Load the trained network, or another network with its weights."""
    trained = load(job.folder, device)
    if NETWORKS[network].weights_of is None:
        return trained
    options = load_recipe(STUDIES[study].recipe, tuple(settings_of(study, network))).model.options
    options.pop("parameters", None)  # the weights determine the size
    model = type(trained)(**{**trained.arguments, **options})
    model.load_state_dict(trained.state_dict())
    return model.to(device).eval()


def _measure(job: Job, study: str, network: str, digits: Any, device: str) -> None:
    """Measure a finished run, unless that was done before. Studies with few images need only its test accuracy."""
    path = _measured(job, network)
    if path.is_file():
        return
    summary = json.loads((job.folder / "summary.json").read_text(encoding="utf-8"))
    found = {} if NETWORKS[network].weights_of else {"error": 100 * (1 - summary["test_accuracy"])}
    if study == "affine":
        found |= measure(_load(job, study, network, device), digits())
    write_text(path, json.dumps(found, indent=1) + "\n")


def _write(out: Path, study: str, network: str, group: Sequence[Job]) -> None:
    """Write the results of all runs of one network into the file of the study."""
    path = out / f"{study}.json"
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    measured = [json.loads(_measured(job, network).read_text(encoding="utf-8")) for job in group]
    summaries = [json.loads((job.folder / "summary.json").read_text(encoding="utf-8")) for job in group]
    model = load(group[0].folder)
    decoder = getattr(model, "decoder", None)
    decoder_size = 0 if decoder is None else sum(part.numel() for part in decoder.parameters())
    row = {
        "title": NETWORKS[network].title,
        "parameters": model.parameter_count() - decoder_size,
        "settings": settings_of(study, network),
        "epochs": summaries[0]["epochs"],
        "steps": summaries[0]["steps"],
        "machine": "; ".join(dict.fromkeys(each["machine"] for each in summaries)),
        "values": {name: [each.get(name) for each in measured] for name in measured[0]},
    }
    table |= {"study": study, "recipe": STUDIES[study].recipe, "command": f"torchcaps reproduce claims {study}"}
    table.setdefault("networks", {})[network] = row
    write_text(path, json.dumps(table, indent=1, ensure_ascii=False) + "\n")


def _write_curves(folder: Path, models: Mapping[str, ImageModel], digits: Digits) -> None:
    """Run every suite on the first run of each network in the table, on the same test digits."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = torch.randperm(len(digits.targets), generator=torch.Generator().manual_seed(0))[:CURVE_IMAGES]
    for name, suite in SUITES.items():
        path = folder / f"{name}.json"
        if not path.is_file():
            result = suite(models, digits.centred[chosen], digits.targets[chosen], seed=0)
            write_text(path, json.dumps({**result, "data": "MNIST in 40×40"}, indent=1) + "\n")
