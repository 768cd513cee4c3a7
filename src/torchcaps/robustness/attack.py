"""Adversarial attacks in L∞: the fast gradient sign method and projected gradient descent.

They are implemented here because no library is both light and maintained: torchattacks (last release 2023) pins an old
requests and needs torchvision, foolbox (2024) needs GitPython, and adversarial-robustness-toolbox converts each batch
to NumPy.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.losses import cross_entropy, margin_loss
from torchcaps.models import ImageModel
from torchcaps.models.evaluating import evaluating

Loss = Callable[[Tensor], Tensor]  # images (B, C, H, W) → (B,), which the attack maximises
LOGIT_SCALE = 10.0


def loss_of(model: ImageModel, targets: Tensor, *, lengths_as_logits: bool = False) -> Loss:
    """Return the loss to attack a model with: cross-entropy if it has logits, else the margin loss on its lengths.

    The margins are 1 and 0. With those of training (0.9 and 0.1) the loss of a confident prediction is flat, so that
    its gradient is zero and the model would seem robust.

    Args:
        model: to attack.
        targets: (B,) class ids.
        lengths_as_logits: for models without logits, use cross-entropy on LOGIT_SCALE times the lengths. The margin
            loss also grows when all capsules become shorter, which changes no prediction; this loss grows only with
            the wrong prediction, and finds far more mistakes.
    """

    def loss(images: Tensor) -> Tensor:
        with evaluating(model), torch.enable_grad():  # no dropout, as in prediction
            output = model(images)
            classes = targets.to(output.lengths.device)
            if output.logits is not None:
                return cross_entropy(output.logits, classes)
            if lengths_as_logits:
                return cross_entropy(LOGIT_SCALE * output.lengths, classes)
            return margin_loss(output.lengths, classes, present=1.0, absent=0.0)

    return loss


def fgsm(loss: Loss, images: Tensor, eps: float) -> Tensor:
    """Take one step of size eps for every pixel in the direction that raises the loss (Goodfellow et al. 2015).

    Args:
        loss: from `loss_of`.
        images: (B, C, H, W) in [0, 1].
        eps: the maximum change of a pixel.

    Returns:
        (B, C, H, W) in [0, 1].
    """
    _check(eps)
    return (images + eps * _gradient_sign(loss, images)).clamp(0, 1)


def pgd(
    loss: Loss,
    images: Tensor,
    eps: float,
    *,
    steps: int = 20,
    step: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Take many small steps from a random start, never further than eps from the image (Madry et al. 2018).

    Args:
        loss: from `loss_of`.
        images: (B, C, H, W) in [0, 1].
        eps: the maximum change of a pixel.
        steps: number of steps.
        step: size of a step; 2.5 · eps / steps by default, so that every image in reach can be reached.
        generator: of the random start.

    Returns:
        (B, C, H, W) in [0, 1].
    """
    _check(eps, steps)
    step = 2.5 * eps / steps if step is None else step
    low, high = (images - eps).clamp(min=0), (images + eps).clamp(max=1)
    attacked = torch.clamp(images + eps * (2 * _uniform(images, generator) - 1), low, high)
    for _ in range(steps):
        attacked = torch.clamp(attacked + step * _gradient_sign(loss, attacked), low, high)
    return attacked


def random_signs(images: Tensor, eps: float, generator: torch.Generator | None = None) -> Tensor:
    """Change every pixel by +eps or −eps at random: noise of the size of an attack, for comparison.

    Args:
        images: (B, C, H, W) in [0, 1].
        eps: the change of each pixel.
        generator: of the signs.

    Returns:
        (B, C, H, W) in [0, 1].
    """
    _check(eps)
    return (images + eps * (2 * _uniform(images, generator) - 1).sign()).clamp(0, 1)


def _uniform(images: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw (B, C, H, W) from [0, 1), on the device of the images."""
    device = images.device if generator is None else generator.device
    return torch.rand(images.shape, generator=generator, device=device).to(images)


def _gradient_sign(loss: Loss, images: Tensor) -> Tensor:
    """Return the sign of the gradient, (B, C, H, W) of −1, 0 and 1; parameters get no gradient."""
    with torch.enable_grad():
        leaf = images.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(loss(leaf).sum(), leaf)
    return gradient.sign()


def _check(eps: float, steps: int = 1) -> None:
    if not 0 <= eps <= 1 or steps < 1:
        raise UserError(f"attack: eps must lie in 0 to 1 and steps be 1 or more, got eps={eps}, steps={steps}")
