"""What the README claims of the default on a CPU: accuracy of the default recipe, cost of routing, cost of importing.

    .venv/bin/python benchmarks/cpu_default.py [--seeds 3]

Prints a table and writes benchmarks/results/cpu_default.csv. Ratios are taken within one run, by turns.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from torchcaps.bench import step
from torchcaps.bench.timing import median_seconds
from torchcaps.train.environment import machine
from torchcaps.train.recipe import load_recipe
from torchcaps.train.run import start_run

RESULTS = Path(__file__).parent / "results" / "cpu_default.csv"
CPU = torch.device("cpu")


def importing(modules: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-c", f"import {modules}"], check=True)


def train_digits(seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        run = start_run(load_recipe("digits", [f"train.seed={seed}"]), out=Path(folder) / "run", device="cpu")
        return json.loads((run / "summary.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    rows: list[tuple[str, str]] = [("machine", machine(CPU))]
    for row in step.measure(CPU, 32, rounds=21):
        name = f"CapsNet, {row.what}, batch {row.batch}"
        rows.append((f"{name}: ms, and ms with one Linear for routing", f"{row.capsnet_ms:.1f}, {row.floor_ms:.1f}"))
        rows.append((f"{name}: ratio", f"{row.ratio:.3f}"))
    imports = median_seconds({"torch": importing("torch"), "both": importing("torch, torchcaps")}, CPU, rounds=7)
    rows.append(("import torch, torchcaps: times import torch", f"{imports['both'] / imports['torch']:.3f}"))
    runs = [train_digits(seed) for seed in range(arguments.seeds)]
    for seed, summary in enumerate(runs):
        rows.append((f"digits recipe, seed {seed}: test accuracy", f"{summary['test_accuracy']:.4f}"))
    if len(runs) > 1:
        accuracies = [summary["test_accuracy"] for summary in runs]
        mean, std = statistics.mean(accuracies), statistics.stdev(accuracies)
        rows.append((f"digits recipe, n={len(runs)}: test accuracy, mean ± std", f"{mean:.4f} ± {std:.4f}"))
        seconds = statistics.mean(summary["train_seconds"] for summary in runs)
        rows.append((f"digits recipe, n={len(runs)}: training seconds, mean", f"{seconds:.1f}"))
    for name, value in rows:
        print(f"{name:<75} {value}")
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("measure", "value"), *rows])


if __name__ == "__main__":
    main()
