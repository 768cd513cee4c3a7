"""Dynamic routing with matrices that are shared over the places of a map: votes are neither stored nor computed.

With û = W u, the sum of all votes of a type is W times the weighted sum of its poses, and a vote agrees with a pose v
as much as u does with Wᵀ v. Both products are taken once for a type, not once for a child.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.ops.squash import at_least_float32, no_autocast, squash


def dynamic_routing(
    u_BIK: Tensor,
    weight_TJDK: Tensor,
    iterations: int,
    bias_JD: Tensor | None,
    leaky: bool,
    inverse_temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Route as `reference.dynamic_routing` does with the weight repeated for every place.

    Args:
        u_BIK: (B, I, K) poses of the children, by type, then by place.
        weight_TJDK: (T, J, D, K) one D×K matrix for each type and parent; I is a multiple of T.
        iterations: number of routing iterations.
        bias_JD: (J, D) added to each parent's sum before it is squashed.
        leaky: see `reference.couple`.
        inverse_temperature: factor of the agreement.

    Returns:
        (B, J, D) poses of the parents, (B, I, J) couplings of the last iteration.
    """
    T, J = weight_TJDK.shape[:2]
    dtype = torch.promote_types(u_BIK.dtype, weight_TJDK.dtype)
    with no_autocast(u_BIK):
        u_BTPK = at_least_float32(u_BIK).unflatten(1, (T, u_BIK.shape[1] // T))
        weight_TJDK = at_least_float32(weight_TJDK)
        bias_JD = weight_TJDK.new_zeros(()) if bias_JD is None else at_least_float32(bias_JD)
        share = 1 / (J + leaky)  # logits of zero: the first couplings are all alike
        couplings_BTJP = u_BTPK.new_full((), share).expand(*u_BTPK.shape[:2], J, u_BTPK.shape[2])
        sums_BTJK = (share * u_BTPK.sum(2, keepdim=True)).expand(-1, -1, J, -1)
        poses_BJD = squash(_votes(sums_BTJK, weight_TJDK) + bias_JD)
        agreed_BJD = (
            inverse_temperature * poses_BJD
        )  # logits are linear in the poses of all iterations, so their sum is enough
        for _ in range(iterations - 1):
            keys_BTJK = torch.einsum("bjd,tjdk->btjk", agreed_BJD, weight_TJDK)
            couplings_BTJP = _couple(keys_BTJK @ u_BTPK.mT, leaky)
            poses_BJD = squash(_votes(couplings_BTJP @ u_BTPK, weight_TJDK) + bias_JD)
            agreed_BJD = agreed_BJD + inverse_temperature * poses_BJD
    return poses_BJD.to(dtype), couplings_BTJP.mT.flatten(1, 2).to(dtype)


def _couple(logits_BTJP: Tensor, leaky: bool) -> Tensor:
    """As `reference.couple`; with the places last, a CPU takes the exponentials of several at a time."""
    if not leaky:
        return logits_BTJP.softmax(dim=2)
    return functional.pad(logits_BTJP, (0, 0, 1, 0)).softmax(dim=2)[:, :, 1:]


def _votes(sums_BTJK: Tensor, weight_TJDK: Tensor) -> Tensor:
    """(B, J, D) sums of votes, from the weighted sums of poses."""
    return torch.einsum("btjk,tjdk->bjd", sums_BTJK, weight_TJDK)
