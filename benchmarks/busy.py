"""Training beside busy processes: images a second, idle and busy, with threads that sleep or spin while they wait.

    .venv/bin/python benchmarks/busy.py [--busy 2] [--rounds 3]

`torchcaps train` lets OpenMP's threads sleep (OMP_WAIT_POLICY=PASSIVE). "spinning" are the same runs with
GOMP_SPINCOUNT=300000, the default of GNU OpenMP. All four kinds of run are taken by turns, in processes of their own.
Prints a table and writes benchmarks/results/busy.csv. The losses of all runs must be identical. The exit code is 1 if
they are not, or if sleeping threads keep less than --bound of their idle speed beside busy processes.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from torchcaps.cli import OPENMP_SETTINGS
from torchcaps.train.environment import machine

RESULTS = Path(__file__).parent / "results" / "busy.csv"
COLUMNS = ["waiting", "busy", "images_per_second", "std", "n", "share_of_idle", "loss", "load", "seed", "machine"]
WAITING: dict[str, dict[str, str]] = {"sleeping": {}, "spinning": {"GOMP_SPINCOUNT": "300000"}}


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep this many processes busy inside the block."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def train(settings: dict[str, str], images: int, seed: int) -> tuple[float, str]:
    """Images a second of one epoch of the embedded digits on all cores, and its loss."""
    unset = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", *OPENMP_SETTINGS)
    environment = {name: value for name, value in os.environ.items() if name not in unset} | settings
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        given = [f"data.limit={images}", "data.validation=0", "train.read_test=no", "train.epochs=1"]
        words = [f"--set={each}" for each in (*given, f"train.seed={seed}")]
        command = [sys.executable, "-m", "torchcaps", "train", "digits", *words, "--device", "cpu", "--out", str(run)]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        return line["images_per_second"], repr(line["train_loss"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=2, help="number of busy processes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=1200, help="training images of a run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bound", type=float, default=1 / 3, help="least share of the idle speed, sleeping")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    kinds = [(waiting, count) for waiting in WAITING for count in (0, args.busy)]
    rates: dict[tuple[str, int], list[float]] = {kind: [] for kind in kinds}
    losses, loads = set(), []
    for _ in range(args.rounds):
        for waiting, count in kinds:
            with busy_processes(count):
                rate, loss = train(WAITING[waiting], args.images, args.seed)
            rates[waiting, count].append(rate)
            losses.add(loss)
            loads.append(os.getloadavg()[0])
            print(f"{waiting} beside {count} busy processes: {rate:.0f} images/s, loss {loss}", flush=True)
    rows = []
    for (waiting, count), found in rates.items():
        mean, idle = statistics.mean(found), statistics.mean(rates[waiting, 0])
        row = {"waiting": waiting, "busy": count, "images_per_second": f"{mean:.0f}", "n": len(found)}
        row |= {
            "std": f"{statistics.stdev(found):.0f}" if len(found) > 1 else "",
            "share_of_idle": f"{mean / idle:.2f}",
        }
        row |= {"loss": " ".join(sorted(losses)), "load": f"{statistics.mean(loads):.1f}", "seed": args.seed}
        rows.append({**row, "machine": machine(torch.device("cpu"))})
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(args.out.read_text())
    share = statistics.mean(rates["sleeping", args.busy]) / statistics.mean(rates["sleeping", 0])
    sys.exit(len(losses) > 1 or share < args.bound)


if __name__ == "__main__":
    main()
