"""All routings on one workload: run time and memory of a layer with each, and test error of a network with each."""

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
from torch import Tensor
from torch.nn import functional

from torchcaps.bench import step
from torchcaps.bench.plot import figure_family
from torchcaps.bench.routing import Workload, matmul_precision, relative_error
from torchcaps.bench.rows import blank_row, rounded, table_of, write_rows
from torchcaps.bench.timing import Call, device_seconds, extra_mib
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
# Each model uses its own loss: the recipe's margin loss needs lengths, which matrix capsules do not have.
SETTINGS = (
    "model.variant=paper",
    "model.types=16",
    "model.dim=16",
    "loss.margin=null",
    "optim.warmup_steps=500",  # without a warm-up the first steps saturate the capsules, and few recover
    "train.seed=0",
)
LAYER = Workload(I=576, K=16)  # the class capsules of that network; for EM routing each child is a matrix
NETWORKS = {"capsnet": 16, "efficient_capsnet": 16, "em_capsnet": 16, "em_capsnet_large": 8}  # name: batch on a CPU
MAX_RELATIVE_ERROR = 1e-4  # against float64; beyond it nothing is timed

ROUTING_COLUMNS = {  # name in the CSV file: title in the table
    "name": "routing",
    "parameters": "parameters",
    "forward_ms": "forward ms",
    "both_ms": "both ms",
    "extra_mib": "extra MiB",
    "test_error": "error %",
    "test_n": "of",
}
NETWORK_COLUMNS = {
    "name": "network",
    "B": "batch",
    "parameters": "parameters",
    "both_ms": "step ms",
    "images_per_s": "images/s",
    "peak_mib": "peak MiB",
}
HEAD = tuple(dict.fromkeys(["machine", "what", *ROUTING_COLUMNS, "epochs", *NETWORK_COLUMNS]))


class LayerRow(NamedTuple):
    """Run time of the forward pass, and of forward and backward; extra memory of the latter."""

    routing: str
    parameters: int
    batch: int
    forward_ms: float
    both_ms: float
    extra_mib: float | None


def parse_routings(text: str) -> list[str]:
    """The routings named in --routing: all, or names separated by commas."""
    if text == "all":
        return list(ROUTINGS)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ROUTINGS:
            raise UserError(f"--routing: unknown routing {name!r}: {did_you_mean(name, ['all', *ROUTINGS])}")
    return list(dict.fromkeys(names))


def run_family(
    names: Sequence[str], device: torch.device, *, epochs: int, out: Path | None, console: Console
) -> list[dict[str, str]]:
    """Measure a layer of each routing, whole networks, and the test error of a CapsNet with each routing.

    Args:
        names: The routings.
        device: Where to run.
        epochs: Epochs of training for the test error; 0 skips it.
        out: CSV file to write; the figure is written beside it.
        console: Where to print the tables.

    Returns:
        The rows of the CSV file.
    """
    if epochs:  # fail before timing if the data is missing
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
    console.print(table_of(NETWORK_COLUMNS, rows[len(names) :]))
    for name, row in zip(names, rows):
        if epochs:
            console.print(f"training with {name}", highlight=False)
            row |= _trained(train(name, epochs, device))
            write_rows(out, HEAD, rows)
    console.print(table_of(ROUTING_COLUMNS, rows[: len(names)]))
    if out is not None:
        picture = out.with_suffix(".png")
        picture.write_bytes(png_bytes(figure_family(rows)))
        console.print(f"written to {out}, figure written to {picture}", highlight=False)
    return rows


def measure_layers(names: Sequence[str], work: Workload, device: torch.device, rounds: int = 11) -> list[LayerRow]:
    """Check a layer of each routing against float64, then time them in alternation."""
    B, I, K, J, D, R = work
    with seeded(0, device):
        # Children of length 0.5, for which the initialisation of the layers is meant.
        children_BIK = functional.normalize(torch.randn(B, I, K), dim=-1).to(device) / 2
        directions = torch.randn(B, J, D).to(device), torch.randn(B, J).to(device)
        layers = {name: DenseCaps(I, K, J, D, routing=name, iterations=R).to(device) for name in names}
    for layer in layers.values():
        _check(layer, children_BIK, *directions)
    forward: dict[str, Call] = {name: partial(layer, children_BIK) for name, layer in layers.items()}
    both: dict[str, Call] = {name: partial(_run, layer, children_BIK, *directions) for name, layer in layers.items()}
    with matmul_precision("tf32"), torch.no_grad():
        extra = {name: extra_mib(call, device) for name, call in both.items()}
        forward_s, both_s = (device_seconds(calls, device, rounds) for calls in (forward, both))
    return [
        LayerRow(
            name,
            sum(parameter.numel() for parameter in layer.parameters()),
            B,
            forward_s[name] * 1e3,
            both_s[name] * 1e3,
            extra[name],
        )
        for name, layer in layers.items()
    ]


def train(name: str, epochs: int, device: torch.device) -> dict[str, Any]:
    """Train a network with this routing in a temporary folder and return the run's summary."""
    quiet = Console(quiet=True, force_terminal=False)  # on a terminal the hidden progress bar would cost time
    with tempfile.TemporaryDirectory() as folder:
        run = start_run(_recipe(name, epochs), out=Path(folder) / "run", device=device.type, console=quiet)
        return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def _recipe(name: str, epochs: int) -> Recipe:
    return load_recipe(RECIPE, [*SETTINGS, f"model.routing={name}", f"train.epochs={epochs}"])


def _check(layer: DenseCaps, *inputs: Tensor) -> None:
    with matmul_precision("fp32"):
        got = _run(layer, *inputs)
    exact = _run(copy.deepcopy(layer).cpu().double(), *(x.cpu().double() for x in inputs))
    errors = [relative_error(a.cpu(), b) for a, b in zip(got, exact)]
    if not all(error <= MAX_RELATIVE_ERROR for error in errors):  # written so that NaN fails
        raise AssertionError(f"{layer.routing} is wrong by {errors}; nothing was timed")


def _run(layer: DenseCaps, children_BIK: Tensor, pose_BJD: Tensor, activation_BJ: Tensor) -> list[Tensor]:
    """Poses and activations, and the gradients of the children and all weights along the given directions."""
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
        "extra_mib": rounded(row.extra_mib, 1),
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
        "peak_mib": rounded(row.mib, 0),
    }
