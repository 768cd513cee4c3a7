"""What two processes find when they shard every model; test_fsdp.py starts them once and reads what they wrote."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from conftest import SMALLEST
from torchcaps.models import ImageModel, create_model, list_models
from torchcaps.train import fsdp
from torchcaps.train.distributed import exit_without_teardown
from torchcaps.train.dtensor import gather, is_sharded

WORLD = 2


def examples(model: ImageModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Four images and what the model learns from them."""
    images = torch.rand(4, *model.image_shape)
    if model.task == "segmentation":
        return images, (images[:, 0] * 3).long()
    if model.task == "detection":
        level = len(model.level_names) - 1
        whole, parts = (
            [level, 1, 8, 8, 1, 0, 4, 4],
            [[0, 0, 4, 8, 1, 0, 4, 4], [0, 1, 12, 8, 0, 1, 4, 4], [-1, *[0] * 7]],
        )
        return images, torch.tensor([[whole, *parts]] * 4).float()
    return images, torch.tensor([0, 1, 2, 0])


def loss(model: torch.nn.Module, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    output = model(images, targets)
    if getattr(output, "losses", None) is not None:
        return sum(each.mean() for each in output.losses.values())
    terms = [each for each in output[:4] if isinstance(each, torch.Tensor)]
    return sum(((each - 0.3) ** 2).mean() for each in terms)


def attempt(name: str) -> dict[str, object]:
    """The capsule layers that are units of their own, and what went wrong."""
    try:
        torch.manual_seed(0)
        whole = create_model(name, num_classes=3, **SMALLEST.get(name, {}))
        images, targets = examples(whole)
        units = len(fsdp.capsule_layers(whole))
        sharded = fsdp.shard_model(whole, init_device_mesh("cpu", (WORLD,)))
        torch.manual_seed(1)
        loss(whole, images, targets).backward()
        torch.manual_seed(1)
        loss(sharded, images, targets).backward()
        assert all(is_sharded(each) for each in sharded.parameters())
        for (called, one), two in zip(whole.named_parameters(), sharded.parameters()):
            if one.grad is not None:
                torch.testing.assert_close(
                    gather(two.grad), one.grad, rtol=1e-4, atol=1e-6, msg=lambda m, c=called: c + m
                )
        with torch.no_grad():
            torch.testing.assert_close(sharded.eval()(images)[0], whole.eval()(images)[0])
        return {"units": units, "wrong": ""}
    except Exception:
        return {"wrong": traceback.format_exc()}


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=WORLD)
    found = {name: attempt(name) for name in list_models() if "pix2pix" not in name}  # trains two networks
    (folder / f"{rank}.json").write_text(json.dumps(found))
    exit_without_teardown(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
