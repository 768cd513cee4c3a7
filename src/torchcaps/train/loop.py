"""The training loop and the evaluation: two plain functions."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, overload

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import LightningEnvironment
from lightning_fabric.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.data import (
    Batch,
    Dataset,
    DeviceLoader,
    SegmentationDataset,
    batches,
    centre_crop,
    epoch_order,
    make_loader,
    num_batches,
)
from torchcaps.errors import UserError
from torchcaps.losses import combine
from torchcaps.models import ImageModel, SegmentationModel, SynthesisModel
from torchcaps.train.checkpoint import State
from torchcaps.train.cudagraph import RecordedStep, compiled, tuned
from torchcaps.train.distributed import Distributed, torchrun_world_size
from torchcaps.train.dtensor import pieces
from torchcaps.train.failures import about_memory
from torchcaps.train.nonfinite import Diverged, Divergence, find_nonfinite_layer
from torchcaps.train.optim.sam import SAM
from torchcaps.train.optim.schedule import learning_rate
from torchcaps.train.recipe import Recipe, TrainSection
from torchcaps.train.tasks.classification import ClassificationTask, Task
from torchcaps.train.tasks.segmentation import Masks, SegmentationTask, evaluate_masks
from torchcaps.train.tasks.synthesis import Drawings, SynthesisTask, duel, evaluate_drawings

EVALUATION_BATCH = 256
CHECK_EVERY = 1.0  # seconds between two looks at whether the loss still is a number: each makes an accelerator wait
COMPILE_FROM = 10_000  # steps of a run: the compiler takes 10 to 40 s, and saves 0.2 to 3 ms a step on an H200
AVERAGE_EVERY = 8  # steps between two updates of the averaged weights: they move too little in one step to matter


class Watcher(Protocol):
    """Whoever looks on: the progress bar, the log files, the checkpoints."""

    def step(self, state: State, totals: Totals) -> None: ...
    def epoch(self, state: State, line: dict[str, float]) -> None: ...
    def stopping(self) -> bool: ...
    def due(self) -> bool: ...
    def save(self, state: State) -> None: ...


class Interrupted(Exception):
    """The run was asked to stop, after a whole step; its state can be saved and resumed."""


def train(
    state: State,
    train_data: Dataset | SegmentationDataset,
    validation: Dataset | SegmentationDataset | None,
    task: Task,
    recipe: Recipe,
    fabric: Fabric,
    watcher: Watcher,
) -> None:
    """Train until the recipe's last epoch, from wherever the state is."""
    settings, clip = recipe.train, recipe.optim.clip
    data = make_loader(train_data, fabric.device, **recipe.augment.model_dump())
    steps_per_epoch = num_batches(len(data) * settings.repeat, settings.batch_size)
    total_steps = settings.epochs * steps_per_epoch
    team, totals = Distributed(fabric), Totals(fabric.device, task.measure)
    model = fabric.setup_module(state.model)
    optimizer: Any = fabric.setup_optimizers(state.optimizer)
    skips = settings.on_nan == "skip"
    told = [] if team.in_pieces else state.optimizers.values()  # otherwise Python decides
    divergence = Divergence(fabric.device, told, state.step, skips)
    uphill = SAM(state.model.parameters(), recipe.optim.sharpness) if recipe.optim.sharpness else None

    # With one process Fabric's wrapper adds nothing to the forward pass but what breaks a compiled graph in pieces.
    network = state.model if team.size == 1 else model

    def measure(batch: Batch, network: nn.Module = network) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        images, targets, parts, labels = batch
        with fabric.autocast():
            output = network(images, targets) if labels is None else network(images, targets, each=labels)
        terms = task.terms(output, images if parts is None else parts, targets)
        loss = combine(terms, task.weights, task.example_weights(targets))
        return loss, terms, task.correct(output.lengths, targets)

    def step(
        indices: Tensor, measure: Callable[..., Any] = measure, look: Callable[..., Any] = divergence.look
    ) -> None:
        part = team.part(data.take(indices, state.generator))
        batch = Batch(*part.values)
        optimizer.zero_grad()
        loss, terms, correct = measure(batch)
        fabric.backward(loss if team.size == 1 else loss * part.weight)
        look(loss)
        if uphill is not None:
            with uphill.there():
                optimizer.zero_grad()
                worst = measure(batch)[0]
                fabric.backward(worst if team.size == 1 else worst * part.weight)
            look(worst, True)
        divergence.look_at_gradients(state.model.parameters())
        divergence.agree(team)
        if clip is not None:
            fabric.clip_gradients(model, optimizer, max_norm=clip, error_if_nonfinite=False)
        if not (team.in_pieces and divergence.bad):
            optimizer.step()
        if part.counted:
            totals.add(loss, terms, correct, divergence.bad if skips else None)

    def check(order: Tensor) -> int:
        """How many steps were passed over since this was last asked; an error where the first of them ends the run."""
        first, passed = divergence.read()
        if first is not None and not skips:
            start = (first - 1) % steps_per_epoch * settings.batch_size
            where = "which layer it was is found without --shard"  # looking for it, processes would lose each other
            if not team.in_pieces:
                where = find_nonfinite_layer(state.model, lambda: loss_of(order[start : start + settings.batch_size]))
            raise Diverged(f"the loss became nan or infinite in step {first} (epoch {state.epoch + 1}): {where}")
        return passed

    plain: Callable[..., None] = step
    loss_of: Callable[[Tensor], Tensor] = lambda indices: measure(  # noqa: E731
        data.take(indices, state.generator), state.model
    )[0]
    parts: dict[str, Callable[..., Any]] = {"measure": measure, "look": divergence.look}
    if isinstance(task, SynthesisTask):
        plain, parts, loss_of = duel(state, task, data, clip, team, optimizer, model, totals, divergence)
    take_step: Callable[[Tensor], None] = plain
    if settings.fast and data.on_device and fabric.device.type == "cuda" and team.size == 1:
        compiling = total_steps >= COMPILE_FROM if settings.compile is None else settings.compile
        quick = partial(plain, **{name: compiled(part) for name, part in parts.items()}) if compiling else plain
        take_step = RecordedStep(quick, plain, settings.batch_size, state.generator)
    with tuned(fabric.device, tensor_cores=settings.precision != "fp32"):
        while not finished(state, settings, task.measure):
            model.train()
            # Those from before are of all processes together, so only the first has them; the names all have.
            totals.start(state.totals if team.first else dict.fromkeys(state.totals, 0.0))
            passes = range(state.epoch * settings.repeat, (state.epoch + 1) * settings.repeat)
            order = torch.cat([epoch_order(len(data), settings.seed, number) for number in passes]).to(
                data.index_device
            )
            started, seconds_before = time.perf_counter(), state.seconds
            next_check, passed_over = started + CHECK_EVERY, 0
            for batch in range(state.batch, steps_per_epoch):
                for each in state.optimizers.values():
                    set_learning_rate(each, learning_rate(state.step, total_steps, recipe.optim))
                state.model.anneal(state.step / total_steps)
                task.anneal(state.step / total_steps)
                take_step(order[batch * settings.batch_size : (batch + 1) * settings.batch_size])
                state.step, state.batch = state.step + 1, batch + 1
                if state.average is not None:
                    update_average(state.average, state.model, settings.ema, state.step)
                watcher.step(state, totals)
                stop, save = team.any(watcher.stopping(), watcher.due(), step=state.step)
                if stop or (save and state.batch < steps_per_epoch):  # after the last batch the epoch is saved
                    passed_over += check(order)  # what diverged must not replace the last good checkpoint
                    state.totals = totals.read(team)
                    state.seconds = seconds_before + time.perf_counter() - started
                    if stop:
                        raise Interrupted
                    watcher.save(state)
                if team.due(time.perf_counter() > next_check, state.step):
                    passed_over += check(order)
                    next_check = time.perf_counter() + CHECK_EVERY
            means = totals.means("train_", team)  # waits for the device, so the clock is read after it
            seconds = time.perf_counter() - started
            passed_over += check(order)
            if passed_over == steps_per_epoch:
                raise Diverged(f"the loss was nan or infinite in every step of epoch {state.epoch + 1}")
            state.epoch, state.batch, state.totals = state.epoch + 1, 0, {}
            state.seconds = seconds_before + seconds
            line = {
                "epoch": state.epoch,
                "step": state.step,
                **means,
                "learning_rate": learning_rate(state.step - 1, total_steps, recipe.optim),
                "images_per_second": team.sum([totals.new_examples])[0] / seconds,
            }
            if passed_over:
                line["passed_over"] = passed_over
            if validation is not None:
                measured = partial(_validate, state.final, validation, task)
                line |= team.broadcast_from_main(measured, all_work=team.in_pieces)
            state.history.append(line)
            watcher.epoch(state, line)


def _validate(model: ImageModel, data: Dataset | SegmentationDataset, task: Task) -> dict[str, float]:
    result = evaluate(model, data, task)
    return {"val_loss": result.loss, f"val_{task.measure}": result.right}


def finished(state: State, settings: TrainSection, measure: str) -> bool:
    """Whether the last epoch is over, or what was asked for is reached on validation images."""
    reached = state.history[-1].get(f"val_{measure}", 0.0) if state.history else 0.0
    return state.epoch >= settings.epochs or (settings.stop_at is not None and reached >= settings.stop_at)


class Result(NamedTuple):
    """What an evaluation gives: lengths (N, J) in the order of the data, and means over it.

    right  the mean of the task's measure
    """

    lengths: Tensor
    loss: float
    right: float


Evaluated = Result | Masks | Drawings


@overload
def evaluate(model: ImageModel, data: Dataset, task: ClassificationTask, views: bool = False) -> Result: ...
@overload
def evaluate(model: ImageModel, data: Dataset | SegmentationDataset, task: Task, views: bool = False) -> Evaluated: ...
def evaluate(model: ImageModel, data: Dataset | SegmentationDataset, task: Task, views: bool = False) -> Evaluated:
    """A model's answers to a data set, in float32 and as they are: no augmentation, centre crops only; masks whole.

    views  answer by the mean over nine views of each image, moved by up to a pixel; the loss is that of the image
    """
    if isinstance(task, SegmentationTask):
        assert isinstance(model, SegmentationModel)
        assert isinstance(data, SegmentationDataset)
        return evaluate_masks(model, data, task)
    if isinstance(task, SynthesisTask):
        assert isinstance(model, SynthesisModel)
        assert isinstance(data, SegmentationDataset)
        return evaluate_drawings(model, data, task)
    assert isinstance(data, Dataset)
    return _evaluate_classes(model, data, task, views)


def _evaluate_classes(model: ImageModel, dataset: Dataset, task: Task, views: bool) -> Result:
    """In batches that fit into memory."""
    was_training, size = model.training, EVALUATION_BATCH
    model.eval()
    try:
        while True:
            try:
                return _evaluate_batches(model, dataset, task, views, size)
            except RuntimeError as error:
                if size == 1 or not about_memory(error):
                    raise
            size //= 2
    finally:
        model.train(was_training)


@torch.no_grad()
def _evaluate_batches(model: ImageModel, dataset: Dataset, task: Task, views: bool, size: int) -> Result:
    data = DeviceLoader(dataset, model.device)
    totals, lengths = Totals(model.device, task.measure), []
    for images, targets in batches(data, size, device=model.device, seed=0, epoch=0, shuffle=False):
        images = centre_crop(images, _crop_for(model, images))
        output = model(images, targets)
        terms = task.terms(output, images, targets)
        answers = output.lengths if not views else torch.stack([model(view).lengths for view in moved(images)]).mean(0)
        totals.add(combine(terms, task.weights), terms, task.correct(answers, targets))
        lengths.append(answers)
    means = totals.means()
    return Result(torch.cat(lengths).cpu(), means["loss"], means[task.measure])


def moved(images: Tensor) -> list[Tensor]:
    """Nine views of each image: as it is, and moved by one pixel in every direction, what enters being black."""
    height, width = images.shape[-2:]
    padded = functional.pad(images, (1, 1, 1, 1))
    return [padded[..., y : y + height, x : x + width] for y in range(3) for x in range(3)]


class Totals:
    """Sums over the examples of an epoch, kept on the device until somebody reads them.

    measure  what `correct` is called
    """

    def __init__(self, device: torch.device | str, measure: str):
        self._device, self.measure = device, measure
        self._sums: dict[str, Tensor] = {}  # added to in place: a recorded step knows them by their address
        self._examples = torch.zeros((), device=device)
        self.start({})

    def start(self, before: dict[str, float]) -> None:
        """Begin an epoch, with the sums of the part of it that ran before a resume: they go on from there, so that they
        are rounded as if it had not been interrupted."""
        self._resumed_at = int(before.get("examples", 0))
        for name in before:  # in this order in every process
            if name not in (*self._sums, "examples"):
                self._sums[name] = torch.zeros((), device=self._device)
        for name, value in self._sums.items():
            value.fill_(before.get(name, 0.0))
        self._examples.fill_(self._resumed_at)

    def add(self, loss: Tensor, terms: dict[str, Tensor], correct: Tensor, bad: Tensor | None = None) -> None:
        """bad: 1 where the step was passed over, and nothing of it counts."""
        sums = {"loss": loss.detach() * len(correct), self.measure: correct.sum()}
        sums |= {name: term.detach().sum() for name, term in terms.items()}
        if bad is not None:
            sums = {name: torch.where(bad > 0, 0.0, value) for name, value in sums.items()}
        for name, value in sums.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros((), device=self._device)
            self._sums[name] += value
        self._examples += len(correct) if bad is None else len(correct) * (1 - bad)

    @property
    def new_examples(self) -> int:
        """Since the epoch was begun or resumed."""
        return int(self._examples) - self._resumed_at

    def read(self, team: Distributed | None = None) -> dict[str, float]:
        """The sums so far: of this process, or of all."""
        sums = {name: float(value) for name, value in self._sums.items()} | {"examples": int(self._examples)}
        return sums if team is None else dict(zip(sums, team.sum(list(sums.values()))))

    def means(self, prefix: str = "", team: Distributed | None = None) -> dict[str, float]:
        sums = self.read(team)
        examples = max(1, sums.pop("examples"))
        return {prefix + name: value / examples for name, value in sums.items()}


def make_fabric(device: str, precision: str, devices: int = 1, nodes: int = 1, shard: bool = False) -> Fabric:
    """A kind of device: "auto", "cpu", "cuda" or "mps", and how many of them on how many machines; precision "auto" is
    bf16 convolutions on CUDA, fp32 elsewhere.

    shard  each process has a piece of every weight
    """
    kinds = {"auto": True, "cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = "cuda" if device == "gpu" else device
    if kind not in kinds:
        raise UserError(f"--device {device}: choose one of {', '.join(kinds)}")
    if not kinds[kind]:
        raise UserError(f"--device {device}: this machine, or this build of PyTorch, has none; use --device cpu")
    if kind == "auto":
        kind = next(name for name in ("cuda", "mps", "cpu") if kinds[name])
    mixed = precision == "bf16" or (precision == "auto" and kind == "cuda")
    asked = torchrun_world_size()
    if asked is not None and devices == nodes == 1:
        devices, nodes = asked
    if kind == "mps" and devices * nodes > 1:
        raise UserError("--devices: of this kind there is one; leave it out")
    if kind == "cuda" and devices > torch.cuda.device_count():
        raise UserError(f"--devices {devices}: this machine has {torch.cuda.device_count()}")
    strategy: Any = "ddp" if devices * nodes > 1 else "auto"
    if shard:
        if devices * nodes == 1:
            raise UserError("--shard: weights are shared out among processes; give --devices, two or more")
        strategy = ModelParallelStrategy(lambda model, mesh: model, devices * nodes, tensor_parallel_size=1)
    alone = asked is None and devices * nodes == 1  # whatever a job of SLURM says of its other tasks
    return Fabric(
        accelerator=kind,
        devices=devices,
        num_nodes=nodes,
        strategy=strategy,
        precision="bf16-mixed" if mixed else "32-true",
        plugins=[LightningEnvironment()] if alone else None,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        share = rate * group.get("share", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(share)  # in place: a recorded step knows it by its address
        else:
            group["lr"] = share


@torch.no_grad()
def update_average(average: ImageModel, model: ImageModel, decay: float, step: int) -> None:
    """Move the averaged weights towards the model's: slowly, but for the first steps, when there is little to keep.

    decay  of one step; after the first steps, one update in AVERAGE_EVERY steps stands for all of them
    """
    span = 1 if step <= 8 * AVERAGE_EVERY else AVERAGE_EVERY
    if step % span:
        return
    decay = min(decay, (1 + step) / (10 + step)) ** span
    torch._foreach_lerp_(pieces(average.parameters()), pieces(model.parameters()), 1 - decay)
    for (name, kept), current in zip(average.named_buffers(), model.buffers()):
        if name.endswith(("running_mean", "running_var")):  # of batch normalisation: they belong to the weights
            kept.lerp_(current, 1 - decay)
        else:
            kept.copy_(current)


def _crop_for(model: ImageModel, images: Tensor) -> int:
    return 0 if images.shape[1:] == model.image_shape else model.image_shape[1]
