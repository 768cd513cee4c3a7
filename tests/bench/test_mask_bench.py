"""`torchcaps bench --masks`: run time and memory of segmentation models."""

import csv

import pytest
import torch
from typer.testing import CliRunner

from torchcaps.bench import masks
from torchcaps.cli import app

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Sizes that run fast."""
    monkeypatch.setattr(masks, "TRAINING_SIZES_ON_CPU", ((16, 2),))
    made = masks.create_model
    options = {"segcaps": {"channels": 4, "width": 0.25}, "unet": {"channels": 2}}
    monkeypatch.setattr(masks, "create_model", lambda name, **given: made(name, **given, **options[name]))


def test_steps_of_every_model_are_timed_and_written(tmp_path):
    found = CliRunner().invoke(app, ["bench", "--masks", "--device", "cpu", "--out", str(tmp_path / "masks.csv")])
    assert found.exit_code == 0, found.output
    rows = list(csv.DictReader((tmp_path / "masks.csv").read_text().splitlines()))
    assert [(row["name"], row["side"], row["B"]) for row in rows] == [("segcaps", "16", "2"), ("unet", "16", "2")]
    assert all(float(row["ms"]) > 0 for row in rows)


def test_tiles_are_compared_with_a_prediction_without_tiles():
    row = masks.measure_tiles("segcaps", CPU, 24, 16, rounds=1)
    assert row.ms > 0
    assert row.difference < 1e-6


def test_a_wrong_prediction_by_tiles_shows(monkeypatch):
    right = masks.predict_map
    monkeypatch.setattr(masks, "predict_map", lambda *given: right(*given) + 0.25)
    assert masks.measure_tiles("segcaps", CPU, 24, 16, rounds=1).difference == pytest.approx(0.25, abs=1e-5)


@pytest.mark.parametrize("other", [["--scaling"], ["--routing", "all"]])
def test_one_comparison_at_a_time(other):
    found = CliRunner().invoke(app, ["bench", "--masks", *other])
    assert "do not go together" in str(found.exception)
