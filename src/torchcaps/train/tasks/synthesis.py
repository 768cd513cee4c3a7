"""Synthesis: images from label maps, by a generator and a discriminator."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from torchcaps import losses
from torchcaps.data import SegmentationDataset, tiles
from torchcaps.data.mixing import check_masks_unmixed
from torchcaps.errors import UserError
from torchcaps.losses import combine
from torchcaps.metrics.similarity import ssim
from torchcaps.models import Discriminator, SynthesisModel
from torchcaps.models.synthesis import generate_images
from torchcaps.train.cudagraph import compiled
from torchcaps.train.recipe import AugmentSection, LossSection, Recipe
from torchcaps.train.reports.page import Report
from torchcaps.train.reports.synthesis import synthesis_sections
from torchcaps.train.state import State, make_optimizer
from torchcaps.train.tasks.base import Loss, StepContext, Task
from torchcaps.train.tasks.segmentation import SegmentationTask

ADVERSARIAL = ("bce", "least_squares")


class SynthesisResult(NamedTuple):
    """The evaluation of a generator.

    Attributes:
        images: (C, H, W) in [0, 1], drawn from each label map.
        real: the pairs that were drawn again, cut to the size that the model draws.
        loss, score: means over images; the score is the similarity with the real image.
    """

    images: list[Tensor]
    real: SegmentationDataset
    loss: float
    score: float


class GeneratorOutput(NamedTuple):
    """What the generator's losses are computed from.

    Attributes:
        scores: the discriminator's logits for the drawn images.
        images: (B, C, H, W) drawn.
        features: pairs of the discriminator's features of drawn and of real images, or None.
    """

    scores: Tensor
    images: Tensor
    features: tuple[list[Tensor], list[Tensor]] | None = None


@dataclass(frozen=True)
class SynthesisTask(Task):
    """An image for a label map: targets (B, H, W), class ids, 255 where the class is unknown."""

    weights: dict[str, float]  # of the generator's loss terms
    smoothing: float = 0.0

    measure = "similarity"
    learns_from = "images with masks"
    loss_settings = (*ADVERSARIAL, "l1", "features", "label_smoothing")

    @classmethod
    def make(cls, model: SynthesisModel, data: Any, section: LossSection) -> SynthesisTask:
        cls.check_settings(section)
        given = {name: getattr(section, name) for name in (*ADVERSARIAL, "l1", "features")}
        if all(given[name] for name in ADVERSARIAL):
            raise UserError("loss: choose one of bce and least_squares")
        chosen = any(given[name] is not None for name in ADVERSARIAL)
        defaults = {"bce": 0.0 if chosen else 1.0, "least_squares": 0.0, "l1": 100.0, "features": 0.0}
        weights = {name: defaults[name] if weight is None else weight for name, weight in given.items()}
        weights = {name: weight for name, weight in weights.items() if weight}
        if not weights:
            raise UserError("loss: every weight is 0, so there is nothing to learn")
        return cls(weights, section.label_smoothing)

    @classmethod
    def model_options(cls, recipe: Recipe, data: SegmentationDataset) -> dict[str, Any]:
        return SegmentationTask.model_options(recipe, data)

    @property
    def adversarial(self) -> str:
        """The kind of the adversarial loss. The discriminator is trained even where the generator's loss ignores its
        score, for its features."""
        return next((name for name in ADVERSARIAL if name in self.weights), "bce")

    def check_augment(self, section: AugmentSection, channels: int) -> None:
        super().check_augment(section, channels)
        check_masks_unmixed(section.mixup)

    def terms(self, output: GeneratorOutput, images: Tensor, masks: Tensor) -> dict[str, Tensor]:
        """The generator's losses, one value per example: to be taken for real, and to be near the real image."""
        taken = losses.adversarial_loss(output.scores, real=True, kind=self.adversarial)
        terms = {self.adversarial: taken, "l1": losses.l1_loss(output.images, images, masks)}
        if output.features is not None:
            terms["features"] = losses.feature_loss(*output.features)
        return terms

    def discriminator_loss(self, real: Tensor, drawn: Tensor) -> Tensor:
        """(B,) the discriminator's loss, from its logits for real and for drawn images."""
        for_real = losses.adversarial_loss(real, real=True, kind=self.adversarial, smoothing=self.smoothing)
        return (for_real + losses.adversarial_loss(drawn, real=False, kind=self.adversarial)) / 2

    def correct(self, drawn: Tensor, images: Tensor) -> Tensor:
        """(B,) 1 − mean absolute difference between the drawn and the real image, whose values are in [0, 1]."""
        return 1 - (drawn - images).abs().flatten(1).mean(1)

    def prepare(self, state: State, recipe: Recipe, device: torch.device) -> None:
        """Add the discriminator and its optimizer."""
        if recipe.optim.sam_rho:
            raise UserError("optim.sam_rho is not for synthesis: two networks share one loss; omit it")
        generator, settings = cast(SynthesisModel, state.model), recipe.discriminator
        side, needed = min(generator.image_shape[1:]), 3 * 2**settings.depth  # so that the last layers have an input
        if side < needed:
            raise UserError(
                f"discriminator.depth={settings.depth}: it needs windows of at least {needed} pixels, these have "
                f"{side}; give a smaller depth, or a larger augment.crop"
            )
        inputs = generator.num_classes - 1 + generator.image_shape[0]
        state.discriminator = Discriminator(inputs, **settings.model_dump(exclude={"lr"})).to(device)
        state.discriminator_optimizer = make_optimizer(state.discriminator, recipe.optim, device, settings.lr)

    def make_step(self, context: StepContext) -> GANStep:
        return GANStep(self, context)

    def evaluate(self, model: SynthesisModel, data: SegmentationDataset) -> SynthesisResult:
        """Draw these label maps, each with its own noise, the same every time; the loss is the L1 loss alone."""
        real = tiles(data, *model.image_shape[1:])
        images = generate_images(model, real.masks)
        loss, similarity = 0.0, 0.0
        for drawn, image, mask in zip(images, real.images, real.masks):
            true = image[None].float() / 255
            loss += self.weights.get("l1", 0.0) * losses.l1_loss(drawn[None], true, mask[None]).item()
            similarity += self.correct(drawn[None], true).item()
        count = max(1, len(real))
        return SynthesisResult(images, real, loss / count, similarity / count)

    @classmethod
    def evaluate_saved(cls, model: SynthesisModel, data: str | None, views: bool, rejection: bool) -> dict[str, Any]:
        raise UserError("this model draws images: judge it with `torchcaps eval`, or torchcaps.train.experiments.judge")

    def origin(self, recipe: Recipe, data: Any) -> dict[str, Any]:
        return {"judge": recipe.judge}

    def summarise(self, results: Mapping[str, SynthesisResult], parts: Mapping[str, Any], model: Any) -> dict[str, Any]:
        """The structural similarity of drawn and real images."""
        return {
            f"{short}_ssim": ssim(results[name].images, [image.float() / 255 for image in results[name].real.images])
            for short, name in (("val", "validation"), ("test", "test"))
            if name in results
        }

    def write_report(self, report: Report, part: Any, result: SynthesisResult | None) -> Path:
        return report.write(synthesis_sections(cast(SynthesisModel, report.model), result))


class GANStep:
    """A step of generator and discriminator.

    First the discriminator learns to tell the batch from what the generator draws from its label maps, then the
    generator learns from the discriminator as it now is. The images are drawn once.
    """

    def __init__(self, task: SynthesisTask, context: StepContext):
        self.task, self.context = task, context
        state, fabric = context.state, context.fabric
        self.generator = cast(SynthesisModel, state.model)
        self.discriminator = cast(Discriminator, state.discriminator)
        self.wrapped = fabric.setup_module(state.model)
        self.optimizer: Any = fabric.setup_optimizers(state.optimizer)
        self.wrapped_discriminator, self.discriminator_optimizer = fabric.setup(
            self.discriminator, cast(torch.optim.Optimizer, state.discriminator_optimizer)
        )
        single = context.dist.size == 1  # as in SupervisedStep
        self._generator: nn.Module = self.generator if single else self.wrapped
        self._discriminator: nn.Module = self.discriminator if single else self.wrapped_discriminator
        self.draw, self.discriminator_loss = self._draw, self._discriminator_loss
        self.generator_loss = self._generator_loss

    def compiled(self) -> GANStep:
        """The same step with its forward passes compiled."""
        step = copy.copy(self)
        step.draw, step.discriminator_loss = compiled(self._draw), compiled(self._discriminator_loss)
        step.generator_loss = compiled(self._generator_loss)
        return step

    def loss(self, indices: Tensor) -> Tensor:
        """The generator's loss on a batch, without an update."""
        images, masks, noise = self._batch(indices)
        with self.context.fabric.autocast():
            drawn = self.generator(masks, noise)
        return self._generator_loss(masks, images, drawn).value

    def __call__(self, indices: Tensor) -> None:
        context, guard, fabric = self.context, self.context.guard, self.context.fabric
        shard = context.dist.shard_batch(self._batch(indices))
        images, masks, noise = shard.values
        drawn = self.draw(masks, noise)

        self.discriminator.requires_grad_(True)
        self.discriminator_optimizer.zero_grad()
        discriminator_loss = self.discriminator_loss(masks, images, drawn.detach())
        fabric.backward(discriminator_loss.mean() * shard.weight)
        guard.check_loss(discriminator_loss)
        self._update(self.discriminator, self.wrapped_discriminator, self.discriminator_optimizer)

        self.discriminator.requires_grad_(False)  # gradients pass through it to the generator only
        self.optimizer.zero_grad()
        found = self.generator_loss(masks, images, drawn)
        fabric.backward(found.value * shard.weight)
        guard.check_loss(found.value, again=True)
        self._update(self.generator, self.wrapped, self.optimizer)
        if shard.counted:
            terms = {**found.terms, "discriminator": discriminator_loss}
            context.totals.add(found.value, terms, found.correct, context.skipped)

    def _batch(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images, label maps and noise."""
        generator = self.context.state.generator
        images, masks = self.context.loader.take(indices, generator)[:2]
        return images, masks, torch.randn(len(masks), self.generator.z, generator=generator, device=masks.device)

    def _update(self, network: nn.Module, wrapped: Any, optimizer: Any) -> None:
        context, clip = self.context, self.context.optim.clip
        context.guard.check_gradients(network.parameters())
        context.guard.sync(context.dist)
        if clip is not None:
            context.fabric.clip_gradients(wrapped, optimizer, max_norm=clip, error_if_nonfinite=False)
        optimizer.step()

    def _draw(self, masks: Tensor, noise: Tensor) -> Tensor:
        with self.context.fabric.autocast():
            return self._generator(masks, noise)

    def _discriminator_loss(self, masks: Tensor, images: Tensor, drawn: Tensor) -> Tensor:
        both = torch.cat([self.generator.discriminator_input(masks, each) for each in (images, drawn)])
        return self.task.discriminator_loss(*self._discriminator(both).chunk(2))

    def _generator_loss(self, masks: Tensor, images: Tensor, drawn: Tensor) -> Loss:
        *features, scores = self.discriminator.features(self.generator.discriminator_input(masks, drawn))
        real = None
        if "features" in self.task.weights:
            with torch.no_grad():
                real = self.discriminator.features(self.generator.discriminator_input(masks, images))[:-1]
        output = GeneratorOutput(scores, drawn, None if real is None else (features, real))
        terms = self.task.terms(output, images, masks)
        return Loss(combine(terms, self.task.weights), terms, self.task.correct(drawn.detach(), images))
