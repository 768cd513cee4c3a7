"""What the README claims of the default on a CPU: accuracy of the default recipe, cost of routing, cost of importing.

    .venv/bin/python benchmarks/house.py [--seeds 3]

Prints a table and writes benchmarks/results/house.csv. Ratios are taken within one run, by turns.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import torchcaps
from torchcaps.losses import margin_loss, reconstruction_loss
from torchcaps.train.recipe import load_recipe
from torchcaps.train.run import start_run

RESULTS = Path(__file__).parent / "results" / "house.csv"


class Floor(nn.Module):
    """The CapsNet's convolutions and decoder, with one Linear layer where routing was."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        children = model.classes.in_capsules * model.classes.in_dim
        self.linear = nn.Linear(children, model.classes.out_capsules * model.classes.out_dim)
        model.classes = nn.Identity()

    def forward(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        features = self.model.primary.conv(torch.relu(self.model.conv(images)))
        poses = self.linear(features.flatten(1)).view(len(images), -1, 16)
        return poses.norm(dim=-1), self.model.reconstruct(poses, targets)


def by_turns(candidates: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median seconds of each candidate, measured in alternation so that a slow moment hits all of them."""
    for run in candidates.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def training_step(model: nn.Module, batch: int) -> Callable[[], None]:
    images, targets = torch.rand(batch, 1, 28, 28), torch.arange(batch) % 10
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def step() -> None:
        lengths, *_, drawn = [part for part in model(images, targets) if part is not None]
        loss = (margin_loss(lengths, targets) + 0.0005 * reconstruction_loss(drawn, images)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def import_seconds(module: str) -> Callable[[], None]:
    def run() -> None:
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)

    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    rows: list[tuple[str, str]] = [
        ("machine", f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"),
    ]
    torch.manual_seed(0)
    model, floor = torchcaps.create_model("capsnet"), Floor(torchcaps.create_model("capsnet"))
    steps = by_turns({"capsnet": training_step(model, 32), "floor": training_step(floor, 32)}, rounds=11)
    rows.append(("training step, batch 32, CapsNet (ms)", f"{steps['capsnet'] * 1e3:.0f}"))
    rows.append(("training step, batch 32, one Linear instead of routing (ms)", f"{steps['floor'] * 1e3:.0f}"))
    rows.append(("ratio", f"{steps['capsnet'] / steps['floor']:.3f}"))
    imports = by_turns({"torch": import_seconds("torch"), "torchcaps": import_seconds("torch, torchcaps")}, rounds=7)
    rows.append(("import torch and torchcaps ÷ import torch", f"{imports['torchcaps'] / imports['torch']:.3f}"))

    accuracies, seconds = [], []
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory() as folder:
            run = start_run(load_recipe("digits", [f"train.seed={seed}"]), out=Path(folder) / "run", device="cpu")
            summary = json.loads((run / "summary.json").read_text())
        accuracies.append(summary["test_accuracy"])
        seconds.append(summary["train_seconds"])
        rows.append((f"digits, seed {seed}, test accuracy", f"{summary['test_accuracy']:.4f}"))
    if accuracies:
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        rows.append((f"digits, mean ± std of n={len(accuracies)}", f"{statistics.mean(accuracies):.4f} ± {spread:.4f}"))
        rows.append(("digits, training seconds, mean", f"{statistics.mean(seconds):.1f}"))
    for name, value in rows:
        print(f"{name:<62} {value}")
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("measure", "value"), *rows])


if __name__ == "__main__":
    main()
