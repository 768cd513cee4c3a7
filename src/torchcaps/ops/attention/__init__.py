"""Routing by attention: agreement is a dot product of votes with each other, or with the parents' poses.

`reference` reads like the papers; README.md derives the faster form that is computed here.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.checks import check_floats, check_whole
from torchcaps.ops.result import Routed
from torchcaps.ops.squash import at_least_float32, no_autocast

RANGE = 256.0  # lengths are taken of x/256, as in `squash`: sums of squares then do not overflow where squares do not


def self_attention_routing(
    u: Tensor, weight: Tensor, prior: Tensor | None = None, *, return_couplings: bool = False
) -> Routed:
    """Route each child by how well its vote agrees with all votes (Mazzia et al. 2021), in a single pass.

    Args:
        u: (B, I, K) poses of the children.
        weight: (I, J, D, K); child i's vote for parent j is weight[i, j] @ u[b, i].
        prior: (I, J) added to the couplings of every example.
        return_couplings: also return the couplings.

    Returns:
        poses (B, J, D), couplings (B, I, J) without the prior, which sum to 1 over J.
    """
    I, J, D = _check("self_attention_routing", u, weight)
    if prior is not None and prior.shape != (I, J):
        raise ValueError(f"self_attention_routing: prior must be (I, J) = ({I}, {J}), got {tuple(prior.shape)}")
    with no_autocast(u):
        votes_BIJD = _votes(u, weight)
        # Row i of the I×I attention, summed, is vote i times the sum of all votes: the matrix need not exist.
        all_BJD = _shorten(votes_BIJD.sum(1), (1, 2))
        couplings_BIJ = (torch.einsum("bijd,bjd->bij", votes_BIJD, all_BJD) / math.sqrt(D)).softmax(-1)
        shares_BIJ = couplings_BIJ if prior is None else couplings_BIJ + at_least_float32(prior)
        poses_BJD = squash_exponential(torch.einsum("bij,bijd->bjd", shares_BIJ, votes_BIJD))
    dtype = torch.promote_types(u.dtype, weight.dtype)
    return Routed(poses_BJD.to(dtype), None, couplings_BIJ.to(dtype) if return_couplings else None)


def inverted_attention_routing(
    u: Tensor,
    weight: Tensor,
    scale: Tensor,
    shift: Tensor,
    iterations: int = 2,
    *,
    parents: Tensor | None = None,
    classifier: Tensor | None = None,
    classifier_bias: Tensor | None = None,
    return_couplings: bool = False,
) -> Routed:
    """Let parents compete for children by the dot product of pose and vote (Tsai et al. 2020, Procedure 1).

    Args:
        u: (B, I, K) poses of the children.
        weight: (I, J, D, K); child i's vote for parent j is weight[i, j] @ u[b, i].
        scale: (D,) of the layer normalisation of each parent's sum.
        shift: (D,) of the same.
        iterations: number of routing iterations, at least 1.
        parents: (B, J, D) poses to start from; without them the couplings of the first iteration are equal.
        classifier: (D,) turns poses into activations; see `presence`.
        classifier_bias: (1,) of the classifier.
        return_couplings: also return the couplings of the last iteration.

    Returns:
        poses (B, J, D), activation (B, J) if there is a classifier, couplings (B, I, J).
    """
    _, J, D = _check("inverted_attention_routing", u, weight)
    _check_inverted(iterations, scale, shift, parents, (u.shape[0], J, D))
    with no_autocast(u):
        votes_BIJD = _votes(u, weight)
        scale_D, shift_D = scale.to(votes_BIJD), shift.to(votes_BIJD)
        poses_BJD = None if parents is None else parents.to(votes_BIJD)
        for _ in range(iterations):
            if poses_BJD is None:
                couplings_BIJ = votes_BIJD.new_full(votes_BIJD.shape[:3], 1 / J)
            else:
                couplings_BIJ = torch.einsum("bijd,bjd->bij", votes_BIJD, poses_BJD).softmax(-1)
            sums_BJD = torch.einsum("bij,bijd->bjd", couplings_BIJ, votes_BIJD)
            poses_BJD = functional.layer_norm(_shorten(sums_BJD, (2,)), (D,), scale_D, shift_D)
    assert poses_BJD is not None  # there was at least one iteration
    dtype = torch.promote_types(u.dtype, weight.dtype)
    poses = poses_BJD.to(dtype)
    activation = None if classifier is None else presence(poses, classifier, classifier_bias)
    return Routed(poses, activation, couplings_BIJ.to(dtype) if return_couplings else None)


def presence(poses: Tensor, classifier: Tensor, bias: Tensor | None = None) -> Tensor:
    """Turn poses into probabilities by one linear classifier for all parents.

    Normalised poses have about the same length, so the length cannot say how present a parent is.

    Args:
        poses: (B, J, D).
        classifier: (D,).
        bias: (1,).

    Returns:
        (B, J) in [0, 1], at least float32.
    """
    with no_autocast(poses):
        logits_BJ = at_least_float32(poses) @ classifier.to(at_least_float32(poses))
        logits_BJ = logits_BJ if bias is None else logits_BJ + bias
    return logits_BJ.sigmoid()


def squash_exponential(x: Tensor, dim: int = -1) -> Tensor:
    """Shrink each vector to length 1 − e^(−|x|), keeping its direction; short vectors hardly change.

    Zero stays zero, and its gradient is passed on unchanged, which is the limit from every side.

    Args:
        x: (..., D, ...) with D at dim.
        dim: the axis of a vector.

    Returns:
        The same shape and dtype; bf16 and fp16 are computed in float32.
    """
    wide = at_least_float32(x)
    norm = torch.linalg.vector_norm(wide / RANGE, dim=dim, keepdim=True) * RANGE
    short = norm < math.sqrt(torch.finfo(wide.dtype).eps)  # (1 − e^−n)/n is 1 − n/2 there, to the last digit
    divisor = torch.where(short, 1, norm)
    factor = torch.where(short, 1 - norm / 2, -torch.expm1(-divisor) / divisor)
    return (wide * factor).to(x.dtype)


def _votes(u_BIK: Tensor, weight_IJDK: Tensor) -> Tensor:
    """(B, I, J, D)"""
    return torch.einsum("ijdk,bik->bijd", at_least_float32(weight_IJDK), at_least_float32(u_BIK))


def _shorten(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """x, its values over dims divided by a common number where they are so large that their products would overflow.

    A softmax of them chose one parent long before that, and layer normalisation does not see a common factor.
    """
    limit = torch.finfo(x.dtype).max ** 0.4
    return x / (x.detach().abs().amax(dims, keepdim=True) / limit).clamp_min(1)


def _check(name: str, u: Tensor, weight: Tensor) -> tuple[int, int, int]:
    """I, J and D, if the shapes fit."""
    check_floats(name, u=u, weight=weight)
    if weight.ndim != 4 or u.ndim != 3 or u.shape[1:] != (weight.shape[0], weight.shape[3]):
        raise ValueError(
            f"{name}: u must be (B, I, K) and weight (I, J, D, K), got {tuple(u.shape)} and {tuple(weight.shape)}"
        )
    I, J, D, _ = weight.shape
    return I, J, D


def _check_inverted(
    iterations: int, scale: Tensor, shift: Tensor, parents: Tensor | None, expected: tuple[int, int, int]
) -> None:
    name, D = "inverted_attention_routing", expected[2]
    check_whole(name, iterations=iterations)
    if D < 2:
        raise ValueError(f"{name}: normalised, a pose of one dimension is always the same; give parents two or more")
    if scale.shape != (D,) or shift.shape != (D,):
        raise ValueError(
            f"{name}: scale and shift must be (D,) = ({D},), got {tuple(scale.shape)}, {tuple(shift.shape)}"
        )
    if parents is not None and parents.shape != expected:
        raise ValueError(f"{name}: parents must be (B, J, D) = {expected}, got {tuple(parents.shape)}")
