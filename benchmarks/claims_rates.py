"""Choose the learning rate of every network that the claims compare, on held-out training digits.

    python benchmarks/claims_rates.py

Each network is trained by the recipes of `torchcaps reproduce claims` with each rate, seeds that the comparison does
not use, and 5,000 training digits held out; no test digit is read. The accuracies go into
src/torchcaps/claims/rates.csv, from which `torchcaps reproduce claims` takes the best rate of each network: in the
affine study on held-out digits transformed by affNIST's ranges, with few images on held-out digits as they are.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from pathlib import Path

import torch
from rich.console import Console

from torchcaps.claims.measure import right
from torchcaps.claims.plan import NETWORKS, STUDIES, settings_of
from torchcaps.data import load_data
from torchcaps.data.affnist import transform
from torchcaps.models import load
from torchcaps.train.reproduce import Job, check_failed, run_jobs

RATES = (0.0005, 0.002, 0.008)
SEEDS = {"affine": (100,), "few-10": (100, 101)}
EPOCHS = {"affine": 5, "few-10": 10}  # of the recipes' 25 and 20
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
    failed = run_jobs(jobs, "auto", args.side_by_side, Console(), lambda _: None, lambda job: str(job.folder))
    check_failed(failed, jobs)
    rows = []
    for (study, network, rate), group in groups.items():
        found = [accuracy(job, study) for job in group]
        rows.append({
            "study": study, "network": network, "rate": rate, "n": len(found),
            "held-out accuracy": round(statistics.mean(found), 3), "values": " ".join(f"{each:.2f}" for each in found),
        })  # fmt: skip
        print(rows[-1], flush=True)
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
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
    return right(model, changed.images.float() / 255, changed.targets)


if __name__ == "__main__":
    main()
