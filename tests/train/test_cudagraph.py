"""The step that is compiled and recorded: what can be seen of it without a GPU, and all of it with one."""

import logging
from functools import partial

import pytest
import torch

from torchcaps.train.cudagraph import RecordedStep, compiled, tuned


def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch, caplog):
    import torch._dynamo

    calls = []

    def broken(*arguments):
        calls.append(arguments)
        raise torch._dynamo.exc.TorchDynamoException("no compiler here")

    monkeypatch.setattr(torch, "compile", lambda function, dynamic: broken)
    double = compiled(lambda x: 2 * x)
    with caplog.at_level(logging.WARNING, "torchcaps"):
        assert [double(1), double(2)] == [2, 4]
    assert len(calls) == 1  # not tried again
    assert "no compiler here" in caplog.text


def test_the_tenth_model_of_a_process_is_compiled_like_the_first(monkeypatch):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))

    def train(width):
        weight = torch.ones(width)
        return compiled(lambda x: (x * weight).sum())(torch.ones(width))

    assert [float(train(width)) for width in range(1, 11)] == list(range(1, 11))
    assert len(graphs) == 10


def test_a_backward_pass_that_cannot_be_compiled_is_taken_as_it_is(caplog):
    taken = []

    def compiled_step(indices):
        raise AssertionError("expected stride 1==256")

    take = RecordedStep(compiled_step, taken.append, 2, torch.Generator())
    with caplog.at_level(logging.WARNING, "torchcaps"):
        take(torch.tensor([0, 1]))
        take(torch.tensor([2, 3]))
    assert torch.stack(taken).tolist() == [[0, 1], [2, 3]]
    assert caplog.text.count("could not be compiled: expected stride") == 1


def test_an_error_of_the_step_itself_is_not_swallowed(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    with pytest.raises(ZeroDivisionError):
        compiled(lambda x: x / 0)(1)


def test_settings_of_the_caller_are_restored():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    with tuned(torch.device("cuda"), tensor_cores=True):
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.benchmark
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark) == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need CUDA")
def test_a_step_that_cannot_be_recorded_goes_on_with_the_same_numbers(caplog):
    def sums(record):
        total, generator = torch.zeros(4, device="cuda"), torch.Generator("cuda").manual_seed(0)

        def step(indices):
            drawn = torch.rand(len(indices), generator=generator, device="cuda")
            total.index_add_(0, indices, drawn if drawn.sum().item() > 0 else -drawn)  # waits, as no graph can

        take = RecordedStep(step, step, 2, generator) if record else step
        for start in range(6):
            take(torch.tensor([start % 4, (start + 1) % 4], device="cuda"))
        return total

    assert torch.equal(sums(True), sums(False))
    assert "could not be recorded" in caplog.text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need CUDA")
def test_recorded_steps_are_the_steps_themselves():
    def sums(record):
        total = torch.zeros(4, device="cuda")
        generator = torch.Generator("cuda").manual_seed(0)

        def step(indices):
            total.index_add_(0, indices, torch.rand(len(indices), generator=generator, device="cuda"))

        take = RecordedStep(step, step, 2, generator) if record else step
        for start in range(9):
            take(torch.tensor([start % 4, (start + 1) % 4], device="cuda"))
        take(torch.tensor([3], device="cuda"))
        return total

    assert torch.equal(sums(True), sums(False))
