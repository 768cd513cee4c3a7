"""Sharded training (FSDP): each rank keeps a shard of every weight, for layers too large to train on one device.

Weights, moments and averages are sharded, by Fabric's ModelParallelStrategy; the weights of each capsule layer are
gathered while it computes. Files and the final measurements are of the whole model, which rank 0 gathers when it is
needed.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from typing import cast

from lightning_fabric import Fabric
from lightning_fabric.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from torchcaps.errors import UserError
from torchcaps.layers import (
    ClassCaps,
    ConvCaps2d,
    DeconvCaps2d,
    DenseCaps,
    MatrixConvCaps2d,
    MatrixPrimaryCaps,
    PartCaps,
    PrimaryCaps,
)
from torchcaps.models import ImageModel
from torchcaps.train.callbacks import Callback
from torchcaps.train.checkpoint import copy_progress, copy_state
from torchcaps.train.distributed import Distributed
from torchcaps.train.recipe import Recipe
from torchcaps.train.state import State, make_optimizer
from torchcaps.train.totals import Totals

# Layers that alone read their weights. The layouts of WholeCaps are few, and read by the model and its losses as well.
CAPSULE_LAYERS = (
    *(ClassCaps, ConvCaps2d, DeconvCaps2d, DenseCaps, MatrixConvCaps2d, MatrixPrimaryCaps),
    *(PartCaps, PrimaryCaps),
)


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
    model = shard_model(state.model, mesh)
    average = None if state.average is None else shard_model(state.average, mesh)
    optimizer = make_optimizer(model, recipe.optim, fabric.device, sharded=True, rates=recipe.transfer.lr)
    shards = replace(state, model=model, average=average, optimizer=optimizer)
    copy_state(state, shards)
    return shards


def shard_model(network: ImageModel, mesh: DeviceMesh) -> ImageModel:
    """A copy with each capsule layer as a unit of its own, and all other layers as one.

    The weights of a unit are whole only while it computes, forward or backward. Moments and averages never are.
    """
    from torch.distributed.fsdp import fully_shard

    if scalars := [name for name, parameter in network.named_parameters() if not parameter.ndim]:
        raise UserError(
            f"--shard: {type(network).__name__} has parameters of one number ({scalars[0]}), which cannot be split: "
            "omit --shard"
        )
    network = copy.deepcopy(network)
    # Reshard after every forward pass: after an evaluation nothing else would do it.
    for unit in (*capsule_layers(network), network):
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)
    return network


def capsule_layers(network: nn.Module) -> list[nn.Module]:
    """The capsule layers of a network that have weights and are not inside another."""
    found: list[nn.Module] = []
    for child in network.children():
        if isinstance(child, CAPSULE_LAYERS):
            found += [child] if any(True for _ in child.parameters()) else []
        else:
            found += capsule_layers(child)
    return found


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
