"""What a user gives `fit` beside model and data: a loss or a task, an optimizer, callbacks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from torchcaps.errors import UserError
from torchcaps.models import ImageModel
from torchcaps.train.callbacks import Callback, Callbacks
from torchcaps.train.recipe import LossSection, Recipe
from torchcaps.train.state import State
from torchcaps.train.tasks import TASKS, Task
from torchcaps.train.tasks.given import GivenLossTask
from torchcaps.train.tasks.register import find_task
from torchcaps.train.totals import Totals


def choose_task(loss: Any, task: Any, model: ImageModel, *, data: Any, recipe: Recipe) -> Task:
    """The task of the loss or task that the user gave, else that of the model."""
    if loss is not None and task is not None:
        raise UserError("fit: give a loss or a task, not both; a task has losses of its own")
    weighted = recipe.loss != LossSection()
    if loss is not None:
        if weighted:
            raise UserError("fit: a loss of your own is all that is minimised, so omit settings['loss']")
        return GivenLossTask.of(_checked_loss(loss), not data.multi_label)
    if task is None:
        return TASKS[model.task].make(model, data, recipe.loss)
    if isinstance(task, str):
        return find_task(task, data, recipe.model.name).make(model, data, recipe.loss)
    if not callable(getattr(task, "terms", None)):
        raise UserError(f"fit: task must be a Task, its class or its name, not a {type(task).__name__}")
    if isinstance(task, type):
        made: Any = task
        return made.make(model, data, recipe.loss)
    if weighted:
        raise UserError("fit: a task that is made already has its weights, so omit settings['loss'] or give its class")
    return task


def _checked_loss(loss: Any) -> Any:
    if isinstance(loss, type):
        raise UserError(f"fit: loss is the class {loss.__name__}: give an instance, {loss.__name__}()")
    if not callable(loss):
        raise UserError(
            f"fit: loss={loss!r}: give a function of the answers and the targets, such as "
            "torchcaps.losses.margin_loss; weights of the usual losses are settings={'loss': {'margin': 1.0}}"
        )
    return loss


@contextmanager
def optimized_by(optimizer: Any, state: State, lr: float) -> Iterator[None]:
    """The state with an optimizer of the user's, whose own learning rates hold, scaled by the recipe's schedule.

    Args:
        optimizer: a class, a function of the parameters, an instance, or None.
        state: of the run.
        lr: the recipe's learning rate.
    """
    if optimizer is None:
        yield
        return
    if any(group.get("share", 1.0) != 1.0 for group in state.optimizer.param_groups):
        raise UserError("fit: transfer.lr is for the recipe's optimizers: give your optimizer groups of parameters")
    parameters = list(state.model.parameters())
    if isinstance(optimizer, str) or not (callable(optimizer) or isinstance(optimizer, torch.optim.Optimizer)):
        raise UserError(
            f"fit: optimizer={optimizer!r}: give a class of torch, such as torch.optim.SGD; 'adam', 'adamw' and 'muon' "
            "are settings={'optim': {'name': 'muon'}}"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer(parameters, lr=lr) if isinstance(optimizer, type) else optimizer(parameters)
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, torch.optim.LBFGS):
        raise UserError("fit: optimizer must be one of torch that needs no closure, such as torch.optim.SGD")
    own = {id(parameter) for parameter in parameters}
    if any(id(parameter) not in own for group in optimizer.param_groups for parameter in group["params"]):
        raise UserError("fit: the optimizer holds parameters that are not the model's: make it of model.parameters()")
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["share"] = float(group["lr"]) / lr
    state.optimizer = optimizer
    try:
        yield
    finally:  # as the user made it
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate
            del group["share"]
        vars(optimizer).pop("found_inf", None)


def as_callback(callbacks: Any, task: Task) -> Callback:
    """The callbacks of a user as one, after a first look at the gradients."""
    methods = [name for name in vars(Callback) if not name.startswith("_")]
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise UserError("fit: callbacks must be a list: callbacks=[callback]")
    for each in callbacks:
        if isinstance(each, type) or not all(callable(getattr(each, name, None)) for name in methods):
            called = each.__name__ if isinstance(each, type) else type(each).__name__
            raise UserError(
                f"fit: {called} is no callback: give an instance of a class that derives from "
                "torchcaps.train.callbacks.Callback"
            )
    return Callbacks([_FirstGradients(task), *callbacks])


class _FirstGradients(Callback):
    """Warns of parameters that have no gradient after the first step, because no loss looks at what they compute."""

    def __init__(self, task: Task):
        self.task, self.done = task, False

    def on_step(self, state: State, totals: Totals) -> None:
        if self.done:
            return
        self.done = True
        named = [(name.removeprefix("module."), each) for name, each in state.model.named_parameters()]
        idle = [name for name, each in named if each.requires_grad and each.grad is None]
        if not idle:
            return
        more = f" and {len(idle) - 1} more" if len(idle) > 1 else ""
        way = "remove them, freeze them with requires_grad_(False), or give a loss that looks at what they compute"
        if _draws(state.model) and "reconstruction" not in self.task.weights:
            way = (
                "the model draws a reconstruction that no loss looks at: build it without a decoder, or give a task "
                "with a term 'reconstruction'"
            )
        warnings.warn(f"fit: {idle[0]}{more} had no gradient in the first step and stay untrained: {way}", stacklevel=5)


def _draws(model: Any) -> bool:
    return getattr(model, "draws", getattr(model, "decoder", None) is not None)
