"""Routing at each position as a PyTorch operator: torch.compile, torch.export and CUDA graphs go through it."""

# No `from __future__ import annotations`: torch.library reads the schema off the annotations.
from typing import Any, Optional

import torch
from torch import Tensor

from torchcaps.ops.local import chunked
from torchcaps.ops.local.reference import Window
from torchcaps.ops.squash import no_autocast


def _router(fused: bool, last: bool) -> chunked.Router:
    if not fused:
        return chunked.Plain()
    from torchcaps.ops.local.fused import Kernels

    return Kernels(last)


def _dims_last(weight: Tensor, fused: bool) -> bool:
    """Whether maps lie in memory with their dimensions last, as tensor cores want them: on a GPU, and where one
    convolution serves all child types."""
    return fused and weight.ndim == 4


def _laid(maps_BTDHW: Tensor, last: bool) -> Tensor:
    """The same numbers, lying in memory as announced."""
    return maps_BTDHW.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3) if last else maps_BTDHW.contiguous()


def _inputs(pose: Tensor, weight: Tensor, last: bool) -> tuple[Tensor, Tensor]:
    layout = torch.channels_last if last else torch.contiguous_format
    return _laid(pose, last), weight.contiguous(memory_format=layout)


@torch.library.custom_op("torchcaps::route_local", mutates_args=())
def route_local(
    pose: Tensor, weight: Tensor, bias: Tensor, window: list[int], iterations: int, couplings: bool, fused: bool
) -> tuple[Tensor, Tensor]:
    """Poses and couplings of `reference.local_routing`; the latter empty unless asked for."""
    last = _dims_last(weight, fused)
    with no_autocast(pose):
        inputs = *_inputs(pose, weight, last), bias, iterations, _window(window)
        poses, coupled = chunked.forward(*inputs, couplings, _router(fused, last))
    return _laid(poses, last), coupled.contiguous()


@torch.library.custom_op("torchcaps::route_local_backward", mutates_args=())
def route_local_backward(
    grad: Tensor, pose: Tensor, weight: Tensor, bias: Tensor, window: list[int], iterations: int, fused: bool
) -> tuple[Tensor, Tensor, Tensor]:
    last = _dims_last(weight, fused)
    with no_autocast(pose):
        inputs = *_inputs(pose, weight, last), bias, iterations, _window(window)
        d_pose, d_weight, d_bias = chunked.backward(_laid(grad, last), *inputs, _router(fused, last))
    return _laid(d_pose, last), d_weight.contiguous(), d_bias


def _window(numbers: list[int]) -> Window:
    stride, padding, dilation, transposed, output_padding = numbers
    return Window(stride, padding, dilation, bool(transposed), output_padding)


@route_local.register_fake
def _(
    pose: Tensor, weight: Tensor, bias: Tensor, window: list[int], iterations: int, couplings: bool, fused: bool
) -> tuple[Tensor, Tensor]:
    (B, T), (J, E), size = pose.shape[:2], bias.shape, _window(window).size(pose, weight)
    poses = _laid(bias.new_empty(B, J, E, *size), _dims_last(weight, fused))
    return poses, bias.new_empty((B, T, J, *size) if couplings else (0,))


@route_local_backward.register_fake
def _(
    grad: Tensor, pose: Tensor, weight: Tensor, bias: Tensor, window: list[int], iterations: int, fused: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        _laid(pose.new_empty(pose.shape), _dims_last(weight, fused)),
        weight.new_empty(weight.shape),
        bias.new_empty(bias.shape),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    pose, weight, bias, ctx.window, ctx.iterations, _, ctx.fused = inputs
    ctx.save_for_backward(pose, weight, bias)


def _backward(ctx: Any, grad: Tensor, _: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    rest = ctx.window, ctx.iterations, ctx.fused
    return *route_local_backward(grad, *ctx.saved_tensors, *rest), None, None, None, None


route_local.register_autograd(_backward, setup_context=_save)
