"""The default benchmark: wrong results are not timed, every row is complete. No run time is asserted."""

import csv

import pytest
import torch
from rich.console import Console

from torchcaps.bench import routing, run, step
from torchcaps.bench.plot import figure_scaling
from torchcaps.bench.timing import median_seconds
from torchcaps.train.environment import machine

CPU = torch.device("cpu")
TINY = routing.Workload(B=4, I=9, K=3, J=2, D=4, R=2)


def test_every_backend_is_measured_and_checked():
    rows = routing.measure(TINY, ["reference", "chunked"], CPU, rounds=1)
    assert [row.backend for row in rows] == ["reference", "chunked"]
    for row in rows:
        assert row.error < 1e-5
        assert row.both_ms > 0
        assert row.extra_mib is None


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_wrong_routing_is_not_timed(monkeypatch, factor):
    right = routing._routing("chunked")
    monkeypatch.setattr(routing, "_routing", lambda backend: lambda *args: right(*args) * factor)
    with pytest.raises(AssertionError, match="chunked is wrong by .* nothing was timed"):
        routing.measure(TINY, ["chunked"], CPU, rounds=1)


def test_a_workload_too_large_for_its_votes_is_checked_too(monkeypatch):
    monkeypatch.setattr(routing, "_fits", lambda workload: False)
    rows = routing.measure(TINY, ["reference", "chunked"], CPU, rounds=1)
    assert [row.backend for row in rows] == ["chunked"]
    assert rows[0].error < 1e-5


def test_one_axis_varies_at_a_time():
    base = routing.Workload(B=32)
    for workload in routing.workloads(base, {"B": [1, 32], "R": [1, 3, 5]}):
        assert sum(a != b for a, b in zip(workload, base)) <= 1
    large = [w for w in routing.workloads(routing.Workload(), routing.AXES) if w.J == 1000]
    assert [w.B for w in large] == [64]


def test_operations_of_the_papers_routing():
    """21 products of 2·B·I·J·D·K operations each; see ops/dynamic/README.md."""
    assert routing.Workload().operations == 21 * 2 * 128 * 1152 * 10 * 16 * 8


def test_floor_has_everything_but_routing():
    model, floor = step.CapsNet(), step.Floor()
    linear = 9216 * 160 + 160
    assert sum(p.numel() for p in floor.parameters()) == model.parameter_count() - model.classes.weight.numel() + linear
    out = floor(torch.rand(2, 1, 28, 28))
    assert out.lengths.shape == (2, 10)
    assert out.reconstruction.shape == (2, 1, 28, 28)


def test_run_prints_and_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(routing, "Workload", lambda **changes: TINY)
    monkeypatch.setattr(
        step, "measure", lambda device, batch: [step.StepRow("training step", batch, 3.0, 2.0, None, 7.0)]
    )
    console = Console(record=True, width=150)
    run.run_bench(CPU, scaling=False, out=tmp_path / "rows.csv", console=console)
    assert "1.500" in console.export_text()
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["backend"] for row in rows] == ["reference", "chunked", "CapsNet", "floor"]
    assert all(row["machine"] == machine(CPU) for row in rows)


def test_calls_alternate():
    calls = []
    median_seconds({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, CPU, rounds=2)
    assert calls == ["a", "a", "b", "b", "a", "b", "a", "b"]


def test_training_step_of_the_benchmark_trains():
    model = step.Floor(image_shape=(1, 14, 14), channels=4, kernel=5, types=2, primary_kernel=5, hidden=(8,))
    images, targets = torch.rand(4, 1, 14, 14), torch.arange(4)
    before = model.linear.weight.clone()
    step.training_step(model, images, targets)()
    assert not torch.equal(before, model.linear.weight)
    step._inference(model, images, targets)()


def test_scaling_is_plotted(tmp_path, monkeypatch):
    monkeypatch.setattr(routing, "Workload", lambda **changes: TINY)
    monkeypatch.setattr(routing, "SMALL_AXES", {"B": [1, 4], "J": [2, 3]})
    monkeypatch.setattr(step, "measure", lambda device, batch: [])
    run.run_bench(CPU, scaling=True, out=tmp_path / "rows.csv", console=Console(quiet=True))
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["B"], row["J"]) for row in rows} == {("4", "2"), ("1", "2"), ("4", "3")}
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")
    panels = {panel.get_xlabel(): panel for panel in figure_scaling(rows).axes}
    assert [list(line.get_xdata()) for line in panels["Batch"].lines] == [[1, 4], [1, 4]]  # reference, chunked
