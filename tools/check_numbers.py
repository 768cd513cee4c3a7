"""Numbers that a refactoring must not change, as one JSON file; and what changed since an earlier one.

    python tools/check_numbers.py --out before.json
    python tools/check_numbers.py --out after.json --against before.json      exit code 1 if anything differs

Checksums of the digits recipe's weights after three epochs, and of every shipped model's answers to fixed inputs; and
how far the chunked routings are from the reference in float64. All on one CPU thread: they are the same again on the
same machine and version of torch only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcaps.models import SynthesisModel, load
from torchcaps.models.files import shipped_models
from torchcaps.ops import dynamic_routing
from torchcaps.train.recipe import load_recipe
from torchcaps.train.run import start_run

EPOCHS = 3
SHAPES = ((2, 5, 4, 3, 6), (3, 32, 8, 10, 16), (1, 1, 1, 2, 1))  # B, I, K, J, D


def checksum(tensors: Iterator[Tensor]) -> str:
    """Of the bytes of all tensors, in order."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def trained_weights() -> str:
    with tempfile.TemporaryDirectory() as folder:
        recipe = load_recipe("digits", (f"train.epochs={EPOCHS}", "train.deterministic=yes"))
        start_run(recipe, out=Path(folder) / "run", device="cpu")
        state = load(Path(folder) / "run").state_dict()
    return checksum(state[name] for name in sorted(state))


def answers(name: str) -> str:
    """The checksum of everything that a shipped model says about fixed inputs."""
    model = load(name)
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(3, *model.image_shape, generator=draw)
    with torch.no_grad():
        if isinstance(model, SynthesisModel):
            masks = torch.randint(model.num_classes, (3, *model.image_shape[1:]), generator=draw)
            return checksum(_tensors(model(masks, torch.randn(3, model.z, generator=draw))))
        return checksum(_tensors(model(images)))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)


def routing_errors() -> dict[str, float]:
    """The largest difference between chunked and reference dynamic routing, and between their gradients."""
    found, before = {}, os.environ.get("TORCHCAPS_BACKEND", "auto")
    for B, I, K, J, D in SHAPES:
        draw = torch.Generator().manual_seed(0)
        u = torch.randn(B, I, K, generator=draw, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(I, J, D, K, generator=draw, dtype=torch.float64, requires_grad=True)
        results = []
        for backend in ("reference", "chunked"):
            os.environ["TORCHCAPS_BACKEND"] = backend
            poses = dynamic_routing(u, weight, iterations=3).poses
            results.append([poses, *torch.autograd.grad(poses.square().sum(), [u, weight])])
        found[f"{B}×{I}×{K} → {J}×{D}"] = max((a - b).abs().max().item() for a, b in zip(*results))
    os.environ["TORCHCAPS_BACKEND"] = before
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--against", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    numbers = {
        "machine": f"{platform.machine()}, torch {torch.__version__}",
        "digits, three epochs": trained_weights(),
        **{f"answers of {name}": answers(name) for name in shipped_models()},
        **{f"routing, float64, {name}": error for name, error in routing_errors().items()},
    }
    args.out.write_text(json.dumps(numbers, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if args.against:
        before = json.loads(args.against.read_text(encoding="utf-8"))
        changed = [name for name in before.keys() | numbers.keys() if before.get(name) != numbers.get(name)]
        for name in sorted(changed):
            print(f"{name}: {before.get(name)} → {numbers.get(name)}")
        sys.exit(bool(changed))


if __name__ == "__main__":
    main()
