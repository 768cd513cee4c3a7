"""Local routing as an operation with a hand-written gradient."""

# No `from __future__ import annotations`: torch.library reads the schema from the annotations.
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchcaps.ops.local import chunked, reference
from torchcaps.ops.local.reference import Window
from torchcaps.ops.operator import Gradients, Operator
from torchcaps.ops.squash import at_least_float32, no_autocast


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


def _forward(
    pose: Tensor, weight: Tensor, bias: Tensor, window: list[int], iterations: int, couplings: bool, fused: bool
) -> tuple[Tensor, Tensor]:
    """Poses (B, J, E, Y, X) and couplings (B, T, J, Y, X), the latter empty unless couplings=True."""
    last = _dims_last(weight, fused)
    with no_autocast(pose):
        inputs = *_inputs(pose, weight, last), bias, iterations, _window(window)
        poses, coupled = chunked.forward(*inputs, couplings, _router(fused, last))
    return _lay_out(poses, last), coupled.contiguous()


def _backward(
    grad: Tensor,
    pose: Tensor,
    weight: Tensor,
    bias: Tensor,
    window: list[int],
    iterations: int,
    fused: bool,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of pose, weight and bias; the first two empty where none is needed."""
    last = _dims_last(weight, fused)
    with no_autocast(pose):
        inputs = *_inputs(pose, weight, last), bias, iterations, _window(window)
        d_pose, d_weight, d_bias = chunked.backward(_lay_out(grad, last), *inputs, _router(fused, last), needs=needs)
    return _lay_out(d_pose, last) if needs[0] else d_pose, d_weight.contiguous(), d_bias


def _window(numbers: list[int]) -> Window:
    stride, padding, dilation, transposed, output_padding = numbers
    return Window(stride, padding, dilation, bool(transposed), output_padding)


def _fake(
    pose: Tensor, weight: Tensor, bias: Tensor, window: list[int], iterations: int, couplings: bool, fused: bool
) -> tuple[Tensor, Tensor]:
    (B, T), (J, E), size = pose.shape[:2], bias.shape, _window(window).size(pose, weight)
    poses = _lay_out(bias.new_empty(B, J, E, *size), _dims_last(weight, fused))
    return poses, bias.new_empty((B, T, J, *size) if couplings else (0,))


def _fake_backward(
    grad: Tensor,
    pose: Tensor,
    weight: Tensor,
    bias: Tensor,
    window: list[int],
    iterations: int,
    fused: bool,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    d_pose = _lay_out(pose.new_empty(pose.shape), _dims_last(weight, fused)) if needs[0] else pose.new_empty(0)
    return d_pose, weight.new_empty(weight.shape if needs[1] else (0,)), bias.new_empty(bias.shape)


def _gradients(
    backward: Callable[..., Any], grads: Any, tensors: Any, kept: Any, constants: Any, needs: Any
) -> Gradients:
    """From the gradient of the poses; couplings get none."""
    window, iterations, _, fused = constants
    return [None] * 3 if grads[0] is None else backward(grads[0], *tensors, window, iterations, fused, list(needs))


def _reference(
    pose: Tensor, weight: Tensor, bias: Tensor, window: list[int], iterations: int, couplings: bool, fused: bool
) -> tuple[Tensor, Tensor]:
    votes = at_least_float32(reference.votes_of(pose, weight, bias.shape, _window(window)))
    poses, coupled = reference.route_votes(votes, iterations, bias)
    return poses, coupled.detach() if couplings else coupled.new_empty(0)


def _flops(pose: Any, weight: Any, bias: Any, window: Any, *_: Any, out_shape: Any) -> int:
    """The convolution that makes votes: all weights at each place of the output, or of the input if transposed."""
    *_, first, second, rows, columns = weight
    (B, T, *_), (Y, X) = pose, pose[3:] if _window(window).transposed else out_shape[0][3:]
    return 2 * B * T * Y * X * first * second * rows * columns


def _flops_backward(grad: Any, pose: Any, weight: Any, bias: Any, window: Any, *rest: Any, out_shape: Any) -> int:
    """The same for each gradient."""
    return sum(rest[-1][:2]) * _flops(pose, weight, bias, window, out_shape=[grad])


route = Operator(
    "torchcaps::local_routing",
    forward=_forward,
    fake=_fake,
    backward=_backward,
    fake_backward=_fake_backward,
    gradients=_gradients,
    reference=_reference,
    tensors=3,
    results=2,
    flops=_flops,
    flops_backward=_flops_backward,
)
