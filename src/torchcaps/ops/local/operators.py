"""Routing at each position as a PyTorch operator: torch.compile, torch.export and CUDA graphs go through it."""

# No `from __future__ import annotations`: torch.library reads the schema off the annotations.
from typing import Any, Optional

import torch
from torch import Tensor

from torchcaps.ops.local import chunked
from torchcaps.ops.local.reference import Window
from torchcaps.ops.squash import no_autocast


def _router(fused: bool) -> chunked.Router:
    if not fused:
        return chunked.Plain()
    from torchcaps.ops.local.fused import Kernels

    return Kernels()


@torch.library.custom_op("torchcaps::route_local", mutates_args=())
def route_local(
    pose: Tensor, weight: Tensor, bias: Tensor, window: list[int], iterations: int, couplings: bool, fused: bool
) -> tuple[Tensor, Tensor]:
    """Poses and couplings of `reference.local_routing`; the latter empty unless asked for."""
    with no_autocast(pose):
        return chunked.forward(pose, weight, bias, iterations, _window(window), couplings, _router(fused))


@torch.library.custom_op("torchcaps::route_local_backward", mutates_args=())
def route_local_backward(
    grad: Tensor, pose: Tensor, weight: Tensor, bias: Tensor, window: list[int], iterations: int, fused: bool
) -> tuple[Tensor, Tensor, Tensor]:
    with no_autocast(pose):
        return chunked.backward(grad, pose, weight, bias, iterations, _window(window), _router(fused))


def _window(numbers: list[int]) -> Window:
    stride, padding, dilation, transposed, output_padding = numbers
    return Window(stride, padding, dilation, bool(transposed), output_padding)


@route_local.register_fake
def _(
    pose: Tensor, weight: Tensor, bias: Tensor, window: list[int], iterations: int, couplings: bool, fused: bool
) -> tuple[Tensor, Tensor]:
    (B, T), (J, E), size = pose.shape[:2], bias.shape, _window(window).size(pose, weight)
    poses = bias.new_empty(B, J, E, *size)
    return poses, bias.new_empty((B, T, J, *size) if couplings else (0,))


@route_local_backward.register_fake
def _(
    grad: Tensor, pose: Tensor, weight: Tensor, bias: Tensor, window: list[int], iterations: int, fused: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return pose.new_empty(pose.shape), weight.new_empty(weight.shape), bias.new_empty(bias.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    pose, weight, bias, ctx.window, ctx.iterations, _, ctx.fused = inputs
    ctx.save_for_backward(pose, weight, bias)


def _backward(ctx: Any, grad: Tensor, _: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    rest = ctx.window, ctx.iterations, ctx.fused
    return *route_local_backward(grad.contiguous(), *ctx.saved_tensors, *rest), None, None, None, None


route_local.register_autograd(_backward, setup_context=_save)
