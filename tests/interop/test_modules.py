"""What people do to modules: hooks, wrappers, parametrisations, copies, other types, fakes and counters."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from cases import Numbers, close, every, gradients, loss, make
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.flop_counter import FlopCounterMode

from torchcaps.capsules import Capsules
from torchcaps.ops.dispatch import using


def weighted(module: nn.Module) -> list[nn.Module]:
    return [each for each in module.modules() if isinstance(getattr(each, "weight", None), nn.Parameter)]


class Wrapper(nn.Module):
    """What adapters such as LoRA make of a layer: another module around it, without its attributes."""

    def __init__(self, wrapped: nn.Module):
        super().__init__()
        self.wrapped, self.calls = wrapped, 0

    def forward(self, *inputs):
        self.calls += 1
        return self.wrapped(*inputs)


class LowRank(nn.Module):
    """LoRA as a parametrisation: a product of two thin matrices is added to the weight."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(len(weight), 1)), nn.Parameter(torch.zeros(1, weight[0].numel()))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + (self.a @ self.b).view_as(weight)


@every
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # see the next test
def test_hooks_see_every_module_and_the_gradients_of_its_outputs(name):
    layer, x = make(name)
    before, after, backward = [], [], {}
    leaves = [each for each in layer.modules() if not list(each.children())]
    for each in leaves:
        each.register_forward_pre_hook(lambda module, inputs: before.append(module))
        each.register_forward_hook(lambda module, inputs, output: after.append(output))
        each.register_full_backward_hook(lambda module, given, found: backward.update({module: found}))
    loss(Numbers(layer)(x.requires_grad_())).backward()
    assert before == leaves
    for each, output in zip(leaves, after, strict=True):
        expected = output if isinstance(output, tuple) else (output,)
        assert [grad.shape for grad in backward[each]] == [x.shape for x in expected]


@pytest.mark.parametrize(
    "given",
    [
        lambda x: x,
        pytest.param(Capsules, marks=pytest.mark.xfail(strict=True, reason="torch.utils.hooks looks for tensors only")),
    ],
    ids=["tensor", "capsules"],
)
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_full_backward_hooks_see_the_gradients_of_inputs(given):
    layer, x = make("dynamic")
    seen = []
    layer.register_full_backward_hook(lambda module, given, found: seen.extend(given))
    layer(given(x.requires_grad_())).pose.sum().backward()
    assert [each.shape for each in seen] == [x.shape]


def test_hooks_of_all_modules_see_the_convolution_of_primary_capsules():
    layer, x = make("primary")
    seen = []
    for register in (
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_full_backward_hook,
    ):
        handle = register(lambda module, *rest: seen.append(module))
        with handle:
            loss(Numbers(layer)(x.requires_grad_())).backward()
    assert seen.count(layer.conv) == 2


@every
def test_a_parametrised_weight_is_used_and_learned(name):
    layer, x = make(name)
    expected = layer(x)
    modules = weighted(layer)
    for each in modules:
        parametrize.register_parametrization(each, "weight", LowRank(each.weight))
    close(layer(x), expected)
    found = dict(zip([n for n, _ in layer.named_parameters()], gradients(Numbers(layer), x)[1:]))
    assert sum(grad.any() for key, grad in found.items() if key.endswith("0.b")) == len(modules)
    for each in modules:
        parametrize.remove_parametrizations(each, "weight")
    close(layer(x), expected)


@every
def test_weight_norm_changes_nothing_at_first_and_both_parts_learn(name):
    layer, x = make(name)
    expected = layer(x)
    modules = weighted(layer)
    for each in modules:
        parametrizations.weight_norm(each)
    close(layer(x), expected)
    found = dict(zip([n for n, _ in layer.named_parameters()], gradients(Numbers(layer), x)[1:]))
    assert sum(grad.any() for key, grad in found.items() if "original" in key) == 2 * len(modules)


@every
def test_pruned_weights_count_as_zero(name):
    layer, x = make(name)
    pruned, zeroed = copy.deepcopy(layer), layer
    for one, other in zip(weighted(pruned), weighted(zeroed)):
        prune.l1_unstructured(one, "weight", 0.5)
        with torch.no_grad():
            other.weight *= one.weight_mask
    close(pruned(x), zeroed(x))


@every
def test_a_wrapped_layer_computes_the_same(name):
    layer, x = make(name)
    expected = layer(x)
    for parent in list(layer.modules()):
        for child, module in list(parent.named_children()):
            setattr(parent, child, Wrapper(module))
    close(Wrapper(layer)(x), expected)
    assert all(each.calls == 1 for each in layer.modules() if isinstance(each, Wrapper))


@every
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_copies_compute_the_same_also_after_a_step(name, copied):
    layer, x = make(name)
    expected = gradients(Numbers(layer), x)
    other = copied(layer)
    close(other(x), layer(x), rtol=0, atol=0)
    close(gradients(Numbers(other), x), expected, rtol=0, atol=0)


@every
def test_a_state_dict_carries_all_that_a_layer_learned(name):
    layer, x = make(name)
    other = make(name)[0]
    with torch.no_grad():
        for each in layer.parameters():
            each.add_(torch.rand_like(each))
    assert other.load_state_dict(layer.state_dict())
    close(other(x), layer(x), rtol=0, atol=0)


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_autocast_stays_close_and_gives_gradients_of_the_weights_type(name, dtype):
    layer, x = make(name)
    expected, module = layer(x), Numbers(layer)
    with torch.autocast("cpu", dtype):
        found = layer(x)
        slopes = gradients(module, x)
    assert isinstance(found, Capsules)
    close([each.float() for each in found], expected, rtol=0.1, atol=0.1)
    assert all(each.dtype == torch.float32 and each.isfinite().all() for each in slopes)


@every
def test_float64_is_computed_in_float64(name):
    layer, x = make(name)
    expected, (wide, wide_x) = layer(x), make(name, dtype=torch.float64)
    found = copy.deepcopy(layer).double()(x.double())
    assert all(each.dtype == torch.float64 for each in found)
    close(found, [each.double() for each in expected], rtol=1e-4, atol=1e-5)
    with torch.no_grad(), using("reference"):
        close(wide(wide_x), make(name, dtype=torch.float64)[0](wide_x), rtol=1e-10, atol=1e-10)


@every
def test_channels_last_changes_nothing(name):
    layer, x = make(name)
    expected, slopes = layer(x), gradients(Numbers(layer), x)
    if x.ndim == 4:
        x = x.to(memory_format=torch.channels_last)
    elif x.ndim == 5:
        x = x.to(memory_format=torch.channels_last_3d)
    else:
        x = x.mT.contiguous().mT
    layer = layer.to(memory_format=torch.channels_last)
    assert not x.is_contiguous()
    close(layer(x), expected)
    close(gradients(Numbers(layer), x), slopes)


@every
def test_batches_of_none_and_one(name):
    layer, x = make(name)
    expected, module = layer(x), Numbers(layer)
    close(layer(x[:1]), [each[:1] for each in expected])
    assert [each.shape for each in layer(x[:0])] == [each[:0].shape for each in expected]
    assert not any(each.any() for each in gradients(module, x[:0]))


@every
def test_meta_and_fake_tensors_have_the_shapes_of_real_ones(name):
    def described(layer, x):
        module = Numbers(layer)
        return [(each.shape, strides(each), each.dtype) for each in (*module(x), *gradients(module, x))]

    def strides(tensor):
        return [step for side, step in zip(tensor.shape, tensor.stride()) if side > 1]  # of one element any is right

    layer, x = make(name)
    expected = described(layer, x)
    with torch.device("meta"):
        assert described(*make(name)) == expected
    with FakeTensorMode() as mode:
        for module in layer.modules():
            for tensors in (module._parameters, module._buffers):
                tensors.update({key: mode.from_tensor(each) for key, each in tensors.items() if each is not None})
        assert described(layer, mode.from_tensor(x)) == expected


@every
@pytest.mark.parametrize("needed", [True, False], ids=["all", "frozen"])
def test_flops_are_those_of_the_reference(name, needed):
    layer, x = make(name, dtype=torch.float64)
    for each in weighted(layer):
        each.weight.requires_grad_(needed)
    counts = []
    for backend in ("chunked", "reference"):
        with using(backend), FlopCounterMode(display=False) as counter:
            outputs = Numbers(layer)(x.requires_grad_())
            forward = counter.get_total_flops()
            loss(outputs).backward()
        counts.append((forward, counter.get_total_flops() - forward))
    assert counts[0] == counts[1]
    assert min(counts[0]) > 0
