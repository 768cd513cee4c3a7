"""Everything that `torchcaps bench` measures, as a table and a CSV file."""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from torchcaps.bench import routing, step
from torchcaps.bench.timing import machine
from torchcaps.train.step import tuned

HEAD = (
    "machine",
    "what",
    "B",
    "I",
    "J",
    "r",
    "backend",
    "precision",
    "error",
    "forward_ms",
    "both_ms",
    "extra_mib",
    "gflops",
)


def run_bench(device: torch.device, *, scaling: bool, out: Path | None, console: Console) -> list[dict[str, str]]:
    """Routing by every backend, on the paper's workload and (if asked) along each axis; then the whole step."""
    cuda = device.type == "cuda"
    base = routing.Workload() if cuda else routing.Workload(B=32)
    axes = (routing.AXES if cuda else routing.SMALL_AXES) if scaling else {}
    backends = ["reference", "reference compiled", "chunked", "fused"] if cuda else ["reference", "chunked"]
    console.print(machine(device), highlight=False)
    table = Table("routing", "backend", "products", "error", "forward ms", "both ms", "extra MiB", "GFLOP/s", box=None)
    rows: list[dict[str, str]] = []
    for workload in routing.workloads(base, axes):
        chosen = backends if workload == base else [name for name in backends if name != "reference compiled"]
        for row in [*routing.measure(workload, chosen, device), *_with_tf32(workload, cuda, device)]:
            rows.append(_routing_row(row, device))
            last = rows[-1]
            name = f"B{workload.B} {workload.I}×{workload.K}→{workload.J}×{workload.D} r{workload.R}"
            table.add_row(
                name,
                *(
                    last[key]
                    for key in ("backend", "precision", "error", "forward_ms", "both_ms", "extra_mib", "gflops")
                ),
            )
    console.print(table)
    table = Table("whole network", "batch", "CapsNet ms", "floor ms", "ratio", box=None)
    for whole in step.measure(device, 128 if cuda else 32):
        table.add_row(
            whole.what, str(whole.batch), f"{whole.capsnet_ms:.3f}", f"{whole.floor_ms:.3f}", f"{whole.ratio:.3f}"
        )
        for name, value in (("CapsNet", whole.capsnet_ms), ("floor", whole.floor_ms)):
            rows.append(
                _blank(device) | {"what": whole.what, "B": str(whole.batch), "backend": name, "both_ms": f"{value:.4f}"}
            )
    console.print(table)
    if out is not None:
        with out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, HEAD)
            writer.writeheader()
            writer.writerows(rows)
        console.print(f"written to {out}", highlight=False)
    return rows


def _with_tf32(workload: routing.Workload, cuda: bool, device: torch.device) -> list[routing.Row]:
    """The fused path once more, with TF32 products, as training uses it."""
    if not cuda:
        return []
    with tuned(device, tensor_cores=True):
        return routing.measure(workload, ["fused"], device)


def _routing_row(row: routing.Row, device: torch.device) -> dict[str, str]:
    work = row.workload
    return _blank(device) | {
        "what": "routing",
        "B": str(work.B),
        "I": str(work.I),
        "J": str(work.J),
        "r": str(work.R),
        "backend": row.backend,
        "precision": row.precision,
        "error": f"{row.error:.1e}",
        "forward_ms": f"{row.forward_ms:.4f}",
        "both_ms": f"{row.both_ms:.4f}",
        "extra_mib": "" if row.extra_mib is None else f"{row.extra_mib:.1f}",
        "gflops": f"{work.operations / row.both_ms / 1e6:.0f}",
    }


def _blank(device: torch.device) -> dict[str, str]:
    return {**dict.fromkeys(HEAD, ""), "machine": machine(device)}
