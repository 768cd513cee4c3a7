"""The default benchmark of `torchcaps bench`: dynamic routing and the whole CapsNet, as a table and a CSV file."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from torchcaps.bench import routing, step
from torchcaps.bench.plot import figure_scaling
from torchcaps.bench.rows import blank_row, rounded, write_rows
from torchcaps.explain.style import png_bytes
from torchcaps.train.environment import machine

COLUMNS = {  # of a routing row, name in the CSV file: title in the table
    "backend": "backend",
    "precision": "precision",
    "error": "error",
    "forward_ms": "forward ms",
    "both_ms": "both ms",
    "extra_mib": "extra MiB",
    "gb_per_s": "GB/s",
    "gflops": "GFLOP/s",
}
HEAD = ("machine", "what", "B", "I", "J", "r", *COLUMNS, "images_per_s", "peak_mib")


def run_bench(device: torch.device, *, scaling: bool, out: Path | None, console: Console) -> list[dict[str, str]]:
    """Measure routing with every backend on the paper's workload, and whole networks.

    Args:
        device: Where to run.
        scaling: Also measure routing along each axis.
        out: CSV file to write; with scaling the figure is written beside it.
        console: Where to print the tables.
    """
    cuda = device.type == "cuda"
    base = routing.Workload() if cuda else routing.Workload(B=32)
    console.print(machine(device), highlight=False)
    rows: list[dict[str, str]] = []

    def measure_routing(workload: routing.Workload, table: Table) -> None:
        for row in _routing_rows(workload, workload == base, device):
            rows.append(_routing_row(row, device))
            name = f"B{workload.B} {workload.I}×{workload.K}→{workload.J}×{workload.D} r{workload.R}"
            table.add_row(name, *(rows[-1][key] for key in COLUMNS))
        write_rows(out, HEAD, rows)

    table = Table("routing", *COLUMNS.values(), box=None)
    measure_routing(base, table)
    console.print(table)
    table = Table("whole network", "batch", "CapsNet ms", "floor ms", "ratio", "images/s", "peak MiB", box=None)
    for whole in step.measure(device, 128 if cuda else 32):
        rows += _step_rows(whole, device)
        numbers = (f"{whole.capsnet_ms:.3f}", f"{whole.floor_ms:.3f}", f"{whole.ratio:.3f}")
        table.add_row(whole.what, str(whole.batch), *numbers, rows[-2]["images_per_s"], rows[-2]["peak_mib"])
    console.print(table)
    if scaling:
        table = Table("routing, one axis varied", *COLUMNS.values(), box=None)
        for workload in routing.workloads(base, routing.AXES if cuda else routing.SMALL_AXES):
            measure_routing(workload, table)
        console.print(table)
    write_rows(out, HEAD, rows)
    if out is not None:
        console.print(f"written to {out}", highlight=False)
    if scaling and out is not None:
        picture = out.with_suffix(".png")
        picture.write_bytes(png_bytes(figure_scaling(rows)))
        console.print(f"figure written to {picture}", highlight=False)
    return rows


def _routing_rows(workload: routing.Workload, base: bool, device: torch.device) -> list[routing.Row]:
    """Measure all backends in float32, on CUDA also with TF32 and bf16 products; along an axis only the usual ones."""
    rounds = 11 if base else 5
    if device.type != "cuda":
        return routing.measure(workload, ["reference", "chunked"], device, rounds=rounds)
    if not base:
        rows = routing.measure(workload, ["reference", "chunked", "fused"], device, "tf32", rounds)
        return rows + routing.measure(workload, ["fused"], device, "bf16", rounds)
    backends = ["reference", "reference compiled", "chunked", "fused"]
    return [row for precision in routing.PRECISIONS for row in routing.measure(workload, backends, device, precision)]


def _routing_row(row: routing.Row, device: torch.device) -> dict[str, str]:
    work, dtype = row.workload, routing.PRECISIONS[row.precision][0]
    return blank_row(HEAD, device) | {
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
        "extra_mib": rounded(row.extra_mib, 1),
        "gb_per_s": f"{work.numbers * dtype.itemsize / row.both_ms / 1e6:.0f}",
        "gflops": f"{work.operations / row.both_ms / 1e6:.0f}",
    }


def _step_rows(row: step.StepRow, device: torch.device) -> list[dict[str, str]]:
    """The row of the CapsNet and that of its floor."""
    both = {"CapsNet": (row.capsnet_ms, row.capsnet_mib), "floor": (row.floor_ms, row.floor_mib)}
    return [
        blank_row(HEAD, device)
        | {
            "what": row.what,
            "B": str(row.batch),
            "backend": name,
            "both_ms": f"{ms:.4f}",
            "images_per_s": f"{row.batch / ms * 1e3:.0f}",
            "peak_mib": rounded(mib, 0),
        }
        for name, (ms, mib) in both.items()
    ]
