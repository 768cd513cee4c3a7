"""Pose capsules timed beside the CNNs that they are compared with, by turns in one run.

    python benchmarks/posecaps_speed.py --out benchmarks/results/posecaps-speed.csv     on CUDA, else on the CPU

On CUDA: a training step with a batch of 256 images of 40×40 and inference with 128, in bf16, recorded as CUDA graphs,
as they are, with their convolutions alone compiled, and compiled as a whole. On the CPU: inference of one image of
28×28. Each row has milliseconds, and how many times that of `strong_cnn` it is. A width that is no multiple of 8 slows
a CNN down, so there is one with a width of 32, too.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchcaps.bench.timing import Call, cuda_graph, median_seconds
from torchcaps.data import Dataset
from torchcaps.losses import combine
from torchcaps.models import ImageModel, create_model
from torchcaps.train.cudagraph import tuned
from torchcaps.train.environment import machine
from torchcaps.train.recipe import LossSection
from torchcaps.train.tasks.classification import ClassificationTask

PARAMETERS = 321_830  # of posecaps without its decoder, for MNIST
AGAINST = "strong_cnn"
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "posecaps": ("posecaps", {}),
    "posecaps, whole lattice": ("posecaps", {"search": "plane"}),
    "strong_cnn": ("strong_cnn", {"parameters": PARAMETERS}),
    "strong_cnn, width 32": ("strong_cnn", {"width": 32}),
    "small_resnet": ("small_resnet", {"parameters": PARAMETERS}),
    "pooled_cnn": ("pooled_cnn", {"parameters": PARAMETERS}),
    "matched_cnn": ("matched_cnn", {"parameters": PARAMETERS}),
    "capsnet": ("capsnet", {}),
}
COMPILED = ("posecaps", "strong_cnn", "strong_cnn, width 32", "capsnet")
STEMS = ("posecaps", "strong_cnn", "strong_cnn, width 32")  # whose convolutions can be compiled alone
ON_CPU = {**NETWORKS, "posecaps_small": ("posecaps_small", {})}


def training_step(model: ImageModel, batch: int, compiled: str) -> Call:
    """Forward, losses, backward and AdamW, over and over on the same images."""
    device = model.device
    images = torch.rand(batch, *model.image_shape, device=device)
    targets = torch.arange(batch, device=device) % model.num_classes
    task = ClassificationTask.make(model, Dataset(images, targets, model.class_names), LossSection())
    model.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    rate = torch.tensor(1e-3, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True, capturable=True)

    def loss_of(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            output = model(images, targets)
        return combine(task.terms(output, images, targets), task.weights)

    if compiled == "stem":
        model.get_submodule("stem").compile(dynamic=False)
    chosen: Callable[..., torch.Tensor] = torch.compile(loss_of, dynamic=False) if compiled == "whole" else loss_of

    def step() -> None:
        optimizer.zero_grad()
        chosen(images, targets).backward()
        optimizer.step()

    return step


def inference(model: ImageModel, batch: int, compiled: str) -> Call:
    device = model.device
    images = torch.rand(batch, *model.image_shape, device=device)
    model.eval()

    def infer(images: torch.Tensor) -> object:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return model(images)

    chosen = torch.compile(infer, dynamic=False) if compiled == "whole" else infer

    def call() -> None:
        with torch.no_grad():
            chosen(images)

    return call


def measure(
    what: str, make: Callable[..., Call], networks: dict[str, tuple[str, dict[str, Any]]], side: int, batch: int,
    compiled: str, device: torch.device, rounds: int,
) -> list[dict[str, Any]]:  # fmt: skip
    calls, seconds_first = {}, {}
    for name, (model, options) in networks.items():
        torch.manual_seed(0)
        torch._dynamo.reset()
        call = make(create_model(model, image_shape=(1, side, side), **options).to(device), batch, compiled)
        start = time.perf_counter()
        call()
        seconds_first[name] = round(time.perf_counter() - start, 1)
        calls[name] = cuda_graph(call) if device.type == "cuda" else call
    ms = {name: 1e3 * seconds for name, seconds in median_seconds(calls, device, rounds).items()}
    about = {"what": what, "batch": batch, "side": side, "compiled": compiled}
    return [
        {**about, "network": name, "ms": round(ms[name], 4), "ratio": round(ms[name] / ms[AGAINST], 2),
         "first call s": seconds_first[name], "machine": machine(device)}
        for name in networks
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("posecaps-speed.csv"))
    parser.add_argument("--rounds", type=int, default=21)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows: list[dict[str, Any]] = []
    with tuned(device, tensor_cores=True):
        if device.type == "cpu":
            rows += measure("one image", inference, ON_CPU, 28, 1, "no", device, args.rounds)
        else:
            trained = {name: each for name, each in NETWORKS.items() if "lattice" not in name}
            rows += measure("training step", training_step, trained, 40, 256, "no", device, args.rounds)
            rows += measure("inference", inference, NETWORKS, 40, 128, "no", device, args.rounds)
            stems = {name: NETWORKS[name] for name in STEMS}
            rows += measure("training step", training_step, stems, 40, 256, "stem", device, args.rounds)
            some = {name: NETWORKS[name] for name in COMPILED}
            rows += measure("training step", training_step, some, 40, 256, "whole", device, args.rounds)
            rows += measure("inference", inference, some, 40, 128, "whole", device, args.rounds)
    for row in rows:
        print({name: value for name, value in row.items() if name != "machine"}, flush=True)
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
