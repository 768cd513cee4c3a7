"""A model in pieces: its weights shared out among the processes, for layers that are too large to train on one device.

Each process keeps a piece of every weight, its moments and its average (FSDP, by Fabric's ModelParallelStrategy);
weights are put together while the model works. All that is written or measured at the end is of the whole model, which
the first process puts together when it is needed.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

from lightning_fabric import Fabric
from lightning_fabric.strategies import ModelParallelStrategy
from torch.distributed.device_mesh import DeviceMesh

from torchcaps.errors import UserError
from torchcaps.models import ImageModel
from torchcaps.train.callbacks import Follower
from torchcaps.train.checkpoint import State, copy_progress, copy_state
from torchcaps.train.distributed import Distributed
from torchcaps.train.loop import Totals
from torchcaps.train.recipe import Recipe
from torchcaps.train.state import make_optimizer


def share_out(state: State, recipe: Recipe, fabric: Fabric) -> State:
    """The same state, whose weights are on the CPU, in pieces, one in each process; all of them must have the same."""
    if state.discriminator is not None:
        raise UserError("--shard is for one network, and drawing is learned by two that judge each other: leave it out")
    if recipe.optim.name == "muon":
        raise UserError("optim.name=muon turns whole matrices, and with --shard no process has one: set it to adamw")
    if recipe.optim.sharpness:
        raise UserError("optim.sharpness moves whole weights, and with --shard no process has them: leave it away")
    assert isinstance(fabric.strategy, ModelParallelStrategy)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")  # nobody changes it in place
    mesh = fabric.strategy.device_mesh["data_parallel"]
    model = _in_pieces(state.model, mesh)
    average = None if state.average is None else _in_pieces(state.average, mesh)
    optimizer = make_optimizer(model, recipe.optim, fabric.device, in_pieces=True)
    shared = replace(state, model=model, average=average, optimizer=optimizer)
    copy_state(state, shared)
    return shared


def _in_pieces(network: ImageModel, mesh: DeviceMesh) -> ImageModel:
    """All layers at once: those of capsules give what FSDP does not look into, and could not be told when to be whole.
    Then every weight and its gradient are whole for the time of a step, and moments and averages never."""
    from torch.distributed.fsdp import fully_shard

    network = copy.deepcopy(network)
    # In pieces again after every forward pass: after an evaluation nothing else would see to it.
    fully_shard(network, mesh=mesh, reshard_after_forward=True)
    return network


class Gathering:
    """Looks on at a run in pieces, and shows another what it is as a whole. All processes have to have one.

    whole  what is shown: a state that is not in pieces; in the first process, its weights are new when they are wanted
    """

    def __init__(self, watcher: Follower, whole: State, team: Distributed):
        self.watcher, self.whole, self.team = watcher, whole, team

    def step(self, state: State, totals: Totals) -> None:
        self.watcher.step(state, totals)

    def epoch(self, state: State, line: dict[str, float]) -> None:
        copy_progress(state, self.whole)
        if self.team.broadcast_from_main(lambda: self.watcher.wants(state, line)):
            copy_state(state, self.whole, keep=self.team.first)
        self.watcher.epoch(self.whole, line)
        state.best = self.whole.best

    def stopping(self) -> bool:
        return self.watcher.stopping()

    def due(self) -> bool:
        return self.watcher.due()

    def save(self, state: State) -> None:
        copy_state(state, self.whole, keep=self.team.first)
        self.watcher.save(self.whole)
