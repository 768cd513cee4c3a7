"""The family of routings on one workload: what a layer of each takes, and what a network that has it gets wrong."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from torchcaps.bench import step
from torchcaps.bench.plot import figure_family
from torchcaps.bench.routing import Workload, products, relative_error
from torchcaps.bench.rows import blank_row, write_rows
from torchcaps.bench.timing import Call, device_seconds, extra_memory
from torchcaps.data import load_data
from torchcaps.errors import UserError, did_you_mean
from torchcaps.explain.style import png_bytes
from torchcaps.layers import DenseCaps
from torchcaps.layers.routings import ROUTINGS
from torchcaps.train.environment import machine
from torchcaps.train.recipe import Recipe, load_recipe
from torchcaps.train.run import start_run
from torchcaps.train.state import seeded

RECIPE = "mnist-paper"
# Each with its model's own loss: the recipe's margin is for lengths, which matrix capsules have not got.
SETTINGS = (
    "model.variant=paper",
    "model.types=16",
    "model.dim=16",
    "loss.margin=null",
    "optim.warmup_steps=500",  # a first step of full length leaves capsules saturated, and few recover
    "train.seed=0",
)
LAYER = Workload(I=576, K=16)  # that network's class capsules: its children are matrices for a routing that wants them
NETWORKS = {"capsnet": 16, "efficient_capsnet": 16, "em_capsnet": 16, "em_capsnet_large": 8}  # and batch on a CPU
ALLOWED = 1e-4  # relative error against float64 beyond which nothing is timed

ROUTING_FIGURES = {  # the name in the CSV file and in the table
    "name": "routing",
    "parameters": "parameters",
    "forward_ms": "forward ms",
    "both_ms": "both ms",
    "extra_mib": "extra MiB",
    "test_error": "error %",
    "test_n": "of",
}
NETWORK_FIGURES = {
    "name": "network",
    "B": "batch",
    "parameters": "parameters",
    "both_ms": "step ms",
    "images_per_s": "images/s",
    "peak_mib": "peak MiB",
}
HEAD = tuple(dict.fromkeys(["machine", "what", *ROUTING_FIGURES, "epochs", *NETWORK_FIGURES]))


class LayerRow(NamedTuple):
    """Milliseconds of the forward pass, and of forward and backward; extra memory of the latter."""

    routing: str
    parameters: int
    batch: int
    forward_ms: float
    both_ms: float
    extra_mib: float | None


def family_of(text: str) -> list[str]:
    """The routings that --routing asks for: all, or some by name with commas between."""
    if text == "all":
        return list(ROUTINGS)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ROUTINGS:
            raise UserError(f"--routing: no routing is called {name!r}: {did_you_mean(name, ['all', *ROUTINGS])}")
    return list(dict.fromkeys(names))


def run_family(
    names: Sequence[str], device: torch.device, *, epochs: int, out: Path | None, console: Console
) -> list[dict[str, str]]:
    """A layer of each routing, whole networks, and (unless epochs is 0) the test error of a CapsNet with each."""
    if epochs:  # what cannot be trained on is found out before anything is timed
        load_data(**_recipe(names[0], epochs).data.model_dump())
    write_rows(out, HEAD, [])
    console.print(machine(device), highlight=False)
    cuda = device.type == "cuda"
    layers = measure_layers(names, LAYER if cuda else LAYER._replace(B=32), device)
    rows = [_routing_row(layer, device) for layer in layers]
    write_rows(out, HEAD, rows)
    for name, small in NETWORKS.items():
        rows.append(_network_row(step.measure_network(name, device, 128 if cuda else small), device))
        write_rows(out, HEAD, rows)
    console.print(_table(NETWORK_FIGURES, rows[len(names) :]))
    for name, row in zip(names, rows):
        if epochs:
            console.print(f"training with {name}", highlight=False)
            row |= _trained(train(name, epochs, device))
            write_rows(out, HEAD, rows)
    console.print(_table(ROUTING_FIGURES, rows[: len(names)]))
    if out is not None:
        picture = out.with_suffix(".png")
        picture.write_bytes(png_bytes(figure_family(rows)))
        console.print(f"written to {out}, drawn to {picture}", highlight=False)
    return rows


def measure_layers(names: Sequence[str], work: Workload, device: torch.device, rounds: int = 11) -> list[LayerRow]:
    """A layer of each routing, by turns, after each was checked against float64."""
    B, I, K, J, D, R = work
    with seeded(0, device):
        # Of length a half, which is what a layer's first weights are made for.
        children_BIK = functional.normalize(torch.randn(B, I, K), dim=-1).to(device) / 2
        directions = torch.randn(B, J, D).to(device), torch.randn(B, J).to(device)
        layers = {name: DenseCaps(I, K, J, D, routing=name, iterations=R).to(device) for name in names}
    for layer in layers.values():
        _check(layer, children_BIK, *directions)
    forward: dict[str, Call] = {name: partial(layer, children_BIK) for name, layer in layers.items()}
    both: dict[str, Call] = {name: partial(_run, layer, children_BIK, *directions) for name, layer in layers.items()}
    with products("tf32"), torch.no_grad():
        extra = {name: extra_memory(call, device) for name, call in both.items()}
        forward_s, both_s = (device_seconds(calls, device, rounds) for calls in (forward, both))
    return [
        LayerRow(
            name,
            sum(parameter.numel() for parameter in layer.parameters()),
            B,
            forward_s[name] * 1e3,
            both_s[name] * 1e3,
            None if (taken := extra[name]) is None else taken / 2**20,
        )
        for name, layer in layers.items()
    ]


def train(name: str, epochs: int, device: torch.device) -> dict[str, Any]:
    """The summary of a run with this routing; the run itself is not kept."""
    still = Console(quiet=True, force_terminal=False)  # on a terminal a bar would move, unseen, and take time
    with tempfile.TemporaryDirectory() as folder:
        run = start_run(_recipe(name, epochs), out=Path(folder) / "run", device=device.type, console=still)
        return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def _recipe(name: str, epochs: int) -> Recipe:
    return load_recipe(RECIPE, [*SETTINGS, f"model.routing={name}", f"train.epochs={epochs}"])


def _check(layer: DenseCaps, *inputs: Tensor) -> None:
    with products("fp32"):
        got = _run(layer, *inputs)
    exact = _run(copy.deepcopy(layer).cpu().double(), *(x.cpu().double() for x in inputs))
    errors = [relative_error(a.cpu(), b) for a, b in zip(got, exact)]
    if not all(error <= ALLOWED for error in errors):  # so put that NaN does not pass
        raise AssertionError(f"{layer.routing} is wrong by {errors}: nothing is timed")


def _run(layer: DenseCaps, children_BIK: Tensor, pose_BJD: Tensor, activation_BJ: Tensor) -> list[Tensor]:
    """Poses and activations, and along the directions given for them the gradients of the children and all weights."""
    with torch.enable_grad():
        children_BIK = children_BIK.detach().requires_grad_()
        parents = tuple(layer(children_BIK))
        gradients = torch.autograd.grad(parents, (children_BIK, *layer.parameters()), (pose_BJD, activation_BJ))
    return [*(x.detach() for x in parents), *gradients]


def _routing_row(row: LayerRow, device: torch.device) -> dict[str, str]:
    return blank_row(HEAD, device) | {
        "what": "routing",
        "name": row.routing,
        "B": str(row.batch),
        "parameters": str(row.parameters),
        "forward_ms": f"{row.forward_ms:.3f}",
        "both_ms": f"{row.both_ms:.3f}",
        "extra_mib": "" if row.extra_mib is None else f"{row.extra_mib:.1f}",
    }


def _trained(summary: dict[str, Any]) -> dict[str, str]:
    return {
        "epochs": str(summary["epochs"]),
        "test_error": f"{100 * (1 - summary['test_accuracy']):.2f}",
        "test_n": str(summary["test_n"]),
    }


def _network_row(row: step.NetworkRow, device: torch.device) -> dict[str, str]:
    return blank_row(HEAD, device) | {
        "what": "training step",
        "name": row.name,
        "B": str(row.batch),
        "parameters": str(row.parameters),
        "both_ms": f"{row.ms:.3f}",
        "images_per_s": f"{row.batch / row.ms * 1e3:.0f}",
        "peak_mib": "" if row.mib is None else f"{row.mib:.0f}",
    }


def _table(figures: dict[str, str], rows: Sequence[dict[str, str]]) -> Table:
    table = Table(*figures.values(), box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*(row[key] for key in figures))
    return table
