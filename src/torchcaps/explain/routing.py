"""Where in the image the children sit that were routed to a class, iteration by iteration."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.errors import UserError
from torchcaps.explain.needs import needs_capsules
from torchcaps.models import CapsuleModel
from torchcaps.models.evaluating import evaluating


def routing_couplings(model: nn.Module, images: Tensor, iterations: int | None = None) -> Tensor:
    """(R, B, I, J): the couplings of iterations 1 to R, as many as the model was trained with unless told.

    images  (B, C, H, W) in [0, 1]
    """
    return _route(needs_capsules(model, "routing_couplings"), images, iterations)[1]


def routing_maps(model: nn.Module, images: Tensor, iterations: int | None = None, *, weighted: bool = True) -> Tensor:
    """How much of each class comes from where in the grid of primary capsules, per iteration.

    images    (B, C, H, W) in [0, 1]
    weighted  sum over types of coupling × the child's length; otherwise of the couplings alone
    returns   (R, B, J, H', W') with (H', W') = model.grid; `maps_on_image` brings it to image size
    """
    capsnet = needs_capsules(model, "routing_maps")
    children, couplings_RBIJ = _route(capsnet, images, iterations)
    R, B, _, J = couplings_RBIJ.shape
    if weighted:
        couplings_RBIJ = couplings_RBIJ * children.activation[..., None]
    rows, columns = capsnet.grid
    # Children count types first, then rows, then columns.
    return couplings_RBIJ.view(R, B, -1, rows, columns, J).sum(2).permute(0, 1, 4, 2, 3)


def coupling_entropy(couplings: Tensor) -> Tensor:
    """How undecided the children are, in nats: log J when they couple to all parents alike, 0 when each has chosen one.

    couplings  (..., I, J)  summing to 1 over J; what a leaky coupling keeps to itself counts as one more parent
    returns    (...)        the mean over children
    """
    kept = (1 - couplings.sum(-1, keepdim=True)).clamp_min(0)
    chances = torch.cat([couplings, kept], dim=-1)
    return torch.special.entr(chances).sum(-1).mean(-1).abs()  # rounding may leave it a hair below 0


def maps_on_image(model: nn.Module, maps: Tensor) -> Tensor:
    """Bring maps over the grid of primary capsules to image size, each child at the pixels it looks at.

    A child is drawn as a tent around the centre of its receptive field. Stretching the grid over the whole image would
    put it in the wrong place: without padding, no child is centred near the edge.

    maps     (..., H', W')
    returns  (..., H, W)
    """
    capsnet = needs_capsules(model, "maps_on_image")
    down, across = (_tents(capsnet, axis).to(maps) for axis in (0, 1))
    return down.T @ maps @ across


def _tents(model: CapsuleModel, axis: int) -> Tensor:
    """(cells, pixels) along one axis of the grid: 1 at the centre of a cell's receptive field, 0 from the next on."""
    centres, spacing = torch.arange(model.grid[axis]).float(), 1
    for conv in reversed(model.convolutions):
        kernel, stride, padding = conv.kernel_size[axis], conv.stride[axis], int(conv.padding[axis])
        centres = centres * stride - padding + (kernel - 1) / 2
        spacing *= stride
    pixels = torch.arange(model.image_shape[1 + axis])
    return (1 - (pixels - centres[:, None]).abs() / spacing).clamp_min(0)


def _route(model: CapsuleModel, images: Tensor, iterations: int | None) -> tuple[Capsules, Tensor]:
    iterations = model.classes.iterations if iterations is None else iterations
    if iterations < 1:
        raise UserError(f"routing: iterations must be at least 1, got {iterations}")
    with evaluating(model):
        children = model.children_of(images.to(model.device))
        steps = [
            model.classes(children, iterations=step, return_couplings=True)[1] for step in range(1, iterations + 1)
        ]
    couplings = [step for step in steps if step is not None]
    if len(couplings) < iterations:
        raise UserError(f"routing: {model.classes.routing} routing has no couplings to show")
    return children, torch.stack(couplings)
