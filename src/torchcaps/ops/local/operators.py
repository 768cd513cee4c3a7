"""Local routing as one PyTorch operator with a hand-written backward; torch.compile, torch.export and CUDA graphs go
through it.
"""

# No `from __future__ import annotations`: torch.library reads the schema from the annotations.
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
    """Whether the dimensions of a capsule are innermost in memory, the layout that tensor cores are fast with: on a
    GPU, where one convolution serves all child types."""
    return fused and weight.ndim == 4


def _lay_out(maps_BTDHW: Tensor, last: bool) -> Tensor:
    """The same values in this memory layout."""
    return maps_BTDHW.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3) if last else maps_BTDHW.contiguous()


def _inputs(pose: Tensor, weight: Tensor, last: bool) -> tuple[Tensor, Tensor]:
    layout = torch.channels_last if last else torch.contiguous_format
    return _lay_out(pose, last), weight.contiguous(memory_format=layout)


@torch.library.custom_op("torchcaps::local_routing", mutates_args=())
def forward(
    pose: Tensor, weight: Tensor, bias: Tensor, window: list[int], iterations: int, couplings: bool, fused: bool
) -> tuple[Tensor, Tensor]:
    """Poses (B, J, E, Y, X) and couplings (B, T, J, Y, X), the latter empty unless couplings=True."""
    last = _dims_last(weight, fused)
    with no_autocast(pose):
        inputs = *_inputs(pose, weight, last), bias, iterations, _window(window)
        poses, coupled = chunked.forward(*inputs, couplings, _router(fused, last))
    return _lay_out(poses, last), coupled.contiguous()


@torch.library.custom_op("torchcaps::local_routing_backward", mutates_args=())
def backward(
    grad: Tensor, pose: Tensor, weight: Tensor, bias: Tensor, window: list[int], iterations: int, fused: bool
) -> tuple[Tensor, Tensor, Tensor]:
    last = _dims_last(weight, fused)
    with no_autocast(pose):
        inputs = *_inputs(pose, weight, last), bias, iterations, _window(window)
        d_pose, d_weight, d_bias = chunked.backward(_lay_out(grad, last), *inputs, _router(fused, last))
    return _lay_out(d_pose, last), d_weight.contiguous(), d_bias


def _window(numbers: list[int]) -> Window:
    stride, padding, dilation, transposed, output_padding = numbers
    return Window(stride, padding, dilation, bool(transposed), output_padding)


@forward.register_fake
def _(
    pose: Tensor, weight: Tensor, bias: Tensor, window: list[int], iterations: int, couplings: bool, fused: bool
) -> tuple[Tensor, Tensor]:
    (B, T), (J, E), size = pose.shape[:2], bias.shape, _window(window).size(pose, weight)
    poses = _lay_out(bias.new_empty(B, J, E, *size), _dims_last(weight, fused))
    return poses, bias.new_empty((B, T, J, *size) if couplings else (0,))


@backward.register_fake
def _(
    grad: Tensor, pose: Tensor, weight: Tensor, bias: Tensor, window: list[int], iterations: int, fused: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        _lay_out(pose.new_empty(pose.shape), _dims_last(weight, fused)),
        weight.new_empty(weight.shape),
        bias.new_empty(bias.shape),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    pose, weight, bias, ctx.window, ctx.iterations, _, ctx.fused = inputs
    ctx.save_for_backward(pose, weight, bias)


def _differentiate(ctx: Any, grad: Tensor, _: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    rest = ctx.window, ctx.iterations, ctx.fused
    return *backward(grad, *ctx.saved_tensors, *rest), None, None, None, None


forward.register_autograd(_differentiate, setup_context=_save)
