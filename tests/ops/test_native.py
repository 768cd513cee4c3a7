"""The compiled code beside what it replaces; test_dynamic_agreement.py runs with and without it."""

from __future__ import annotations

import importlib.util
import multiprocessing
import shutil
import subprocess
import sys

import pytest
import torch

from torchcaps.ops import dynamic_routing, native, primary, squash_maps
from torchcaps.ops.dynamic import by_votes

compiled = pytest.mark.skipif(native._native is None, reason="installed without a C compiler")


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_an_installation_with_a_compiler_has_the_compiled_code():
    assert importlib.util.find_spec("torchcaps.ops._native") is not None


@compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1, 0.3], ids="scale{}".format)
@pytest.mark.parametrize("bias", [False, True], ids=["no-bias", "bias"])
@pytest.mark.parametrize(("B", "T", "D", "H", "W"), [(1, 1, 1, 1, 1), (2, 3, 8, 5, 4), (3, 2, 5, 1, 7)])
def test_squashes_maps_as_pytorchs_operations_do(B, T, D, H, W, bias, scale, dtype):
    maps, bias = torch.randn(B, T * D, H, W, dtype=dtype), torch.randn(T * D, dtype=dtype) if bias else None
    found = native.squash_maps(maps, bias, D, scale)
    torch.testing.assert_close(found, primary.reference(maps, bias, D, scale))


@compiled
@pytest.mark.parametrize("value", [0.0, 1e-30, 1e18, float("nan")])
def test_squashes_any_length(value):
    maps = torch.full((1, 4, 1, 2), value)
    maps[..., 1] = 0
    torch.testing.assert_close(
        native.squash_maps(maps, None, 4, 1.0), primary.reference(maps, None, 4, 1.0), equal_nan=True
    )


def test_maps_in_any_memory_format_are_squashed_alike():
    maps = torch.randn(2, 6, 4, 5)
    torch.testing.assert_close(
        squash_maps(maps.to(memory_format=torch.channels_last), None, 3), squash_maps(maps, None, 3)
    )


@compiled
@pytest.mark.parametrize("K", [1, 4, 7, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_makes_the_votes_of_one_example(K, dtype):
    u, weight = torch.randn(1, 9, K, dtype=dtype), torch.randn(9, 3, 5, K, dtype=dtype)
    votes = native.make_votes(u, weight, torch.empty(9, 1, 15, dtype=dtype))
    torch.testing.assert_close(votes, torch.einsum("ijdk,bik->ibjd", weight, u).flatten(2))


@compiled
@pytest.mark.parametrize("logit", [0.0, 20.0, 87.0, 200.0])
def test_couplings_in_float32_are_a_softmax(logit):
    """Two parents, whose logits differ by a given number: the second vote agrees with nothing."""
    votes = torch.zeros(64, 1, 2, 1, dtype=torch.float64)
    votes[..., 0, :] = logit
    expected = dynamic_routing_of(votes)
    torch.testing.assert_close(dynamic_routing_of(votes.float()), expected.float(), rtol=1e-5, atol=1e-30)


def dynamic_routing_of(votes_IBJD):
    weight, u = votes_IBJD.permute(0, 2, 3, 1).contiguous(), votes_IBJD.new_ones(1, len(votes_IBJD), 1)
    return dynamic_routing(u, weight, 2, return_couplings=True).couplings


@compiled
def test_nan_stays_nan_and_is_not_spread_over_other_examples():
    u, weight = torch.randn(3, 6, 4), torch.randn(6, 3, 5, 4)
    u[1, 2, 0] = torch.nan
    poses = dynamic_routing(u, weight).poses
    assert poses[1].isnan().all()
    assert poses[[0, 2]].isfinite().all()


@compiled
@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_changes_no_answer(monkeypatch, threads):
    u, weight = torch.randn(5, 20, 8), torch.randn(20, 3, 6, 8)
    expected = dynamic_routing(u, weight).poses
    monkeypatch.setattr(native, "LEAST", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(dynamic_routing(u, weight).poses, expected)
    finally:
        torch.set_num_threads(before)


def _route(queue):
    torch.manual_seed(0)
    u, weight = torch.randn(5, 20, 8), torch.randn(20, 3, 6, 8)
    queue.put(dynamic_routing(u, weight).poses.sum().item())


@compiled
@pytest.mark.skipif(not hasattr(multiprocessing, "get_context") or sys.platform != "linux", reason="needs fork")
def test_a_forked_process_starts_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(native, "LEAST", 1)
    monkeypatch.setattr(native.torch, "get_num_threads", lambda: 2)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    _route(queue)
    child = context.Process(target=_route, args=(queue,), daemon=True)
    child.start()
    assert queue.get(timeout=60) == pytest.approx(queue.get(timeout=60))
    child.join(10)


@compiled
def test_serves_tensors_of_one_type_on_a_cpu():
    x = torch.ones(2)
    assert native.serves(x, x)
    assert not any(native.serves(x, y) for y in (x.double(), x.to("meta"), x[:0]))
    assert not native.serves(x.half(), x.half())


@compiled
def test_wrong_arguments_are_refused():
    for function in (native._native.forward, native._native.backward, native._native.squash_maps, native._native.votes):
        with pytest.raises(TypeError, match="expected"):
            function(1, 2)
        with pytest.raises(TypeError):
            function(*["a"] * 15)


def test_works_without_the_compiled_code():
    code = (
        "import sys; sys.modules['torchcaps.ops._native'] = None\n"
        "import torch\n"
        "from torchcaps.layers import DenseCaps\n"
        "from torchcaps.ops import native\n"
        "assert native._native is None\n"
        "DenseCaps(16, 8, 10, 16)(torch.randn(2, 16, 8)).pose.sum().backward()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_thread_goes_by_votes_as_far_as_that_is_faster(monkeypatch):
    u, weight = torch.empty(32, 128, 8), torch.empty(128, 10, 16, 8)
    monkeypatch.setattr(by_votes.torch, "get_num_threads", lambda: 1)
    assert by_votes.serves(u, weight) == (native._native is not None)
    monkeypatch.setattr(by_votes.torch, "get_num_threads", lambda: 2)
    assert not by_votes.serves(u, weight)
