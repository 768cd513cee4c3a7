"""The training loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from torchcaps.data import epoch_order, make_loader, num_batches
from torchcaps.data.loader import plan_epoch
from torchcaps.train.callbacks import Callback
from torchcaps.train.cudagraph import RecordedStep, tuned
from torchcaps.train.distributed import Distributed
from torchcaps.train.nonfinite import Diverged, NonfiniteGuard, find_nonfinite_layer
from torchcaps.train.optim.ema import update_average
from torchcaps.train.optim.parts import Freezer
from torchcaps.train.optim.schedule import learning_rate
from torchcaps.train.recipe import Recipe, TrainSection
from torchcaps.train.state import State, improved_epoch
from torchcaps.train.tasks.base import Step, StepContext, Task
from torchcaps.train.totals import Totals

CHECK_SECONDS = 1.0  # between two checks for nonfinite losses: each makes an accelerator wait
COMPILE_FROM_STEPS = 10_000  # of a run: the compiler takes 10 to 40 s, and saves 0.2 to 3 ms a step on an H200


class Interrupted(Exception):
    """The run was asked to stop, after a whole step; its state can be saved and resumed."""


def train(
    state: State, train_data: Any, validation: Any, task: Task, recipe: Recipe, fabric: Fabric, callback: Callback
) -> None:
    """Train until the recipe's last epoch, from wherever the state is."""
    settings = recipe.train
    data = make_loader(train_data, fabric.device, **recipe.augment.model_dump())
    steps_per_epoch = num_batches(len(data) * settings.repeat, settings.batch_size)
    total_steps = settings.epochs * steps_per_epoch
    dist, totals = Distributed(fabric), Totals(fabric.device, task.measure)
    optimizers = [] if dist.sharded else state.optimizers.values()  # sharded steps are skipped by Python
    guard = NonfiniteGuard(fabric.device, optimizers, state.step, settings.on_nan == "skip")
    context = StepContext(state, data, recipe.optim, fabric, dist, totals, guard)
    freezer = Freezer(state.model, recipe.transfer)
    with tuned(fabric.device, tensor_cores=settings.precision != "fp32"), freezer.active():
        while not finished(state, settings, task.measure):
            if freezer.start_epoch(state.epoch):  # a recorded step knows which weights have gradients
                step = task.make_step(context)
                take_step = _recorded(step, state, settings, total_steps, dist, data.on_device)
            state.model.train()
            freezer.set_modes(state.epoch)
            # Sums from before a resume are of all ranks together, so only rank 0 has them; all ranks have the names.
            totals.start(state.totals if dist.is_main else dict.fromkeys(state.totals, 0.0))
            order = _epoch_order(state, settings, data)
            plan_epoch(data, order, settings.batch_size, state.batch, dist.share)
            check = _NonfiniteCheck(step, guard, dist, state, order, settings.batch_size, steps_per_epoch)
            started, seconds_before = time.perf_counter(), state.seconds
            for batch in range(state.batch, steps_per_epoch):
                state.set_learning_rates(recipe.optim, total_steps)
                state.model.anneal(state.step / total_steps)
                task.anneal(state.step / total_steps)
                take_step(order[batch * settings.batch_size : (batch + 1) * settings.batch_size])
                state.step, state.batch = state.step + 1, batch + 1
                if state.average is not None:
                    update_average(state.average, state.model, settings.ema, state.step)
                callback.on_step(state, totals)
                stop, save = dist.any_rank(callback.should_stop(), callback.should_save(), step=state.step)
                if stop or (save and state.batch < steps_per_epoch):  # after the last batch the epoch is saved
                    check()  # a nonfinite state must not replace the last good checkpoint
                    state.totals = totals.read(dist)
                    state.seconds = seconds_before + time.perf_counter() - started
                    if stop:
                        raise Interrupted
                    callback.save(state)
                if dist.due(check.is_due(), state.step):
                    check()
            means = totals.means("train_", dist)  # waits for the device, so the clock is read after it
            seconds = time.perf_counter() - started
            check(end_of_epoch=True)
            state.epoch, state.batch, state.totals = state.epoch + 1, 0, {}
            state.seconds = seconds_before + seconds
            line = {"epoch": state.epoch, "step": state.step, **means}
            line["learning_rate"] = learning_rate(state.step - 1, total_steps, recipe.optim)
            line["images_per_second"] = dist.sum([totals.new_examples])[0] / seconds
            line |= {"skipped_steps": check.skipped} if check.skipped else {}
            line |= _validate(state, validation, task, dist)
            state.history.append(line)
            callback.on_epoch(state, line)


def finished(state: State, settings: TrainSection, measure: str) -> bool:
    """Whether the last epoch is over, or validation ended the run."""
    return state.epoch >= settings.epochs or why_stopped(state, settings, measure) is not None


def why_stopped(state: State, settings: TrainSection, measure: str) -> str | None:
    """The setting by which the validation measure ends the run, if it does."""
    reached = state.history[-1].get(f"val_{measure}", 0.0) if state.history else 0.0
    if settings.stop_at is not None and reached >= settings.stop_at:
        return "train.stop_at"
    better = improved_epoch(state.history, measure)
    waited = settings.patience is not None and better > 0 and state.epoch - better >= settings.patience
    return "train.patience" if waited else None


def _recorded(
    step: Step, state: State, settings: TrainSection, total_steps: int, dist: Distributed, on_device: bool
) -> Callable[[Tensor], None]:
    """On one CUDA device the step is recorded as a CUDA graph, for a long run also compiled."""
    if not (settings.fast and on_device and dist.fabric.device.type == "cuda" and dist.size == 1):
        return step
    compiling = total_steps >= COMPILE_FROM_STEPS if settings.compile is None else settings.compile
    return RecordedStep(step.compiled() if compiling else step, step, settings.batch_size, state.generator)


def _epoch_order(state: State, settings: TrainSection, data: Any) -> Tensor:
    """The examples of this epoch, in the order that the seed gives: every pass over the images in its own."""
    passes = range(state.epoch * settings.repeat, (state.epoch + 1) * settings.repeat)
    return torch.cat([epoch_order(len(data), settings.seed, number) for number in passes]).to(data.index_device)


def _validate(state: State, validation: Any, task: Task, dist: Distributed) -> dict[str, float]:
    if validation is None:
        return {}

    def measured() -> dict[str, float]:
        found = task.evaluate(state.final, validation)
        return {"val_loss": found.loss, f"val_{task.measure}": found.score, "validation_images": len(validation)}

    return dist.broadcast_from_main(measured, all_compute=dist.sharded)


class _NonfiniteCheck:
    """Reads the guard's counters during an epoch: a nonfinite step ends the run, or is counted where they are skipped.

    Attributes:
        skipped: skipped steps of this epoch.
    """

    def __init__(
        self,
        step: Step,
        guard: NonfiniteGuard,
        dist: Distributed,
        state: State,
        order: Tensor,
        batch_size: int,
        steps: int,
    ):
        self.step, self.guard, self.dist, self.state = step, guard, dist, state
        self.order, self.batch_size, self.steps = order, batch_size, steps
        self.skipped, self._next = 0, time.perf_counter() + CHECK_SECONDS

    def is_due(self) -> bool:
        return time.perf_counter() > self._next

    def __call__(self, end_of_epoch: bool = False) -> None:
        self._next = time.perf_counter() + CHECK_SECONDS
        first, skipped = self.guard.read()
        if first is not None and not self.guard.skips:
            start = (first - 1) % self.steps * self.batch_size
            where = "train without --shard to find the layer"  # searching for it, the ranks would lose each other
            if not self.dist.sharded:
                batch = self.order[start : start + self.batch_size]
                where = find_nonfinite_layer(self.state.model, lambda: self.step.loss(batch))
            raise Diverged(f"the loss became NaN or infinite in step {first} (epoch {self.state.epoch + 1}): {where}")
        self.skipped += skipped
        if end_of_epoch and self.skipped == self.steps:
            raise Diverged(f"the loss was NaN or infinite in every step of epoch {self.state.epoch + 1}")
