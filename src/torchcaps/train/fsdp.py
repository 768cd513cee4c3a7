"""Sharded training (FSDP): each rank keeps a shard of every weight, for layers too large to train on one device.

Weights, moments and averages are sharded, by Fabric's ModelParallelStrategy; weights are gathered while the model
computes. Files and the final measurements are of the whole model, which rank 0 gathers when it is needed.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from typing import cast

from lightning_fabric import Fabric
from lightning_fabric.strategies import ModelParallelStrategy
from torch.distributed.device_mesh import DeviceMesh

from torchcaps.errors import UserError
from torchcaps.models import ImageModel
from torchcaps.train.callbacks import Callback
from torchcaps.train.checkpoint import copy_progress, copy_state
from torchcaps.train.distributed import Distributed
from torchcaps.train.recipe import Recipe
from torchcaps.train.state import State, make_optimizer
from torchcaps.train.totals import Totals


def shard_state(state: State, recipe: Recipe, fabric: Fabric) -> State:
    """Shard a state among the ranks. Its weights are on the CPU, and equal on all ranks."""
    if state.discriminator is not None:
        raise UserError("--shard supports one network, but synthesis trains a generator and a discriminator: omit it")
    if recipe.optim.name == "muon":
        raise UserError("optim.name=muon needs whole weights, and --shard splits them: set optim.name=adamw")
    if recipe.optim.sam_rho:
        raise UserError("optim.sam_rho needs whole weights, and --shard splits them: omit it")
    if recipe.transfer.freeze:
        raise UserError("transfer.freeze needs whole layers, and --shard splits them: omit one or the other")
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")  # nothing changes it in place
    mesh = cast(ModelParallelStrategy, fabric.strategy).device_mesh["data_parallel"]
    model = _sharded(state.model, mesh)
    average = None if state.average is None else _sharded(state.average, mesh)
    optimizer = make_optimizer(model, recipe.optim, fabric.device, sharded=True, rates=recipe.transfer.lr)
    shards = replace(state, model=model, average=average, optimizer=optimizer)
    copy_state(state, shards)
    return shards


def _sharded(network: ImageModel, mesh: DeviceMesh) -> ImageModel:
    """All layers as one unit: capsule layers return types that FSDP does not look into, so it could not tell when to
    gather a single layer. Weights and gradients are whole during a step; moments and averages never are."""
    from torch.distributed.fsdp import fully_shard

    network = copy.deepcopy(network)
    # Reshard after every forward pass: after an evaluation nothing else would do it.
    fully_shard(network, mesh=mesh, reshard_after_forward=True)
    return network


class GatheredCallback(Callback):
    """Gathers the sharded state before it calls another callback. Every rank needs one.

    Args:
        callback: what to call.
        whole: an unsharded state to show it; on rank 0 its weights are up to date whenever they are read.
        dist: the ranks.
    """

    def __init__(self, callback: Callback, whole: State, dist: Distributed):
        self.callback, self.whole, self.dist = callback, whole, dist
        self.should_stop, self.should_save = callback.should_stop, callback.should_save  # type: ignore[method-assign]

    def on_step(self, state: State, totals: Totals) -> None:
        self.callback.on_step(state, totals)

    def on_epoch(self, state: State, line: dict[str, float]) -> None:
        copy_progress(state, self.whole)
        if self.dist.broadcast_from_main(lambda: self.callback.needs_weights(state, line)):
            copy_state(state, self.whole, keep=self.dist.is_main)
        self.callback.on_epoch(self.whole, line)
        state.best = self.whole.best

    def save(self, state: State) -> None:
        copy_state(state, self.whole, keep=self.dist.is_main)
        self.callback.save(self.whole)
