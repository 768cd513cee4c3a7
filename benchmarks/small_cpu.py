"""Time dynamic routing at small sizes on one CPU thread, against plain and compiled einsum.

    python benchmarks/small_cpu.py [--children 16 --parents 10 --batch 1]

The first row is the inference of one digit of 16×16 by capsnet_small without its decoder, against the same network with
one Linear layer in place of routing. Each further row is one size: milliseconds of a forward and backward pass of
`DenseCaps`, of the same layer written with einsum and autograd, and of that compiled by torch.compile. The poses of the
three agree, which is checked first. Times are taken by turns in one run, and each figure is the median. The ratio
compares DenseCaps with the faster of the other two.
The exit code is 1 if a ratio exceeds --bound, or that of capsnet_small --model-bound.
"""

from __future__ import annotations

import argparse
import csv
import sys
from itertools import chain, product
from pathlib import Path

import torch
from torch import Tensor, nn

from torchcaps.bench.step import Floor
from torchcaps.bench.timing import median_seconds
from torchcaps.layers import DenseCaps
from torchcaps.models import create_model
from torchcaps.ops import squash
from torchcaps.train.environment import machine

RESULTS = Path(__file__).parent / "results" / "small_cpu.csv"
CPU = torch.device("cpu")
COLUMNS = [
    *("network", "children", "parents", "batch"),
    *("ours_ms", "einsum_ms", "compiled_ms", "linear_ms", "ratio", "machine"),
]
K, D, ITERATIONS = 8, 16, 3


class EinsumCaps(nn.Module):
    """Routing as one would write it: the votes by einsum, everything else by autograd."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())

    def forward(self, u_BIK: Tensor) -> Tensor:
        votes_BIJD = torch.einsum("ijdk,bik->bijd", self.weight, u_BIK)
        logits_BIJ = votes_BIJD.new_zeros(votes_BIJD.shape[:3])
        for iteration in range(ITERATIONS):
            poses_BJD = squash(torch.einsum("bij,bijd->bjd", logits_BIJ.softmax(-1), votes_BIJD))
            if iteration < ITERATIONS - 1:
                logits_BIJ = logits_BIJ + torch.einsum("bijd,bjd->bij", votes_BIJD, poses_BJD)
        return poses_BJD


def measure(I: int, J: int, B: int, rounds: int) -> dict[str, object]:
    """One row of the table."""
    torch.manual_seed(0)
    layer = DenseCaps(I, K, J, D, iterations=ITERATIONS)
    plain = EinsumCaps(layer.weight)
    u_BIK = squash(torch.randn(B, I, K)).requires_grad_()
    grad_BJD = torch.randn(B, J, D)
    torch._dynamo.reset()
    networks = {"ours": lambda u: layer(u).pose, "einsum": plain, "compiled": torch.compile(plain)}
    expected = plain(u_BIK)
    for name, network in networks.items():
        torch.testing.assert_close(network(u_BIK), expected, rtol=1e-4, atol=1e-5, msg=name)

    def step(network: nn.Module) -> None:
        u_BIK.grad = layer.weight.grad = plain.weight.grad = None
        network(u_BIK).backward(grad_BJD)

    seconds = median_seconds({name: lambda net=net: step(net) for name, net in networks.items()}, CPU, rounds=rounds)
    best = min(seconds["einsum"], seconds["compiled"])
    times = {f"{name}_ms": f"{1000 * each:.4g}" for name, each in seconds.items()}
    return {"children": I, "parents": J, "batch": B, **times, "ratio": f"{seconds['ours'] / best:.2f}"}


def measure_model(rounds: int) -> dict[str, object]:
    """The row of capsnet_small."""
    torch.manual_seed(0)
    model = create_model("capsnet_small", image_shape=(1, 16, 16), decoder="none").eval()
    floor, image = Floor(**model.arguments).eval(), torch.rand(1, 1, 16, 16)
    with torch.inference_mode():
        networks = {"ours": lambda: model(image), "linear": lambda: floor(image)}
        seconds = median_seconds(networks, CPU, rounds=10 * rounds)
    times = {f"{name}_ms": f"{1000 * each:.4g}" for name, each in seconds.items()}
    return {"network": "capsnet_small", "batch": 1, **times, "ratio": f"{seconds['ours'] / seconds['linear']:.2f}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--children", type=int, nargs="*", default=[16, 128, 1152, 8192])
    parser.add_argument("--parents", type=int, nargs="*", default=[10, 100])
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--bound", type=float, default=1.15, help="largest ratio to the faster of the other two")
    parser.add_argument("--model-bound", type=float, default=1.8, help="largest ratio of capsnet_small")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    sizes = list(product(args.children, args.parents, args.batch))
    rows: list[dict[str, object]] = []
    for row in chain([measure_model(args.rounds)], (measure(*size, args.rounds) for size in sizes)):
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        rows.append({**row, "machine": machine(CPU)})
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    bounds = [args.model_bound, *[args.bound] * len(sizes)]
    sys.exit(any(float(str(row["ratio"])) > bound for row, bound in zip(rows, bounds)))


if __name__ == "__main__":
    main()
