"""What a task is: everything about a run that depends on what is learned."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from lightning_fabric import Fabric
from torch import Tensor

from torchcaps.data import Batch, make_loader
from torchcaps.errors import UserError
from torchcaps.losses import combine
from torchcaps.train.cudagraph import compiled
from torchcaps.train.distributed import Distributed
from torchcaps.train.nonfinite import NonfiniteGuard, skips_on_device
from torchcaps.train.optim.sam import SAM
from torchcaps.train.recipe import AugmentSection, LossSection, OptimSection, Recipe
from torchcaps.train.reports.page import Report
from torchcaps.train.state import State
from torchcaps.train.tasks.test_sets import own_test_set
from torchcaps.train.totals import Totals

EVALUATION_BATCH = 256


class Evaluation(Protocol):
    """What `Task.evaluate` returns: at least these two means over the data."""

    @property
    def loss(self) -> float: ...
    @property
    def score(self) -> float: ...


class Scores(NamedTuple):
    """An Evaluation of two means."""

    loss: float
    score: float


class Loss(NamedTuple):
    """The loss of a batch.

    Attributes:
        value: () the mean that is minimised.
        terms: each loss term, one value per example.
        correct: (B,) the task's measure of each example.
    """

    value: Tensor
    terms: dict[str, Tensor]
    correct: Tensor


@dataclass
class StepContext:
    """What a training step works with: the state of the run, its data, and the counters it updates."""

    state: State
    loader: Any
    optim: OptimSection
    fabric: Fabric
    dist: Distributed
    totals: Totals
    guard: NonfiniteGuard

    @property
    def skipped(self) -> Tensor | None:
        """1 where this step is skipped; None if a nonfinite loss ends the run."""
        return self.guard.bad if self.guard.skips else None


class Step(Protocol):
    """One training step on the examples (B,) of these indices. It works in place, so that it can be recorded."""

    def __call__(self, indices: Tensor) -> None: ...
    def loss(self, indices: Tensor) -> Tensor:
        """The loss of a batch without an update, to find a nonfinite layer."""
        ...

    def compiled(self) -> Step:
        """The same step with its forward passes compiled."""
        ...


class Task(ABC):
    """A task owns its losses, step, evaluation, summary fields and report. The loop knows nothing else of it.

    A task of your own derives from `ClassificationTask` or `SegmentationTask`, or from this class and defines `make`,
    `terms` and `correct`; see `register_task`.

    Attributes:
        weights: weights of the loss terms.
        measure: the name of what `correct` computes.
        learns_from: what its data is called in messages.
        loss_settings: keys of the recipe's section `loss` that its `make` reads.
    """

    weights: dict[str, float]
    measure: ClassVar[str]
    learns_from: ClassVar[str] = "data of its own"
    loss_settings: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def make(cls, model: Any, data: Any, section: LossSection) -> Task:
        """The task of a model, with the recipe's weights of the losses."""

    @abstractmethod
    def terms(self, output: Any, images: Tensor, targets: Tensor, /) -> dict[str, Tensor]:
        """Each loss that has a weight, one value per example."""

    @abstractmethod
    def correct(self, answers: Tensor, targets: Tensor, /) -> Tensor:
        """(B,) the measure of each example, in [0, 1]."""

    @classmethod
    def check_settings(cls, section: LossSection) -> None:
        """Raise a UserError if the recipe's section `loss` sets what `make` does not read."""
        defaults = LossSection()
        for name in sorted(section.model_fields_set):
            value = getattr(section, name)
            if value and value != getattr(defaults, name) and name not in cls.loss_settings:
                called = cls.__name__.removesuffix("Task").lower()
                raise UserError(f"loss.{name} is not for {called}, which has loss.{', loss.'.join(cls.loss_settings)}")

    @classmethod
    def model_options(cls, recipe: Recipe, data: Any) -> dict[str, Any]:
        """Options of the model that follow from the data: the image shape, and what goes with it."""
        return {"image_shape": data.image_shape}

    @classmethod
    def evaluate_saved(cls, model: Any, data: str | None, views: bool, rejection: bool) -> dict[str, Any]:
        """What `torchcaps eval` finds for a saved model; see `evaluate_model`."""
        examples, name = own_test_set(model, data)
        found = cls.make(model, examples, LossSection()).evaluate(model, examples)
        return {"data": name, cls.measure: found.score, "loss": found.loss, "n": len(examples)}

    @torch.no_grad()
    def evaluate(self, model: Any, data: Any) -> Any:
        """Evaluate a model on a data set, without augmentation; returns an Evaluation."""
        loader, totals, was_training = (
            make_loader(data, model.device),
            Totals(model.device, self.measure),
            model.training,
        )
        model.eval()
        try:
            for indices in torch.arange(len(loader)).split(EVALUATION_BATCH):
                images, targets = loader.take(indices.to(loader.index_device))[:2]
                output = model(images, targets)
                terms = self.terms(output, images, targets)
                totals.add(combine(terms, self.weights), terms, self.correct(self.answers(output), targets))
        finally:
            model.train(was_training)
        means = totals.means()
        return Scores(means["loss"], means[self.measure])

    def answers(self, output: Any) -> Tensor:
        """What `correct` compares with the targets."""
        return output.lengths

    def example_weights(self, targets: Tensor, /) -> Tensor | None:
        """(B,) weights of the examples in the loss, or None."""
        return None

    def check_augment(self, section: AugmentSection, channels: int) -> None:
        """Raise a UserError for random changes that these images do not allow, or that this task cannot learn from."""
        for name in ("saturation", "hue"):
            if getattr(section, name) and channels != 3:
                raise UserError(
                    f"augment.{name}: only images of 3 channels have colours, these have {channels}: use "
                    "augment.brightness and augment.contrast, or data.channels=3"
                )

    def anneal(self, progress: float) -> None:  # noqa: B027
        """Set what changes in the course of training, from 0 to 1."""

    def prepare(self, state: State, recipe: Recipe, device: torch.device) -> None:  # noqa: B027
        """Add to the state of a new run what this task needs beside the model and its optimizer."""

    def make_step(self, context: StepContext) -> Step:
        """The training step."""
        return SupervisedStep(self, context)

    def calibrate(self, model: Any, data: Any, validation: Any) -> dict[str, Any]:
        """Set what is set after training; returns fields of the summary."""
        return {}

    def origin(self, recipe: Recipe, data: Any) -> dict[str, Any]:
        """What a saved model says about its training, beside recipe, seed and data."""
        return {}

    def summarise(self, results: Mapping[str, Any], parts: Mapping[str, Any], model: Any) -> dict[str, Any]:
        """Further fields of the summary, by the evaluations of the parts "validation" and "test"."""
        return {}

    def baselines(self, train: Any, held_out: Any) -> dict[str, Any]:
        """What simple methods reach on held-out data, having learned from the training data; for train.baselines."""
        return {}

    def write_report(self, report: Report, part: Any, result: Any) -> Path:
        """Write report.html, and what else a run of this task leaves.

        Args:
            report: the page without this task's sections.
            part: the data that was evaluated last; empty if there is none.
            result: its evaluation, or None.
        """
        return report.write([])


class SupervisedStep:
    """A step of one network on images and targets: forward, backward, and with SAM both once more."""

    def __init__(self, task: Task, context: StepContext):
        self.task, self.context = task, context
        state, fabric = context.state, context.fabric
        self.wrapped = fabric.setup_module(state.model)
        self.optimizer: Any = fabric.setup_optimizers(state.optimizer)
        # With one process Fabric's wrapper adds nothing to the forward pass except graph breaks.
        self.network = state.model if context.dist.size == 1 else self.wrapped
        rho = context.optim.sam_rho
        self.sam = SAM(state.model.parameters(), rho) if rho else None
        self.forward, self.check_loss = self._forward, context.guard.check_loss
        self.skips_on_device = skips_on_device(state.optimizer) and not context.dist.sharded

    def compiled(self) -> SupervisedStep:
        """The same step with its forward pass compiled."""
        step = copy.copy(self)
        step.forward, step.check_loss = compiled(self._forward), compiled(self.context.guard.check_loss)
        return step

    def loss(self, indices: Tensor) -> Tensor:
        """The loss of a batch on the bare network, without an update."""
        context = self.context
        return self._forward(context.loader.take(indices, context.state.generator), context.state.model).value

    def __call__(self, indices: Tensor) -> None:
        context, guard = self.context, self.context.guard
        shard = context.dist.shard_batch(context.loader.take(indices, context.state.generator))
        batch = Batch(*shard.values)
        self.optimizer.zero_grad()
        found = self.forward(batch, self.network)
        self._backward(found.value, shard.weight)
        self.check_loss(found.value)
        if self.sam is not None:
            with self.sam.perturbed():
                self.optimizer.zero_grad()
                perturbed = self.forward(batch, self.network).value
                self._backward(perturbed, shard.weight)
            self.check_loss(perturbed, True)
        guard.check_gradients(context.state.model.parameters())
        guard.sync(context.dist)
        if context.optim.clip is not None:
            context.fabric.clip_gradients(
                self.wrapped, self.optimizer, max_norm=context.optim.clip, error_if_nonfinite=False
            )
        if self.skips_on_device or not guard.bad:
            self.optimizer.step()
        if shard.counted:
            context.totals.add(*found, context.skipped)

    def _forward(self, batch: Batch, network: torch.nn.Module) -> Loss:
        images, targets, parts, labels = batch
        with self.context.fabric.autocast():
            output = network(images, targets) if labels is None else network(images, targets, each=labels)
        terms = _checked(self.task, self.task.terms(output, images if parts is None else parts, targets), targets)
        loss = combine(terms, self.task.weights, self.task.example_weights(targets))
        return Loss(loss, terms, self.task.correct(self.task.answers(output), targets))

    def _backward(self, loss: Tensor, weight: float) -> None:
        self.context.fabric.backward(loss if self.context.dist.size == 1 else loss * weight)


def _checked(task: Task, terms: Any, targets: Tensor) -> dict[str, Tensor]:
    """What a task's `terms` returned."""
    called = f"{type(task).__name__}.terms"
    if not isinstance(terms, dict):
        raise UserError(f"{called} returned a {type(terms).__name__}: return a dict of names and losses (B,)")
    for name, term in terms.items():
        if not isinstance(term, Tensor) or term.shape != targets.shape[:1]:
            found = tuple(term.shape) if isinstance(term, Tensor) else f"a {type(term).__name__}"
            raise UserError(f"{called}: {name!r} must have one value for each example ({len(targets)},), got {found}")
    return terms
