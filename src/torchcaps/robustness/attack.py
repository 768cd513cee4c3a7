"""Images changed so that a model errs: the fast gradient sign method and projected gradient descent, in L∞.

Written here because no library is both light and maintained: torchattacks (last release 2023) pins an old requests and
needs torchvision, foolbox (2024) needs GitPython, and adversarial-robustness-toolbox takes each batch through NumPy.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.losses import cross_entropy, margin_loss
from torchcaps.models import ImageModel
from torchcaps.models.evaluating import evaluating

Loss = Callable[[Tensor], Tensor]  # images (B, C, H, W) → (B,), what the attack makes as large as it can
SHARPNESS = 10.0


def loss_of(model: ImageModel, targets: Tensor, *, decisive: bool = False) -> Loss:
    """The loss to attack a model by: cross-entropy if it has logits, else the margin loss on its lengths.

    The margins are moved to 1 and 0. With those of training (0.9 and 0.1) the loss of a confident answer is flat, its
    gradient is zero, and a model would seem robust only because the attack has nowhere to go.

    targets   (B,) class ids
    decisive  attack lengths by cross-entropy, too, as if SHARPNESS times them were logits. The margin loss also grows
              when all capsules become short, which changes no answer; this one grows only with the wrong answer, and
              finds far more of them.
    """

    def loss(images: Tensor) -> Tensor:
        with evaluating(model), torch.enable_grad():  # no dropout: the gradient is that of the model that answers
            output = model(images)
            classes = targets.to(output.lengths.device)
            if output.logits is not None:
                return cross_entropy(output.logits, classes)
            if decisive:
                return cross_entropy(SHARPNESS * output.lengths, classes)
            return margin_loss(output.lengths, classes, present=1.0, absent=0.0)

    return loss


def fgsm(loss: Loss, images: Tensor, eps: float) -> Tensor:
    """One step of size eps for every pixel, in the direction that raises the loss (Goodfellow et al. 2015).

    images   (B, C, H, W) in [0, 1]
    returns  (B, C, H, W) in [0, 1], no value further than eps from where it was
    """
    _check(eps)
    return (images + eps * _uphill(loss, images)).clamp(0, 1)


def pgd(
    loss: Loss,
    images: Tensor,
    eps: float,
    *,
    steps: int = 20,
    step: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Many small steps from a random start, never further than eps from the image (Madry et al. 2018).

    images     (B, C, H, W) in [0, 1]
    step       size of one step; 2.5 · eps / steps by default, so that the far side can be reached from any start
    generator  of the random start
    returns    (B, C, H, W) in [0, 1]
    """
    _check(eps, steps)
    step = 2.5 * eps / steps if step is None else step
    low, high = (images - eps).clamp(min=0), (images + eps).clamp(max=1)
    attacked = torch.clamp(images + eps * (2 * _unit(images, generator) - 1), low, high)
    for _ in range(steps):
        attacked = torch.clamp(attacked + step * _uphill(loss, attacked), low, high)
    return attacked


def random_signs(images: Tensor, eps: float, generator: torch.Generator | None = None) -> Tensor:
    """Every pixel eps up or down by chance: as large a change as an attack's, to compare with one.

    images   (B, C, H, W) in [0, 1]
    returns  (B, C, H, W) in [0, 1]
    """
    _check(eps)
    return (images + eps * (2 * _unit(images, generator) - 1).sign()).clamp(0, 1)


def _unit(images: Tensor, generator: torch.Generator | None) -> Tensor:
    """(B, C, H, W) drawn from [0, 1), on the device of the images."""
    device = images.device if generator is None else generator.device
    return torch.rand(images.shape, generator=generator, device=device).to(images)


def _uphill(loss: Loss, images: Tensor) -> Tensor:
    """(B, C, H, W) of −1, 0 and 1: the sign of the gradient. Parameters are given none."""
    with torch.enable_grad():
        leaf = images.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(loss(leaf).sum(), leaf)
    return gradient.sign()


def _check(eps: float, steps: int = 1) -> None:
    if not 0 <= eps <= 1 or steps < 1:
        raise UserError(f"attack: eps must lie in 0 to 1 and steps be 1 or more, got eps={eps}, steps={steps}")
