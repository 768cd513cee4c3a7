"""Initial weights of routed layers: parents of children 0.7 long start about half a unit long, so stacks can train.

Take I children of length u and weights of std σ. The values of a vote are then random with std τ = σu, and with equal
couplings 1/J the sum of all votes for a parent is S = √(I·D)·τ/J long.

Routing makes it longer, because votes that agree with a parent count more. If v_t is the pose after iteration t, the
logits are û·V with V = v_1 + v_2 + …, and for normal votes and many parents the mean of softmax(û·V)·û is τ²V/J to
first order (Stein's lemma). The sum of all I votes is therefore

    |s_{t+1}| = S + (I·τ²/J)·|V| = S + S²·(J/D)·(|v_1| + … + |v_t|)        |v_t| = |s_t|²/(1 + |s_t|²)

`dynamic_sum` solves |s_r| = 1 for S: parents are then half a unit long, 0.3 to 0.65 in tests with at least half as many
children as parents; fewer children already choose among the parents, which start shorter. Without this term, layers of
many parents of few dimensions start with lengths near 1. There squash is flat, and what a stack computes hardly depends
on the image.
The 0.7 lies between children behind a normalised backbone, whose lengths start near 1, and those in a stack, about a
half. Squash is quadratic for short vectors, so each layer shrinks them further; stacks of five still train.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchcaps.ops.em import usual_inverse_temperature
from torchcaps.ops.em.reference import STEP

CHILD = 0.7  # length of the children for which parents start half a unit long
VOTE = 0.5  # length of the first votes of children 1 long in inverted attention
UNDECIDED = -1.0  # first logit of an EM parent: an activation of about a quarter
NOISE = 0.19  # of matrices that start near the identity, relative to weights that keep the size of a pose


def dynamic_std(I: int, K: int, J: int, D: int, iterations: int) -> float:
    """Std of a weight (I, J, D, K) of dynamic routing."""
    return dynamic_sum(J, D, iterations) * J / (CHILD * math.sqrt(I * D))


def uniform_std(I: int, K: int, J: int, D: int, iterations: int) -> float:
    """The same without routing."""
    return dynamic_std(I, K, J, D, 1)


def self_attention_std(I: int, K: int, J: int, D: int, iterations: int) -> float:
    """Std of a weight of self-attention routing.

    The logits are û·A/√D with A the sum of all votes, of length J·S, so |s| = S + S³·J²/D^1.5; squash is 1 − e^−|s|.
    """
    first = _solve(lambda S: S + S**3 * J**2 / D**1.5, math.log(2))
    return first * J / (CHILD * math.sqrt(I * D))


def inverted_attention_std(I: int, K: int, J: int, D: int, iterations: int) -> float:
    """Std of a weight of inverted attention.

    Sums of any size are normalised, so only the logits bound the weights: they must not saturate their softmax. Poses
    start 1 long, since the normalisation's scale starts at 1/√D, and logits with the std σ. With a scale of 1, poses of
    length √D would need weights √(K·D) times smaller, and one step of Adam, whose size does not depend on that of the
    weights, would change the logits √(K·D) times more: the couplings of a stack then jump from step to step.
    """
    return VOTE / math.sqrt(D)


def inverted_attention_weights(D: int) -> dict[str, Tensor]:
    """Scale (D,) and shift (D,) that make poses 1 long, and a classifier (D,) whose logits are about 1 for them."""
    return {
        "norm_scale": torch.full((D,), D**-0.5),
        "norm_shift": torch.zeros(D),
        "classifier": torch.randn(D),
        "classifier_bias": torch.zeros(1),  # FSDP2 cannot shard a parameter without dimensions
    }


def matrix_std(I: int, K: int, J: int, D: int, iterations: int) -> float:
    """Of the noise that is added to identity matrices.

    EM compares densities, so it is as sharp for small votes as for large ones. With independent matrices each layer
    would assign a child by chance to few parents, and after some layers similar images would have unrelated poses. With
    nearly equal votes for all parents couplings start nearly equal. The floor of variances, 0.003, hides differences
    below 0.05, so that those of the noise alone do not decide; votes of deep layers hardly differ at first.
    """
    return NOISE / D**0.25


def em_betas(I: int, J: int, D: int) -> dict[str, Tensor]:
    """The first β_u (J,) and β_a (J,) of EM routing of I children.

    A loss that finds all activations too high, as the margin loss does above 1/4 for ten classes, changes whatever all
    of them depend on. With βs of zero a parent's cost −Σ_i r·a·Σ_d log σ grows with the activations of its children:
    these are driven to zero, where squash has no gradient, and a β_u that is too large drives them to 1. Therefore
    votes of children 0.7 long that agree on nothing start with a cost of zero, −log σ = β_u, and β_a makes the
    activation about a quarter: at the inverse temperature J/I, or 1, in the third iteration.
    """
    third = 1 - STEP**3
    return {
        "beta_u": torch.full((J,), math.log(math.sqrt(D) / CHILD)),
        "beta_a": torch.full((J,), UNDECIDED / (third * usual_inverse_temperature(I, J))),
    }


def dynamic_sum(J: int, D: int, iterations: int) -> float:
    """The length S of the first sum of votes with which the sum of the last iteration is 1 long."""

    def last(S: float) -> float:
        total, length = 0.0, S
        for _ in range(iterations - 1):
            total += length**2 / (1 + length**2)
            length = S + S**2 * J / D * total
        return length

    return _solve(last, 1.0)


def _solve(function: Callable[[float], float], value: float) -> float:
    """The x in (0, value] with function(x) = value, of a function that rises at least as fast as x."""
    low, high = 0.0, value
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < value else (low, middle)
    return high
