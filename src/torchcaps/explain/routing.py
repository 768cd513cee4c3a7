"""Where in the image the primary capsules sit that were routed to a class, iteration by iteration."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.checks import check_whole
from torchcaps.errors import UserError
from torchcaps.explain.receptive_field import receptive_field
from torchcaps.explain.require import require_capsules
from torchcaps.models import CapsuleModel
from torchcaps.models.evaluating import evaluating


def routing_couplings(model: nn.Module, images: Tensor, iterations: int | None = None) -> Tensor:
    """Return the couplings of every routing iteration.

    Args:
        model: routes a grid of primary capsules.
        images: (B, C, H, W) in [0, 1].
        iterations: R; by default the number that the model was trained with.

    Returns:
        (R, B, I, J).
    """
    return _route(require_capsules(model, "routing_couplings"), images, iterations)[1]


def routing_maps(model: nn.Module, images: Tensor, iterations: int | None = None, *, weighted: bool = True) -> Tensor:
    """Sum the couplings over capsule types: how much of each class comes from each cell of the grid.

    Args:
        model: routes a grid of primary capsules.
        images: (B, C, H, W) in [0, 1].
        iterations: R; by default the number that the model was trained with.
        weighted: multiply each coupling by the length of its primary capsule.

    Returns:
        (R, B, J, H', W') with (H', W') = model.grid; `maps_on_image` brings it to image size.
    """
    capsnet = require_capsules(model, "routing_maps")
    children, couplings_RBIJ = _route(capsnet, images, iterations)
    R, B, _, J = couplings_RBIJ.shape
    if weighted:
        couplings_RBIJ = couplings_RBIJ * children.activation[..., None]
    rows, columns = capsnet.grid
    # Children count types first, then rows, then columns.
    return couplings_RBIJ.view(R, B, -1, rows, columns, J).sum(2).permute(0, 1, 4, 2, 3)


def coupling_entropy(couplings: Tensor) -> Tensor:
    """Compute the mean entropy of the couplings in nats: log J if uniform, 0 if each child chose one parent.

    Args:
        couplings: (..., I, J), summing to 1 over J; what leaky routing leaves uncoupled counts as one more parent.

    Returns:
        (...) means over children.
    """
    kept = (1 - couplings.sum(-1, keepdim=True)).clamp_min(0)
    chances = torch.cat([couplings, kept], dim=-1)
    return torch.special.entr(chances).sum(-1).mean(-1).abs()  # rounding may leave it slightly below 0


def maps_on_image(model: nn.Module, maps: Tensor) -> Tensor:
    """Bring maps over the grid of primary capsules to image size.

    A capsule is drawn as a tent around the centre of its receptive field. Stretching the grid over the whole image
    would be wrong: without padding, no receptive field is centred near the edge.

    Args:
        model: with the grid and the receptive fields.
        maps: (..., H', W').

    Returns:
        (..., H, W).
    """
    capsnet = require_capsules(model, "maps_on_image")
    down, across = (_tents(capsnet, axis).to(maps) for axis in (0, 1))
    return down.T @ maps @ across


def _tents(model: CapsuleModel, axis: int) -> Tensor:
    """(cells, pixels) along an axis of the grid: 1 at the centre of a cell's receptive field, 0 from the next on."""
    start, stride, field = receptive_field(model, axis)
    centres = torch.arange(model.grid[axis]).float() * stride + start + (field - 1) / 2
    pixels = torch.arange(model.image_shape[1 + axis])
    return (1 - (pixels - centres[:, None]).abs() / stride).clamp_min(0)


def _route(model: CapsuleModel, images: Tensor, iterations: int | None) -> tuple[Capsules, Tensor]:
    iterations = model.classes.iterations if iterations is None else iterations
    check_whole("routing", iterations=iterations)
    with evaluating(model):
        children = model.children_of(images.to(model.device))
        steps = [
            model.classes(children, iterations=step, return_couplings=True)[1] for step in range(1, iterations + 1)
        ]
    couplings = [step for step in steps if step is not None]
    if len(couplings) < iterations:
        raise UserError(f"routing: {model.classes.routing} routing has no couplings to show")
    return children, torch.stack(couplings)
