"""A routing of your own, checked by the properties that every routing of torchcaps has."""

import torch

from torchcaps import register_routing, testing
from torchcaps.layers import DenseCaps
from torchcaps.ops import Routed, squash


@register_routing
def sharpened(u, weight, iterations, return_couplings=False):
    """Dynamic routing whose agreement counts twice as much in each iteration as in the one before."""
    votes_BIJD = torch.einsum("ijdk,bik->bijd", weight, u)
    logits_BIJ = torch.zeros_like(votes_BIJD[..., 0])
    for iteration in range(iterations):
        couplings_BIJ = logits_BIJ.softmax(-1)
        poses_BJD = squash(torch.einsum("bij,bijd->bjd", couplings_BIJ, votes_BIJD))
        logits_BIJ = logits_BIJ + 2**iteration * torch.einsum("bijd,bjd->bij", votes_BIJD, poses_BJD)
    return Routed(poses_BJD, couplings=couplings_BIJ if return_couplings else None)


if __name__ == "__main__":
    torch.manual_seed(0)
    layer, children = DenseCaps(6, 4, 3, 5, routing="sharpened"), torch.randn(2, 6, 4)
    coupled = testing.routing_of(layer, return_couplings=True)
    testing.assert_children_permute(coupled, children, layer.weight)
    testing.assert_couplings_normalised(coupled, children, layer.weight)
    testing.assert_batch_independent(layer, children)
    testing.assert_lengths_bounded(layer, children)
    testing.assert_finite_gradients(layer, children)
    testing.assert_gradcheck(layer, children)
    print("sharpened has the properties of a routing")
