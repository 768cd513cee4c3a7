"""A model in pieces: its weights shared out among the processes, for capsule layers that one device has no room for.

Each process keeps a piece of every weight, of its gradient and its moments (FSDP, by Fabric's ModelParallelStrategy);
they are put together while the model works. All that is written or measured at the end is of the whole model, which the
first process puts together after each epoch.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import ModelParallelStrategy
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from torchcaps.errors import UserError
from torchcaps.models import ImageModel
from torchcaps.train.checkpoint import State, copy_state
from torchcaps.train.engine import Totals, Watcher
from torchcaps.train.recipe import Recipe
from torchcaps.train.setup import make_optimizer


def share_out(state: State, recipe: Recipe, fabric: Fabric) -> State:
    """The same state in pieces, one in each process; all of them must have the same. The whole one goes to the CPU."""
    if state.rival is not None:
        raise UserError("--shard is for one network, and drawing is learned by two that judge each other: leave it out")
    if recipe.optim.name == "muon":
        raise UserError("optim.name=muon turns whole matrices, and with --shard no process has one: set it to adamw")
    assert isinstance(fabric.strategy, ModelParallelStrategy)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")  # nobody changes it in place
    mesh = fabric.strategy.device_mesh["data_parallel"]
    model = _in_pieces(state.model, mesh)
    average = None if state.average is None else _in_pieces(state.average, mesh)
    optimizer = make_optimizer(model, recipe.optim, fabric.device, in_pieces=True)
    shared = replace(state, model=model, average=average, optimizer=optimizer)
    copy_state(state, shared)
    for network in state.networks.values():
        network.cpu()
    return shared


def _in_pieces(network: ImageModel, mesh: DeviceMesh) -> ImageModel:
    """All layers at once: it is one of them that takes the room, and while that one works it has to be whole."""
    network = copy.deepcopy(network).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    # In pieces again after every forward pass: after an evaluation nothing else would see to it.
    fully_shard(network, mesh=mesh, reshard_after_forward=True)
    return network


class Gathering:
    """Looks on at a run in pieces, and shows another what it is as a whole. All processes have to have one.

    whole  what is shown: a state that is not in pieces
    """

    def __init__(self, watcher: Watcher, whole: State):
        self.watcher, self.whole = watcher, whole

    def step(self, state: State, totals: Totals) -> None:
        self.watcher.step(state, totals)

    def epoch(self, state: State, line: dict[str, float]) -> None:
        copy_state(state, self.whole)
        self.watcher.epoch(self.whole, line)
        state.best = self.whole.best

    def stopping(self) -> bool:
        return self.watcher.stopping()
