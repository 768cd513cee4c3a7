"""Benchmark of all routings: a row for each, wrong results are not timed. No run time is asserted."""

import csv
import json
import sys
import warnings

import pytest
import torch
from rich.console import Console

from torchcaps import cli, ops
from torchcaps.bench import family, step
from torchcaps.bench.plot import figure_family
from torchcaps.bench.routing import Workload
from torchcaps.data import sources
from torchcaps.errors import UserError
from torchcaps.layers.routings import ROUTINGS, Routing
from torchcaps.models import create_model
from torchcaps.train.setup import make_model

CPU = torch.device("cpu")
DIGITS = (
    *(
        "data.source=digits",
        "data.image_size=12",
        "data.limit=64",
        "data.test=50",
        "model.channels=4",
        "model.kernel=5",
    ),
    *("model.primary_kernel=5", "model.types=2", "model.dim=4", "model.class_dim=4", "model.hidden=[8]"),
)


@pytest.fixture
def small(monkeypatch):
    """Sizes that run fast, and digits to train on."""
    monkeypatch.setattr(family, "LAYER", Workload(B=3, I=9, K=4, J=2, D=4, R=2))
    monkeypatch.setattr(family, "NETWORKS", {"efficient_capsnet": 2})
    monkeypatch.setattr(family, "SETTINGS", (*family.SETTINGS, *DIGITS))


@pytest.fixture
def nothing_is_timed(monkeypatch):
    monkeypatch.setattr(family, "measure_layers", lambda *arguments: pytest.fail("something was timed"))


def compare(names, epochs=0, out=None, console=None):
    return family.run_family(names, CPU, epochs=epochs, out=out, console=console or Console(quiet=True))


def command(monkeypatch, *arguments):
    """The exit code of `torchcaps bench`, in this process."""
    monkeypatch.setattr(sys, "argv", ["torchcaps", "bench", "--device", "cpu", *map(str, arguments)])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the command line replaces it
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code


def test_every_routing_has_a_row(small, tmp_path):
    console = Console(record=True, width=80)
    rows = compare(family.parse_routings("all"), out=tmp_path / "rows.csv", console=console)
    routings = [row for row in rows if row["what"] == "routing"]
    assert [row["name"] for row in routings] == list(ROUTINGS)
    weights = 9 * 2 * 4 * 4
    assert {row["name"]: int(row["parameters"]) for row in routings} == {
        "dynamic": weights,
        "uniform": weights,
        "em": 9 * 2 * 2 * 2 + 2 * 2,  # 2×2 matrices, β_u and β_a
        "self_attention": weights + 9 * 2,  # the prior
        "inverted_attention": weights + 4 + 4 + 4 + 1,  # scale, shift, classifier and its bias
    }
    for row in routings:
        assert float(row["forward_ms"]) > 0
        assert float(row["both_ms"]) > 0
        assert row["extra_mib"] == row["test_error"] == row["test_n"] == row["epochs"] == ""
    printed = console.export_text()
    assert all(f"{name} " in printed for name in (*ROUTINGS, "efficient_capsnet"))
    assert "…" not in printed  # on 80 columns
    with (tmp_path / "rows.csv").open() as file:
        assert list(csv.DictReader(file)) == rows
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")


def test_error_is_that_of_a_run_that_is_not_kept(small, monkeypatch):
    runs = []

    def start(recipe, **options):
        folder = start_run(recipe, **options)
        runs.append((recipe, folder, json.loads((folder / "summary.json").read_text())))
        return folder

    start_run = family.start_run
    monkeypatch.setattr(family, "start_run", start)
    rows = compare(["uniform", "em"], epochs=2)
    for row, (recipe, folder, summary) in zip(rows[:2], runs, strict=True):
        assert recipe.model.options["routing"] == row["name"]
        assert float(row["test_error"]) == pytest.approx(100 * (1 - summary["test_accuracy"]), abs=0.006)
        assert (row["test_n"], row["epochs"]) == ("50", "2")
        assert not folder.exists()
    first, second = (recipe.model_dump() for recipe, _, _ in runs)
    assert second | {"model": first["model"]} == first  # they differ in the routing alone


def test_the_timed_layer_is_the_trained_networks():
    recipe = family._recipe("em", 7)
    assert (recipe.name, recipe.data.source, recipe.train.epochs, recipe.train.seed) == ("mnist-paper", "mnist", 7, 0)
    data = sources.load_data("digits", image_size=28).train
    layer, (_, *sizes, iterations) = make_model(recipe, data).classes, family.LAYER
    assert [layer.in_capsules, layer.in_dim, layer.out_capsules, layer.out_dim] == sizes
    assert (layer.routing, layer.iterations) == ("em", iterations)
    assert layer.bias is None


@pytest.mark.parametrize("name", ["efficient_capsnet", "em_capsnet"])  # margin and reconstruction; spread
def test_a_step_of_a_whole_network(name):
    row = step.measure_network(name, CPU, 2, rounds=1)
    assert row[:3] == (name, create_model(name).parameter_count(), 2)
    assert row.ms > 0
    assert row.mib is None


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_wrong_routing_is_not_timed(small, monkeypatch, factor):
    def wrong(u, weight, iterations, return_couplings=False):
        routed = ops.dynamic_routing(u, weight, iterations, return_couplings=return_couplings)
        return routed._replace(poses=routed.poses * (factor if u.dtype == torch.float32 else 1))

    monkeypatch.setitem(ROUTINGS, "wrong", Routing(wrong))
    monkeypatch.setattr(family, "device_seconds", lambda *arguments: pytest.fail("something was timed"))
    with pytest.raises(AssertionError, match="wrong is wrong by .* nothing was timed"):
        compare(["dynamic", "wrong"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--routing", "dynamo"], "did you mean 'dynamic'?"),
        (["--routing", "em,"], "choose one of: all, dynamic, em,"),
        (["--routing", "all", "--scaling"], "--scaling, --routing and --masks do not go together"),
        (["--routing", "all", "--epochs", "-1"], "epochs"),
        (["--routing", "all", "--epochs", "0", "--out", "rows.png"], "name a .csv file"),
        (["--routing", "all", "--epochs", "0", "--out", "nowhere/rows.csv"], "nowhere/rows.csv: it cannot be written"),
    ],
)
def test_mistakes_exit_with_2(nothing_is_timed, monkeypatch, tmp_path, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, *arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_missing_data_is_reported_first(nothing_is_timed, monkeypatch, tmp_path, capsys):
    def offline(remote, folder):
        raise UserError(f"cannot download {remote.name}")

    monkeypatch.setattr(sources, "fetch", offline)
    assert command(monkeypatch, "--routing", "all", "--out", tmp_path / "rows.csv") == 2
    assert "cannot download train-images" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_names_are_taken_once_in_the_order_given():
    assert family.parse_routings("uniform, em,uniform") == ["uniform", "em"]


def plotted(**error):
    rows = [
        {"what": "routing", "name": name, "B": "128", "machine": "a GPU", "both_ms": str(ms), "test_error": "", **error}
        for name, ms in {"dynamic": 0.5, "uniform": 0.3, "em": 1.5}.items()
    ]
    return figure_family([*rows, {"what": "training step", "name": "capsnet"}])


def test_routings_are_plotted_fastest_first():
    (times,) = plotted().axes
    assert [label.get_text() for label in times.get_yticklabels()] == ["uniform", "dynamic", "em"]
    assert times.yaxis_inverted()
    assert [text.get_text() for text in times.texts] == ["0.30", "0.50", "1.50"]


def test_errors_are_plotted_with_their_standard_error():
    errors = plotted(test_error="0.64", test_n="10000", epochs="10").axes[1]
    assert "after 10 epochs" in errors.get_xlabel()
    assert [text.get_text() for text in errors.texts] == ["0.64"] * 3
    low, high = errors.lines[-1].get_xdata()
    assert high - low == pytest.approx(2 * (0.64 * 99.36 / 10000) ** 0.5)
