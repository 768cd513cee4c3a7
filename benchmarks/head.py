"""Time a training step of a backbone with a capsule head against the same backbone with a linear head.

    python benchmarks/head.py [--device cpu --side 224 --classes 10 --batch 16 --backbone resnet resnet18]

Each row is one backbone: the parameters of both heads, the milliseconds of a training step (forward pass, loss,
backward pass, Adam) with either, and their ratio with its standard deviation over the rounds. Times are taken by turns
in one run; each is the median. On a CPU one thread is used, and the time is what the process itself takes, without the
moments in which a busy machine runs others. The exit code is 1 if a ratio exceeds --bound, or a capsule head has more
than --parameters parameters.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from torchcaps.losses import cross_entropy, margin_loss
from torchcaps.models import ImageModel, create_model
from torchcaps.train.environment import machine

RESULTS = Path(__file__).parent / "results" / "head.csv"
COLUMNS = [
    *("backbone", "side", "classes", "batch", "routing", "capsule_head_parameters", "linear_head_parameters"),
    *("capsule_ms", "linear_ms", "ratio", "ratio_std", "rounds", "machine"),
]


def make_step(model: ImageModel, images: torch.Tensor, targets: torch.Tensor) -> Callable[[], None]:
    """One training step of a model."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            output = model(images, targets)
        logits = output.logits
        loss = margin_loss(output.lengths, targets) if logits is None else cross_entropy(logits, targets)
        loss.mean().backward()
        optimizer.step()

    return step


def take_times(steps: dict[str, Callable[[], None]], device: torch.device, rounds: int) -> dict[str, list[float]]:
    """Seconds of each step, by turns, after two steps that are not counted."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 2):
        for name, step in steps.items():
            start = clock()
            step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 2:
                times[name].append(clock() - start)
    return times


def measure(backbone: str, args: argparse.Namespace) -> dict[str, object]:
    """One row of the table."""
    torch.manual_seed(0)
    device = torch.device(args.device)
    images = torch.rand(args.batch, 3, args.side, args.side, device=device).contiguous(
        memory_format=torch.channels_last if device.type == "cuda" else torch.contiguous_format
    )
    targets = torch.arange(args.batch, device=device) % args.classes
    steps, heads = {}, {}
    for name, options in (("capsule", {"routing": args.routing}), ("linear", {})):
        kind = {"capsule": "backbone_caps", "linear": "backbone_linear"}[name]
        shape = (3, args.side, args.side)
        model = create_model(kind, image_shape=shape, num_classes=args.classes, backbone=backbone, **options).to(device)
        if device.type == "cuda":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        heads[name] = sum(parameter.numel() for parameter in model.head.parameters())  # type: ignore[union-attr]
        steps[name] = make_step(model, images, targets)
    times = take_times(steps, device, args.rounds)
    seconds = {name: statistics.median(values) for name, values in times.items()}
    return {
        "backbone": backbone,
        "side": args.side,
        "classes": args.classes,
        "batch": args.batch,
        "routing": args.routing,
        **{f"{name}_head_parameters": count for name, count in heads.items()},
        **{f"{name}_ms": f"{1000 * each:.4g}" for name, each in seconds.items()},
        "ratio": f"{seconds['capsule'] / seconds['linear']:.3f}",
        "ratio_std": f"{statistics.stdev(a / b for a, b in zip(times['capsule'], times['linear'])):.3f}",
        "rounds": args.rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backbone", nargs="*", default=["resnet", "resnet18"])
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--routing", default="dynamic")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--bound", type=float, default=1.10, help="largest ratio of the two steps")
    parser.add_argument("--parameters", type=int, default=2_000_000, help="most parameters of a capsule head")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    for backbone in args.backbone:
        rows.append(row := measure(backbone, args))
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "machine": machine(torch.device(args.device))} for row in rows)
    large = any(int(str(row["capsule_head_parameters"])) > args.parameters for row in rows)
    sys.exit(large or any(float(str(row["ratio"])) > args.bound for row in rows))


if __name__ == "__main__":
    main()
