"""Where a training step's time goes on a GPU: every kernel of the CapsNet's step and of its floor's, from one replay.

python benchmarks/kernels.py --out benchmarks/results/h200-kernels.csv
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from torchcaps.bench.step import Floor, training_step
from torchcaps.bench.timing import cuda_graph
from torchcaps.models import CapsNet
from torchcaps.train.cudagraph import tuned

STEPS = 5
ROUTING = {
    *("sum_couplings", "sum_couplings_backward", "gather", "gradient_of_w"),
    *("finish_forward", "finish_backward", "finish_u"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda")
    torch.manual_seed(0)
    images = torch.rand(arguments.batch, 1, 28, 28, device=device)
    targets = torch.arange(arguments.batch, device=device) % 10
    rows: list[tuple[str, str, str, str, str]] = []
    with tuned(device, tensor_cores=True):
        for name, model in (("CapsNet", CapsNet()), ("floor", Floor())):
            rows += table(name, time_kernels(model.to(device), images, targets))
    head = ("network", "kind", "kernel", "calls a step", "microseconds a step")
    for row in (head, *rows):
        print("{:8} {:14} {:80} {:>12} {:>20}".format(*row))
    if arguments.out:
        with arguments.out.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, *rows])


def table(network: str, kernels: dict[str, tuple[float, float]]) -> list[tuple[str, str, str, str, str]]:
    """Rows of the kinds, then of every kernel, those that take longest first."""
    kinds: dict[str, float] = defaultdict(float)
    for kernel, (us, _) in kernels.items():
        kinds[kind_of(kernel)] += us
    sums = {"all": sum(kinds.values()), **dict(sorted(kinds.items(), key=lambda item: -item[1]))}
    rows = [(network, kind, "all", "", f"{us:.1f}") for kind, us in sums.items()]
    for kernel, (us, calls) in sorted(kernels.items(), key=lambda item: -item[1][0]):
        rows.append((network, kind_of(kernel), kernel[:80], f"{calls:g}", f"{us:.1f}"))
    return rows


def kind_of(kernel: str) -> str:
    """What a kernel is for, by its name."""
    if kernel in ROUTING:
        return "routing"
    if kernel in ("_forward", "_backward"):
        return "squash"
    if kernel.startswith("triton_"):
        return "element-wise"
    if any(word in kernel for word in ("cudnn", "cutlass", "convolve", "xmma")):
        return "convolutions"
    if "multi_tensor" in kernel:
        return "Adam"
    return "dense layers" if "nvjet" in kernel or "gemm" in kernel else "element-wise"


def time_kernels(model: torch.nn.Module, images: torch.Tensor, targets: torch.Tensor) -> dict[str, tuple[float, float]]:
    """Microseconds and calls of each kernel in a recorded step."""
    step = cuda_graph(training_step(model, images, targets))
    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    kernels: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for event in profiler.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            us, calls = kernels[event.name]
            kernels[event.name] = (us + event.device_time_total / STEPS, calls + 1 / STEPS)
    return kernels


if __name__ == "__main__":
    main()
