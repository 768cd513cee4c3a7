"""The state of a run, and the optimizers and random numbers in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import nn

from torchcaps.models import Discriminator, ImageModel
from torchcaps.train.optim.muon import Muon, by_shape
from torchcaps.train.optim.parts import split_by_rate
from torchcaps.train.optim.schedule import learning_rate
from torchcaps.train.recipe import OptimSection


@dataclass
class State:
    """Everything that a run needs to continue exactly where it was.

    Attributes:
        model, optimizer: what is trained, and how.
        generator: the source of all random numbers of augmentation, and of the noise that images are drawn with.
        average: the model with averaged weights, if the recipe has one.
        epoch, batch, step: finished epochs, finished batches of this epoch, finished steps in all.
        seconds: training time so far.
        totals: sums over this epoch so far.
        history: one dict for each finished epoch.
        best: the best value of the task's measure on validation images so far.
        data: the fingerprint of the training, validation and test images.
        discriminator, discriminator_optimizer: of a run that trains a generator.
    """

    model: ImageModel
    optimizer: torch.optim.Optimizer
    generator: torch.Generator
    average: ImageModel | None = None
    epoch: int = 0
    batch: int = 0
    step: int = 0
    seconds: float = 0.0
    totals: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    best: float | None = None
    data: str = ""
    discriminator: Discriminator | None = None
    discriminator_optimizer: torch.optim.Optimizer | None = None

    @property
    def final(self) -> ImageModel:
        """The model to evaluate and keep."""
        return self.average or self.model

    @property
    def networks(self) -> dict[str, nn.Module]:
        """All networks with weights, by their name in a checkpoint."""
        named = {"model": self.model, "average": self.average, "discriminator": self.discriminator}
        return {name: network for name, network in named.items() if network is not None}

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """All optimizers, by their name in a checkpoint."""
        named = {"optimizer": self.optimizer, "discriminator_optimizer": self.discriminator_optimizer}
        return {name: optimizer for name, optimizer in named.items() if optimizer is not None}

    def set_learning_rates(self, optim: OptimSection, total_steps: int) -> None:
        """Give every optimizer the learning rate of the next step."""
        rate = learning_rate(self.step, total_steps, optim)
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                scaled = rate * group.get("share", 1.0)
                if torch.is_tensor(group["lr"]):
                    group["lr"].fill_(scaled)  # in place: a recorded step knows it by its address
                else:
                    group["lr"] = scaled


def best_epoch(history: Sequence[Mapping[str, float]], measure: str) -> int:
    """Return how many epochs had been trained when the model was best on validation; 0 without validation.

    That is the last epoch within one standard error of the highest measure. Among few validation images the highest
    is largely chance, and later epochs have a lower learning rate and more steps behind them.

    Args:
        history: a dict for each epoch.
        measure: of the task, in [0, 1].
    """
    known = [(epoch, line) for epoch, line in enumerate(history, start=1) if f"val_{measure}" in line]
    if not known:
        return 0
    top = max(line[f"val_{measure}"] for _, line in known)
    images = known[-1][1].get("validation_images", 0)
    error = math.sqrt(max(0.0, top * (1 - top)) / images) if images else 0.0
    return max((epoch for epoch, line in known if line[f"val_{measure}"] >= top - error), default=len(history))


def improved_epoch(history: Sequence[Mapping[str, float]], measure: str) -> int:
    """Return how many epochs had been trained at the last improvement of validation measure or loss; 0 without."""
    known = [(epoch, line) for epoch, line in enumerate(history, start=1) if "val_loss" in line]
    if not known:
        return 0
    highest = max(known, key=lambda each: (each[1][f"val_{measure}"], -each[0]))
    lowest = min(known, key=lambda each: (each[1]["val_loss"], each[0]))
    return max(highest[0], lowest[0])


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Everything inside starts from this seed; afterwards the caller's random state is as before."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def make_optimizer(
    network: nn.Module,
    optim: OptimSection,
    device: torch.device,
    share: float = 1.0,
    sharded: bool = False,
    rates: Mapping[str, float] = MappingProxyType({}),
) -> torch.optim.Optimizer:
    """Make the recipe's optimizer for a network.

    Args:
        network: whose parameters to train.
        optim: the recipe's section.
        device: where the network is trained.
        share: its learning rate as a multiple of the recipe's.
        sharded: whether each rank has a shard of every weight; such steps are not recorded.
        rates: learning rates of parts of the network, as multiples of its own.
    """
    cuda = device.type == "cuda" and not sharded
    lr = torch.tensor(optim.lr, device=device) if cuda else optim.lr  # a tensor, so that a recorded step can follow it
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "muon": Muon}[optim.name]
    groups = by_shape(network) if kind is Muon else [{"params": list(network.parameters())}]
    groups = split_by_rate([group | {"share": share} for group in groups], network, rates)
    fused = None if sharded else True
    return kind(groups, lr=lr, betas=optim.betas, weight_decay=optim.weight_decay, fused=fused, capturable=cuda)
