"""What two processes do with every case; test_two_ranks.py starts them once and reads what they wrote."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from cases import CASES, Numbers, close, gradients, loss, make
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torchcaps.train.distributed import exit_without_teardown

WORLD = 2
BATCH = 4


class Unused(Numbers):
    """With a parameter that the loss does not depend on."""

    def __init__(self, layer: nn.Module):
        super().__init__(layer)
        self.spare = nn.Linear(2, 2)


def mine(x: torch.Tensor) -> torch.Tensor:
    return x.chunk(WORLD)[dist.get_rank()]


def ddp(name: str, wrap: type[Numbers] = Numbers, **options: bool) -> None:
    """Gradients are means over ranks: of losses that are sums, a half of that of the whole batch."""
    layer, x = make(name, BATCH)
    expected = [each / WORLD for each in gradients(Numbers(layer), x)[1:]]
    layer.zero_grad()
    model = DistributedDataParallel(wrap(layer), **options)
    for _ in range(2):  # a second step fails if the first left a gradient behind
        layer.zero_grad()
        loss(model(mine(x))).backward()
    close([torch.zeros_like(each) if each.grad is None else each.grad for each in layer.parameters()], expected)


def ddp_with_unused_parameters(name: str) -> None:
    ddp(name, Unused, find_unused_parameters=True)


def fsdp(name: str) -> None:
    """Every module that has weights is sharded by itself, and one step of SGD moves them as in one process."""
    layer, x = make(name, BATCH)
    expected = make(name, BATCH)[0]
    slopes = gradients(Numbers(expected), x)[1:]
    with torch.no_grad():
        for each, slope in zip(expected.parameters(), slopes):
            each -= 0.1 * slope / WORLD
    mesh = init_device_mesh("cpu", (WORLD,))
    model = Numbers(layer)
    for each in [*reversed(list(layer.modules()))]:
        if next(each.parameters(recurse=False), None) is not None:
            fully_shard(each, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss(model(mine(x))).backward()
    optimizer.step()
    assert all(hasattr(each, "full_tensor") for each in layer.parameters())
    close([each.full_tensor() for each in layer.parameters()], list(expected.parameters()))
    with torch.no_grad():
        close(model(x), Numbers(expected)(x))


KINDS: dict[str, Callable[[str], None]] = {each.__name__: each for each in (ddp, ddp_with_unused_parameters, fsdp)}


def attempt(kind: str, name: str) -> str:
    """What went wrong, or nothing."""
    try:
        KINDS[kind](name)
    except Exception:
        return traceback.format_exc()
    return ""


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=WORLD)
    found = {f"{kind} {name}": attempt(kind, name) for kind in KINDS for name in CASES}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    exit_without_teardown(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
