"""Choose the learning rate of every network that the claims compare, on held-out training digits.

    python benchmarks/claims_rates.py

Each network is trained by the recipes of `torchcaps reproduce claims` with each rate, seeds that the comparison does
not use, and 5,000 training digits held out; no test digit is read. The accuracies go into
src/torchcaps/claims/rates.csv, from which `torchcaps reproduce claims` takes the best rate of each network: in the
affine study on held-out digits transformed by affNIST's ranges, with few images on held-out digits as they are.

Two rows were added from the runs of the comparison itself: the plain CNN's with 25 epochs, on the 5,000 digits held out
there, moved as in training. After 5 epochs its two larger rates were even; after 25 one of them had diverged.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections.abc import Mapping
from pathlib import Path

import torch
from rich.console import Console

from torchcaps.claims.measure import accuracy_percent
from torchcaps.claims.plan import NETWORKS, STUDIES, settings_of
from torchcaps.data import load_data
from torchcaps.data.datasets.affnist import transform
from torchcaps.models import load
from torchcaps.train.experiments.reproduce import Job, check_failed, run_jobs

RATES = (0.0005, 0.002, 0.008)
SEEDS = {"affine": (100,), "few-10": (100, 101)}
EPOCHS = {"affine": 5, "few-10": 10}  # of the recipes' 25 and 20
DIGITS = {"affine": "transformed", "few-10": "as they are"}
HELD_OUT = ("data.validation=5000", "train.read_test=no")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("src/torchcaps/claims/rates.csv"))
    parser.add_argument("--runs", type=Path, default=Path("runs/claims-rates"))
    parser.add_argument("--study", choices=SEEDS, action="append", help="by default all")
    parser.add_argument("--network", choices=NETWORKS, action="append", help="by default all of a study")
    parser.add_argument("--rate", type=float, action="append", help=f"by default {RATES}")
    parser.add_argument("--side-by-side", type=int)
    args = parser.parse_args()
    groups: dict[tuple[str, str, float], list[Job]] = {}
    for study in args.study or SEEDS:
        for network in STUDIES[study].networks:
            if args.network is None or network in args.network:
                for rate in args.rate or RATES:
                    settings = [*settings_of(study, network, rate), *HELD_OUT, f"train.epochs={EPOCHS[study]}"]
                    folder = args.runs / study / network / str(rate)
                    groups[study, network, rate] = [
                        Job.of(STUDIES[study].recipe, seed, settings, folder) for seed in SEEDS[study]
                    ]
    jobs = [job for group in groups.values() for job in group]

    def write_finished(_: Job | None = None) -> None:
        """Write a group's row as soon as all its runs are done: an interrupt loses nothing that was measured."""
        for key, group in groups.items():
            if key not in written and all(job.done for job in group):
                write_row(args.out, *key, [accuracy(job, key[0]) for job in group])
                written.add(key)

    written: set[tuple[str, str, float]] = set()
    write_finished()
    failed = run_jobs(jobs, "auto", args.side_by_side, Console(), write_finished, lambda job: str(job.folder))
    check_failed(failed, jobs)


def write_row(path: Path, study: str, network: str, rate: float, found: list[float]) -> None:
    """Put the accuracies of one network with one rate into the table, in place of what it had for them."""
    rows: list[Mapping[str, object]] = []
    if path.is_file():
        with path.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    row = {
        "study": study,
        "network": network,
        "epochs": EPOCHS[study],
        "digits": DIGITS[study],
        "rate": rate,
        "n": len(found),
        "held-out accuracy": round(statistics.mean(found), 3),
        "values": " ".join(f"{each:.2f}" for each in found),
    }
    print(row, flush=True)

    def key(each: Mapping[str, object]) -> tuple[str, str, int, float]:
        return str(each["study"]), str(each["network"]), int(str(each["epochs"])), float(str(each["rate"]))

    rows = sorted([*(each for each in rows if key(each) != key(row)), row], key=key)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def accuracy(job: Job, study: str) -> float:
    """Percent of the held-out digits that a finished run finds."""
    summary = json.loads((job.folder / "summary.json").read_text(encoding="utf-8"))
    if study != "affine":
        return 100 * summary["val_accuracy"]
    held = load_data(source="mnist", validation=5000, split_seed=job.recipe.data.split_seed).validation
    assert held is not None
    changed = transform(held, seed=7, copies=1)
    model = load(job.folder, "cuda" if torch.cuda.is_available() else "cpu")
    return accuracy_percent(model, changed.images.float() / 255, changed.targets)


if __name__ == "__main__":
    main()
