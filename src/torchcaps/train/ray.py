"""Run a recipe on a Ray cluster, with Ray Train: it starts the workers, and the run is the one of `torchcaps train`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from torchcaps.errors import UserError
from torchcaps.extras import import_extra
from torchcaps.train.recipe import Recipe, make_recipe
from torchcaps.train.run import resume_run, start_run

__all__ = ["train_on_ray"]


def train_on_ray(
    recipe: Recipe,
    *,
    out: str | Path,
    workers: int = 2,
    use_gpu: bool = False,
    resources: dict[str, float] | None = None,
    shard: bool = False,
    max_failures: int = 0,
) -> Path:
    """Train a recipe on the workers of a Ray cluster. They take the step that one process would take.

    Connect to a cluster with `ray.init` before; otherwise Ray starts one on this machine. The folder of the run, and
    that of the data, must be on a disk that all machines of the cluster share.

    Args:
        recipe: what to train, and how.
        out: the folder of the run. One that holds an unfinished run is resumed.
        workers: processes, as many on each machine that has any.
        use_gpu: whether each worker has a GPU.
        resources: what Ray reserves for each worker: {"CPU": 4, "GPU": 1}.
        shard: whether each worker has a shard of every weight, its gradient and its moments.
        max_failures: how often lost workers are replaced; the run then resumes from its last checkpoint.

    Returns:
        The folder.
    """
    _, train, in_torch = import_extra("ray", "ray", "ray.train", "ray.train.torch")
    if workers < 1 or max_failures < 0:
        raise UserError(
            f"train_on_ray: workers={workers}, max_failures={max_failures}: give at least 1, and at least 0"
        )
    folder = Path(out).absolute()
    if (folder / "summary.json").is_file():
        raise UserError(f"{folder} holds a finished run: give another folder")
    trainer = in_torch.TorchTrainer(
        _train,
        train_loop_config={
            "recipe": _absolute(recipe).model_dump(),
            "folder": str(folder),
            "shard": shard,
            "device": "auto" if use_gpu else "cpu",
        },
        scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=use_gpu, resources_per_worker=resources),
        run_config=train.RunConfig(
            name=recipe.name,
            storage_path=str(folder.parent / ".ray"),
            failure_config=train.FailureConfig(max_failures=max_failures),
        ),
    )
    try:
        trainer.fit()
    except Exception as error:  # Ray's own, around what the workers raised
        mistakes = [each for each in getattr(error, "worker_failures", {}).values() if isinstance(each, UserError)]
        if not mistakes:
            raise
        raise UserError(str(mistakes[0])) from error
    return folder


def _absolute(recipe: Recipe) -> Recipe:
    """The recipe for processes that run in other folders."""
    path = recipe.data.path
    if path is None or "://" in path:
        return recipe
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"path": os.path.abspath(path)})})


def _train(config: dict[str, Any]) -> None:
    """One worker. A run that an earlier attempt began is resumed."""
    _check_world()
    folder = Path(config["folder"])
    device = config["device"]
    state = [""]
    if torch.distributed.get_rank() == 0:
        state = ["finished" if (folder / "summary.json").is_file() else "begun" * (folder / "recipe.yaml").is_file()]
    torch.distributed.broadcast_object_list(state)
    if state[0] == "begun":
        resume_run(folder, device=device, shard=config["shard"])
    elif not state[0]:
        start_run(make_recipe(config["recipe"]), out=folder, device=device, shard=config["shard"])
    torch.distributed.barrier()  # rank 0 writes the summary last
    (train,) = import_extra("ray", "ray.train")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    train.report({name: value for name, value in summary.items() if isinstance(value, int | float)})


def _check_world() -> None:
    """Every machine must have as many workers as any other: ranks are numbered machine by machine."""
    local = [0] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(local, int(os.environ["LOCAL_WORLD_SIZE"]))
    if len(set(local)) > 1:
        raise UserError(
            f"Ray placed {min(local)} workers on one machine and {max(local)} on another: give a number of workers and "
            "resources with which every machine has as many"
        )
