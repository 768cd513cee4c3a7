"""Derivatives of every order and kind, against those of plain PyTorch operations."""

from __future__ import annotations

import logging

import pytest
import torch
from cases import Numbers, by_parameters, close, every, gradients, loss, make
from torch.autograd import forward_ad, functional
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.utils.checkpoint import checkpoint

from torchcaps.capsules import Capsules
from torchcaps.ops import dispatch
from torchcaps.ops.dispatch import using

F64 = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's own forward mode uses it


def double(name, batch=2):
    layer, x = make(name, batch, F64)
    return Numbers(layer), x


@every
def test_jacobians_agree(name):
    module, x = double(name)
    expected = functional.jacobian(module, x)
    for found in (jacrev(module)(x), jacfwd(module)(x), functional.jacobian(module, x, vectorize=True)):
        close(found, expected)


@every
def test_hessians_agree(name):
    module, x = double(name, 1)
    expected = functional.hessian(lambda x: loss(module(x)), x)
    close([hessian(lambda x: loss(module(x)))(x)], [expected])


@every
def test_vmap_and_the_gradients_of_each_example_agree_with_a_loop(name):
    module, x = double(name)
    close(vmap(lambda x: module(x[None]))(x), [each[:, None] for each in module(x)])
    value, parameters = by_parameters(module)
    found = vmap(grad(value), (None, 0))(parameters, x[:, None])
    for i in range(len(x)):
        close([each[i] for each in found.values()], gradients(module, x[i : i + 1])[1:])


@every
def test_second_derivatives_agree_with_differences(name):
    module, x = double(name)
    names, parameters = zip(*module.named_parameters())

    def call(x, *given):
        return functional_call(module, dict(zip(names, given)), (x,))

    inputs = [each.detach().requires_grad_() for each in (x, *parameters)]
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


@every
def test_a_penalty_on_gradients_agrees_with_the_reference(name):
    module, x = double(name)
    x.requires_grad_()

    def penalty():
        (slope,) = torch.autograd.grad(loss(module(x)), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), [x, *module.parameters()], allow_unused=True)

    found = penalty()
    with using("reference"):
        expected = penalty()
    assert any(each is not None and each.any() for each in found)
    close(found, expected)


@every
def test_forward_mode_agrees_with_a_product_of_the_jacobian(name):
    module, x = double(name)
    tangent = torch.randn_like(x)
    expected = functional.jvp(module, x, tangent)[1]
    with forward_ad.dual_level():
        duals = module(forward_ad.make_dual(x, tangent))
        close([forward_ad.unpack_dual(each).tangent for each in duals], expected)
    close(jvp(module, (x,), (tangent,))[1], expected)


@every
@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_checkpointing_changes_nothing(name, reentrant):
    module, x = double(name)
    expected = gradients(module, x)
    checkpointed = Numbers(module.layer)
    checkpointed.forward = lambda x: checkpoint(module, x, use_reentrant=reentrant)
    close(gradients(checkpointed, x), expected)


UNSEEN = pytest.mark.xfail(strict=True, reason="torch.utils.checkpoint looks for tensors among the arguments only")


@pytest.mark.parametrize(
    ("how", "reentrant"),
    [("capsules", False), pytest.param("capsules", True, marks=UNSEEN), ("tensors", False), ("tensors", True)],
)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
def test_a_layer_between_others_is_checkpointed(how, reentrant):
    module, x = double("stack")
    *below_them, second, third = module.layer
    first = torch.nn.Sequential(*below_them)
    expected = gradients(module, x)

    def forward(x):
        below = first(x)
        if how == "capsules":
            capsules = checkpoint(second, below, use_reentrant=reentrant)
        else:
            capsules = checkpoint(lambda *tensors: second(Capsules(*tensors)), *below, use_reentrant=reentrant)
        parents = third(capsules)
        return parents.pose, parents.activation

    module.forward = lambda x: forward(0.5 * x)
    close(gradients(module, x), expected)


@every
def test_gradients_that_are_not_needed_are_not_computed_and_the_others_are_the_same(name):
    module, x = make(name)
    module = Numbers(module)
    expected = gradients(module, x)
    for frozen in range(len(expected)):
        inputs = [x.clone(), *module.parameters()]
        wanted = [each.requires_grad_(i != frozen) for i, each in enumerate(inputs)]
        wanted.pop(frozen)
        found = torch.autograd.grad(loss(module(inputs[0])), wanted, materialize_grads=True, allow_unused=True)
        rest = [each for i, each in enumerate(expected) if i != frozen]
        assert all(map(torch.equal, found, rest))


def test_the_fallback_is_logged_once(caplog):
    dispatch._log_once.cache_clear()
    module, x = double("dynamic")
    with caplog.at_level(logging.WARNING, "torchcaps"):
        jacrev(module)(x), jacfwd(module)(x)
    assert [record.getMessage() for record in caplog.records] == [
        "dynamic routing runs on the reference path, not the chunked one: torch.func and forward-mode differentiation "
        "need plain operations"
    ]
