"""Both routings as their papers write them: the reference that the faster forms are tested against."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.ops.squash import at_least_float32, no_autocast

NORM_EPS = 1e-5  # of layer normalisation


def self_attention_routing(u_BIK: Tensor, weight_IJDK: Tensor, prior_IJ: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mazzia, Salvetti & Chiaberge (2021): an I×I attention for each parent, summed to one logit for each child.

    Args:
        u_BIK: (B, I, K) poses of the children.
        weight_IJDK: (I, J, D, K) one D×K matrix for each child and parent.
        prior_IJ: (I, J) added to the couplings.

    Returns:
        (B, J, D) poses of the parents, (B, I, J) couplings without the prior.
    """
    with no_autocast(u_BIK):
        votes_BIJD = torch.einsum("ijdk,bik->bijd", at_least_float32(weight_IJDK), at_least_float32(u_BIK))
        attention_BJII = torch.einsum("bijd,bnjd->bjin", votes_BIJD, votes_BIJD) / votes_BIJD.shape[3] ** 0.5
        couplings_BIJ = attention_BJII.sum(3).softmax(dim=1).transpose(1, 2)  # over parents
        shares_BIJ = couplings_BIJ if prior_IJ is None else couplings_BIJ + at_least_float32(prior_IJ)
        s_BJD = torch.einsum("bij,bijd->bjd", shares_BIJ, votes_BIJD)
        length_BJ1 = s_BJD.norm(dim=-1, keepdim=True)
        poses_BJD = (1 - (-length_BJ1).exp()) * s_BJD / length_BJ1.clamp_min(torch.finfo(s_BJD.dtype).tiny)
    dtype = torch.promote_types(u_BIK.dtype, weight_IJDK.dtype)
    return poses_BJD.to(dtype), couplings_BIJ.to(dtype)


def inverted_attention_routing(
    u_BIK: Tensor, weight_IJDK: Tensor, scale_D: Tensor, shift_D: Tensor, iterations: int
) -> tuple[Tensor, Tensor]:
    """Procedure 1 of Tsai, Srivastava, Goh & Salakhutdinov (2020), starting from poses of zero.

    Args:
        u_BIK: (B, I, K) poses of the children.
        weight_IJDK: (I, J, D, K) one D×K matrix for each child and parent.
        scale_D: (D,) of the layer normalisation.
        shift_D: (D,) of the same.
        iterations: number of routing iterations.

    Returns:
        (B, J, D) poses of the parents, (B, I, J) couplings of the last iteration.
    """
    with no_autocast(u_BIK):
        votes_BIJD = torch.einsum("ijdk,bik->bijd", at_least_float32(weight_IJDK), at_least_float32(u_BIK))
        poses_BJD = torch.zeros_like(votes_BIJD[:, 0])
        for _ in range(iterations):
            agreement_BIJ = torch.einsum("bjd,bijd->bij", poses_BJD, votes_BIJD)
            couplings_BIJ = agreement_BIJ.softmax(dim=-1)  # over parents
            s_BJD = torch.einsum("bij,bijd->bjd", couplings_BIJ, votes_BIJD)
            spread_BJ1 = (s_BJD.var(-1, correction=0, keepdim=True) + NORM_EPS).sqrt()
            poses_BJD = (s_BJD - s_BJD.mean(-1, keepdim=True)) / spread_BJ1 * scale_D + shift_D
    dtype = torch.promote_types(u_BIK.dtype, weight_IJDK.dtype)
    return poses_BJD.to(dtype), couplings_BIJ.to(dtype)
