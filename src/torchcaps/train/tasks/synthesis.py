"""Synthesis: what is learned of drawing images from label maps, by two networks of which one judges the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps import losses
from torchcaps.data import Crops, Resident, SegmentationDataset, tiles
from torchcaps.errors import UserError
from torchcaps.losses import combine
from torchcaps.models import Output, SynthesisModel
from torchcaps.models.synthesis import generate_images
from torchcaps.train.checkpoint import State
from torchcaps.train.distributed import Distributed
from torchcaps.train.nonfinite import Divergence
from torchcaps.train.recipe import LossSection

if TYPE_CHECKING:
    from torchcaps.train.loop import Totals

ADVERSARIES = ("bce", "least_squares")


@dataclass(frozen=True)
class SynthesisTask:
    """An image for a label map: targets (B, H, W), class ids, 255 where nothing is known."""

    weights: dict[str, float]  # of the generator's loss terms
    smoothing: float = 0.0

    measure = "similarity"  # what `correct` is called, averaged over examples

    @staticmethod
    def for_model(model: SynthesisModel, section: LossSection) -> SynthesisTask:
        others = ("margin", "spread", "reconstruction", "cross_entropy", "dice", "class_weights")
        if wrong := [name for name in others if getattr(section, name)]:
            raise UserError(
                f"loss.{wrong[0]} is not for drawn images: use loss.bce or loss.least_squares, loss.l1, loss.features"
            )
        given = {name: getattr(section, name) for name in (*ADVERSARIES, "l1", "features")}
        if all(given[name] for name in ADVERSARIES):
            raise UserError("loss: choose one of bce and least_squares")
        chosen = any(given[name] is not None for name in ADVERSARIES)
        usual = {"bce": 0.0 if chosen else 1.0, "least_squares": 0.0, "l1": 100.0, "features": 0.0}
        weights = {name: usual[name] if weight is None else weight for name, weight in given.items()}
        weights = {name: weight for name, weight in weights.items() if weight}
        if not weights:
            raise UserError("loss: every weight is 0, so there is nothing to learn")
        return SynthesisTask(weights, section.label_smoothing)

    @property
    def adversary(self) -> str:
        """The kind of the adversarial loss; without one the discriminator learns all the same, and what it says is not
        heard: at most what it notices."""
        return next((name for name in ADVERSARIES if name in self.weights), "bce")

    def terms(self, output: Output, images: Tensor, masks: Tensor) -> dict[str, Tensor]:
        """The generator's losses, one value per example: to be taken for real, and to be near the real image.

        output  lengths are the discriminator's logits for what was drawn, reconstruction is that
        """
        assert output.reconstruction is not None
        taken = losses.adversarial_loss(output.lengths, real=True, kind=self.adversary)
        return {self.adversary: taken, "l1": losses.l1_loss(output.reconstruction, images, masks)}

    def blame(self, real: Tensor, drawn: Tensor) -> Tensor:
        """(B,): the discriminator's loss, from its logits for real and for drawn images."""
        for_real = losses.adversarial_loss(real, real=True, kind=self.adversary, smoothing=self.smoothing)
        return (for_real + losses.adversarial_loss(drawn, real=False, kind=self.adversary)) / 2

    def anneal(self, progress: float) -> None:
        """Nothing changes in the course of training."""

    def example_weights(self, masks: Tensor) -> Tensor | None:
        return None

    def correct(self, drawn: Tensor, images: Tensor) -> Tensor:
        """(B,): 1 less the mean difference of what was drawn and the real image, as a share of black to white."""
        return 1 - (drawn - images).abs().flatten(1).mean(1)


def duel(
    state: State,
    task: SynthesisTask,
    data: Resident | Crops,
    clip: float | None,
    team: Distributed,
    optimizer: Any,
    model: nn.Module,
    totals: Totals,
    divergence: Divergence,
) -> tuple[Callable[..., None], dict[str, Callable[..., Any]], Callable[[Tensor], Tensor]]:
    """A step of both networks, the parts of it that may be compiled, and the generator's loss on a batch. The step
    works in place, so it can be recorded.

    First the discriminator learns to tell the batch from what the generator draws of its label maps, then the generator
    to be taken for real by the discriminator as it now is. The image is drawn once.

    optimizer, model  the generator's, as Fabric knows them
    """
    generator, discriminator, fabric = state.model, state.discriminator, team.fabric
    assert isinstance(generator, SynthesisModel)
    assert discriminator is not None
    assert state.discriminator_optimizer is not None
    critic, critic_optimizer = fabric.setup(discriminator, state.discriminator_optimizer)
    drawing, telling = (generator, discriminator) if team.size == 1 else (model, critic)  # as in `engine.train`

    def draw(masks: Tensor, noise: Tensor) -> Tensor:
        with fabric.autocast():
            return drawing(masks, noise)

    def blame(masks: Tensor, images: Tensor, drawn: Tensor) -> Tensor:
        both = torch.cat([generator.discriminator_input(masks, images), generator.discriminator_input(masks, drawn)])
        return task.blame(*telling(both).chunk(2))

    def please(masks: Tensor, images: Tensor, drawn: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        *noticed, logits = discriminator.features(generator.discriminator_input(masks, drawn))
        terms = task.terms(Output(logits, reconstruction=drawn), images, masks)
        if "features" in task.weights:
            with torch.no_grad():
                real = discriminator.features(generator.discriminator_input(masks, images))
            terms["features"] = losses.feature_loss(noticed, real[:-1])
        return combine(terms, task.weights), terms, task.correct(drawn.detach(), images)

    def step(
        indices: Tensor,
        draw: Callable[..., Any] = draw,
        blame: Callable[..., Any] = blame,
        please: Callable[..., Any] = please,
    ) -> None:
        images, masks = data.take(indices, state.generator)[:2]
        noise = torch.randn(len(masks), generator.z, generator=state.generator, device=masks.device)
        part = team.part((images, masks, noise))
        images, masks, noise = part.values
        drawn = draw(masks, noise)

        discriminator.requires_grad_(True)
        critic_optimizer.zero_grad()
        blamed = blame(masks, images, drawn.detach())
        fabric.backward(blamed.mean() * part.weight)
        divergence.look(blamed)
        divergence.look_at_gradients(discriminator.parameters())
        divergence.agree(team)
        if clip is not None:
            fabric.clip_gradients(critic, critic_optimizer, max_norm=clip, error_if_nonfinite=False)
        critic_optimizer.step()

        discriminator.requires_grad_(False)  # what the generator learns from passes through it, and leaves nothing
        optimizer.zero_grad()
        loss, terms, correct = please(masks, images, drawn)
        fabric.backward(loss * part.weight)
        divergence.look(loss, again=True)
        divergence.look_at_gradients(generator.parameters())
        divergence.agree(team)
        if clip is not None:
            fabric.clip_gradients(model, optimizer, max_norm=clip, error_if_nonfinite=False)
        optimizer.step()
        if part.counted:
            terms = {**terms, "discriminator": blamed}
            totals.add(loss, terms, correct, divergence.bad if divergence.skips else None)

    def loss_of(indices: Tensor) -> Tensor:
        images, masks = data.take(indices, state.generator)[:2]
        noise = torch.randn(len(masks), generator.z, generator=state.generator, device=masks.device)
        with fabric.autocast():
            drawn = generator(masks, noise)
        return please(masks, images, drawn)[0]

    return step, {"draw": draw, "blame": blame, "please": please}, loss_of


class Drawings(NamedTuple):
    """What an evaluation gives: an image (C, H, W) in [0, 1] of each label map, and means over them.

    real   the pairs that were drawn again, cut to the size that the model draws
    right  mean similarity
    """

    images: list[Tensor]
    real: SegmentationDataset
    loss: float
    right: float


def evaluate_drawings(model: SynthesisModel, segments: SegmentationDataset, task: SynthesisTask) -> Drawings:
    """The label maps of these images drawn, each with noise of its own that is the same every time; the loss is that of
    the distance from the real images alone."""
    real = tiles(segments, *model.image_shape[1:])
    images = generate_images(model, real.masks)
    loss, right = 0.0, 0.0
    for drawn, image, mask in zip(images, real.images, real.masks):
        true = image[None].float() / 255
        loss += task.weights.get("l1", 0.0) * losses.l1_loss(drawn[None], true, mask[None]).item()
        right += task.correct(drawn[None], true).item()
    count = max(1, len(real))
    return Drawings(images, real, loss / count, right / count)
