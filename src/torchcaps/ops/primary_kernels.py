"""Triton kernels of `squash_maps`. A program takes a block of positions (B·H·W in all) and one type of capsule."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcaps.ops.squash_kernels import squash_gradient, squashed

ROWS = 128  # positions a program takes


@triton.jit
def _places(example, position, type_, columns, s_b, s_c, s_x, DIM: tl.constexpr):
    """Where maps of these strides have the capsules (N, D)."""
    return (example.to(tl.int64) * s_b + position * s_x)[:, None] + ((type_ * DIM + columns) * s_c)[None, :]


@triton.jit
def _sums(maps, bias, places, type_, columns, inside, scale, DIM: tl.constexpr, BIAS: tl.constexpr):
    """(N, D) of what is squashed."""
    s_ND = tl.load(maps + places, mask=inside, other=0.0).to(tl.float32) * scale
    if BIAS:
        s_ND += tl.load(bias + type_ * DIM + columns, mask=columns < DIM, other=0.0).to(tl.float32)[None, :]
    return tl.where(inside, s_ND, 0.0)


@triton.jit
def _forward(
    maps, bias, poses, N, X, T, scale, s_b, s_c, s_x,
    DIM: tl.constexpr, BIAS: tl.constexpr, TN: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    rows, type_, columns = tl.program_id(0) * TN + tl.arange(0, TN), tl.program_id(1), tl.arange(0, DP)
    example, position = rows // X, rows % X
    inside = (rows < N)[:, None] & (columns < DIM)[None, :]
    places = _places(example, position, type_, columns, s_b, s_c, s_x, DIM)
    s_ND = _sums(maps, bias, places, type_, columns, inside, scale, DIM, BIAS)
    capsule = (example.to(tl.int64) * T + type_) * X + position
    v_ND = squashed(s_ND).to(poses.dtype.element_ty)
    tl.store(poses + capsule[:, None] * DIM + columns[None, :], v_ND, mask=inside)


@triton.jit
def _backward(
    grad, maps, bias, dmaps, slots, N, X, T, scale, s_b, s_c, s_x, d_b, d_c, d_x,
    DIM: tl.constexpr, BIAS: tl.constexpr, GRAD_MAPS: tl.constexpr, GRAD_BIAS: tl.constexpr,
    TN: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    rows, type_, columns = tl.program_id(0) * TN + tl.arange(0, TN), tl.program_id(1), tl.arange(0, DP)
    example, position = rows // X, rows % X
    inside = (rows < N)[:, None] & (columns < DIM)[None, :]
    places = _places(example, position, type_, columns, s_b, s_c, s_x, DIM)
    s_ND = _sums(maps, bias, places, type_, columns, inside, scale, DIM, BIAS)
    capsule = (example.to(tl.int64) * T + type_) * X + position
    dv_ND = tl.load(grad + capsule[:, None] * DIM + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    ds_ND = squash_gradient(s_ND, dv_ND)
    if GRAD_MAPS:
        places = _places(example, position, type_, columns, d_b, d_c, d_x, DIM)
        tl.store(dmaps + places, (ds_ND * scale).to(dmaps.dtype.element_ty), mask=inside)
    if GRAD_BIAS:  # a row of slots for each block of positions; they are added up in a fixed order
        slot = slots + (tl.program_id(0) * T + type_) * DIM + columns
        tl.store(slot, tl.sum(ds_ND, axis=0), mask=columns < DIM)


@triton.jit
def _add_up(slots, total, blocks, C, TC: tl.constexpr):
    """total (C,) = Σ of the rows of slots, in an order that depends on nothing but their number."""
    columns, many = tl.program_id(0) * TC + tl.arange(0, TC), tl.arange(0, 16)
    sums = tl.zeros([16, TC], tl.float32)
    for first in range(0, blocks, 16):
        rows = first + many
        inside = (rows < blocks)[:, None] & (columns < C)[None, :]
        sums += tl.load(slots + rows.to(tl.int64)[:, None] * C + columns[None, :], mask=inside, other=0.0)
    tl.store(total + columns, tl.sum(sums, axis=0), mask=columns < C)


def forward(maps: Tensor, bias: Tensor | None, dim: int, scale: float) -> Tensor:
    maps, bias = _by_position(maps), None if bias is None else bias.contiguous()
    B, C, H, W = maps.shape
    poses = maps.new_empty(B, C // dim * H * W, dim)
    _forward[_grid(maps, dim)](
        maps, bias, poses, B * H * W, H * W, C // dim, scale, *_strides(maps),
        DIM=dim, BIAS=bias is not None, TN=ROWS, DP=triton.next_power_of_2(dim),
    )  # fmt: skip
    return poses


def backward(
    grad: Tensor, maps: Tensor, bias: Tensor | None, dim: int, scale: float, needs: Sequence[bool]
) -> tuple[Tensor, Tensor]:
    """Gradients of the maps, laid out as they are, and of the bias (T·D,), empty where none is needed."""
    dmaps, maps, bias = torch.empty_like(maps), _by_position(maps), None if bias is None else bias.contiguous()
    into = dmaps if _one_stride(dmaps) else torch.empty_like(dmaps, memory_format=torch.contiguous_format)
    B, C, H, W = maps.shape
    blocks = triton.cdiv(B * H * W, ROWS)
    slots = maps.new_empty(blocks if needs[1] else 0, C, dtype=torch.float32)
    _backward[_grid(maps, dim)](
        grad.contiguous(), maps, bias, into, slots, B * H * W, H * W, C // dim, scale, *_strides(maps), *_strides(into),
        DIM=dim, BIAS=bias is not None, GRAD_MAPS=needs[0], GRAD_BIAS=needs[1],
        TN=ROWS, DP=triton.next_power_of_2(dim),
    )  # fmt: skip
    if needs[0] and into is not dmaps:
        dmaps.copy_(into)
    dbias = slots.new_empty(C if needs[1] else 0)
    if needs[1]:
        _add_up[(triton.cdiv(C, 32),)](slots, dbias, blocks, C, TC=32)
    return dmaps if needs[0] else dmaps.new_empty(0), dbias


def _one_stride(maps: Tensor) -> bool:
    """Whether positions are one stride apart all over the map: so for contiguous and for channels_last maps."""
    H, W = maps.shape[2:]
    return H == 1 or W == 1 or maps.stride(2) == W * maps.stride(3)


def _by_position(maps: Tensor) -> Tensor:
    return maps if _one_stride(maps) else maps.contiguous()


def _grid(maps: Tensor, dim: int) -> tuple[int, int]:
    B, C, H, W = maps.shape
    return triton.cdiv(B * H * W, ROWS), C // dim


def _strides(maps: Tensor) -> tuple[int, int, int]:
    return maps.stride(0), maps.stride(1), maps.stride(2 if maps.shape[3] == 1 else 3)
