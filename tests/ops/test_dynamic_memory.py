"""Votes never exist: no tensor as large as them, or as the logits, is made, forward or backward."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchcaps.ops import dynamic_routing
from torchcaps.ops.dynamic import chunked

B, I, J, D, K = 64, 2048, 8, 4, 2
VOTES, LOGITS = B * I * J * D, B * I * J
LARGEST_INPUT = max(B * I * K, I * J * D * K)


class Largest(TorchDispatchMode):
    """Notes the largest storage behind any tensor that an operation returns."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def largest_of_a_step(**options) -> int:
    u, weight = torch.randn(B, I, K, requires_grad=True), torch.randn(I, J, D, K, requires_grad=True)
    with Largest() as largest:
        torch.autograd.backward(dynamic_routing(u, weight, **options).poses.sum())
    assert u.grad is not None
    return largest.elements


@pytest.mark.parametrize("options", [{}, {"leaky": True}, {"iterations": 5}], ids=["plain", "leaky", "r5"])
def test_scratch_stays_small(monkeypatch, options):
    assert LARGEST_INPUT < LOGITS // 3
    monkeypatch.setitem(chunked.SCRATCH, "cpu", 2**16)
    # Of the backward's scratch there are two: one for the couplings' part, one for the logits'.
    assert largest_of_a_step(**options) <= max(LARGEST_INPUT, 2 * 2**16)


def test_reference_does_store_votes(monkeypatch):
    """The yardstick of the test above sees what it should."""
    monkeypatch.setenv("TORCHCAPS_BACKEND", "reference")
    assert largest_of_a_step() >= VOTES
