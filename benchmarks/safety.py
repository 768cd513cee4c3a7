"""What safety costs in training throughput: looking at every loss, writing checkpoints, within one run and by turns.

    .venv/bin/python benchmarks/safety.py [--device cuda]

Prints a table and writes benchmarks/results/safety.csv (safety-cuda.csv). An epoch of the same few images is trained
with and without looking whether losses are numbers; a checkpoint of the same state is written several times, and its
seconds divided by those between two of them.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data import Dataset
from torchcaps.train import loop
from torchcaps.train.callbacks import Callback, pause
from torchcaps.train.checkpoint import State, save_checkpoint
from torchcaps.train.distributed import make_fabric
from torchcaps.train.environment import machine
from torchcaps.train.nonfinite import NonfiniteGuard
from torchcaps.train.recipe import Recipe, load_recipe
from torchcaps.train.setup import make_state
from torchcaps.train.state import seeded
from torchcaps.train.tasks.classification import Task

RESULTS = Path(__file__).parent / "results"


class Unlooked(NonfiniteGuard):
    """The loop without it: nothing is looked at, and optimisers are told nothing."""

    def __init__(self, device: torch.device, optimizers: object, step: int, skips: bool):
        super().__init__(device, [], step, skips)

    def look(self, loss: Tensor, again: bool = False) -> None: ...


@contextmanager
def looking(asked: bool) -> Iterator[None]:
    before, loop.NonfiniteGuard = loop.NonfiniteGuard, NonfiniteGuard if asked else Unlooked  # type: ignore[misc]
    try:
        yield
    finally:
        loop.NonfiniteGuard = before  # type: ignore[misc]


def made(device: torch.device, images: int) -> tuple[Recipe, Dataset, State, Task]:
    recipe = load_recipe("mnist-paper", ["train.epochs=1", "optim.schedule=constant"])
    pixels = torch.randint(0, 256, (images, 1, 28, 28), dtype=torch.uint8)
    data = Dataset(pixels, torch.arange(images) % 10, tuple("0123456789"))
    with seeded(0, device):
        state, task = make_state(recipe, data, device)
    return recipe, data, state, task


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=11)
    asked = parser.parse_args()
    fabric = make_fabric(asked.device, "auto")
    cuda = fabric.device.type == "cuda"
    recipe, data, state, task = made(fabric.device, 60_000 if cuda else 768)

    def epoch() -> float:
        """Seconds; on CUDA without the first steps, which are compiled."""
        state.epoch = state.step = state.batch = 0
        longer = recipe.model_copy(update={"train": recipe.train.model_copy(update={"epochs": 2 if cuda else 1})})
        loop.train(state, data, None, task, longer, fabric, Callback())
        return len(data) / state.history[-1]["images_per_second"]

    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(asked.rounds):
        for kind in times:
            with looking(kind):
                times[kind].append(epoch())
    steps = -(-len(data) // recipe.train.batch_size)
    with_it, without = (1e3 * statistics.median(times[kind]) / steps for kind in (True, False))
    ratios = sorted(100 * (a / b - 1) for a, b in zip(times[True], times[False]))  # of neighbours in time
    look, low, high = statistics.median(ratios), ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    saves = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(asked.rounds):
            began = time.perf_counter()
            save_checkpoint(state, Path(folder))
            saves.append(time.perf_counter() - began)
    took = statistics.median(saves)
    every = pause(recipe.train.save_every, took)
    save = 100 * took / (every + took)
    rows = [
        ("machine", machine(fabric.device)),
        ("a training step of mnist-paper, ms", f"{with_it:.3f}"),
        ("the same without looking at losses, ms", f"{without:.3f}"),
        ("looking, %: median of the rounds, and half of them lie between", f"{look:.2f}, {low:.2f} and {high:.2f}"),
        ("a checkpoint, seconds", f"{took:.3f}"),
        (f"one every {every:.0f} seconds, %", f"{save:.2f}"),
        ("both, %", f"{look + save:.2f}"),
    ]
    with (RESULTS / ("safety-cuda.csv" if cuda else "safety.csv")).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("what", "value"), *rows])
    for name, value in rows:
        print(f"{name:<66} {value}")


if __name__ == "__main__":
    main()
