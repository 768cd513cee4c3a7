"""Shipped weights: each loads, and measures exactly what its card says."""

import json
import sys
from pathlib import Path

import pytest
import torch

import torchcaps
from torchcaps.errors import UserError
from torchcaps.models.files import WEIGHTS_DIR, shipped_models
from torchcaps.train.evaluate import evaluate_model
from torchcaps.train.recipe import load_recipe
from torchcaps.train.run import start_run

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from ship_weights import ship

EMBEDDED = [name for name in shipped_models() if torchcaps.load(name).trained_by["data"]["source"] == "digits"]


def test_the_default_recipes_weights_are_shipped():
    assert "capsnet-digits" in EMBEDDED


def test_every_shipped_model_is_small_says_how_it_was_made_and_is_the_one_of_its_card():
    assert sum(path.stat().st_size for path in WEIGHTS_DIR.rglob("*") if path.is_file()) <= 33e6
    for name in shipped_models():
        card, page = (
            json.loads((WEIGHTS_DIR / name / "card.json").read_text()),
            (WEIGHTS_DIR / name / "README.md").read_text(),
        )
        model = torchcaps.load(name)
        assert model.parameter_count() == card["parameters"]
        assert model.trained_by["data"]["source"] == card["data"]
        assert f"torchcaps train {card['recipe']} --seed {card['seed']}" in page
        measured = next(name for name in ("dice", "f1", "error") if name in card)
        shown = {"dice": "Dice {:.2%}", "f1": "F1 {:.2%}", "error": "error {:.4%}"}[measured].format(card[measured])
        assert shown in page
        assert measured != "error" or f"({round(card['error'] * card['n'])} wrong)" in page


@pytest.mark.parametrize("name", EMBEDDED)
def test_shipped_weights_measure_what_their_card_says(name):
    card = json.loads((WEIGHTS_DIR / name / "card.json").read_text())
    figures = evaluate_model(torchcaps.load(name))
    assert (figures["error"], figures["n"]) == (card["error"], card["n"])
    assert torchcaps.load(name).parameter_count() == card["parameters"]


def test_ship_halves_the_file_and_measures_what_it_wrote(tmp_path):
    settings = ["data.image_size=12", "data.limit=64", "model.channels=4", "model.types=2", "train.epochs=1"]
    run = start_run(load_recipe("digits", settings), out=tmp_path / "run", device="cpu")
    facts = ship(run, "mine", tmp_path / "shelf")
    folder = tmp_path / "shelf" / "mine"
    whole, half = (path.stat().st_size for path in (run / "model" / "model.safetensors", folder / "model.safetensors"))
    assert half < 0.6 * whole
    card = (folder / "README.md").read_text()
    assert "torchcaps train digits --seed 0" in card
    assert facts["error"] == evaluate_model(torchcaps.load(folder))["error"]
    assert next(torchcaps.load(folder).parameters()).dtype == torch.float32
    ship(run, "smaller", tmp_path / "shelf", decoder=False)
    smaller = torchcaps.load(tmp_path / "shelf" / "smaller")
    assert smaller.decoder is None
    assert (
        f"without the decoder that it was trained with, {smaller.parameter_count():,} parameters"
        in (tmp_path / "shelf" / "smaller" / "README.md").read_text()
    )
    images = torch.rand(2, 1, 12, 12)
    assert torch.equal(smaller(images).lengths, torchcaps.load(folder)(images).lengths)


def test_a_generator_is_shipped_with_the_dice_of_those_that_learned_from_it(tmp_path, monkeypatch):
    monkeypatch.setattr("torchcaps.data.mask_sources.AXONS", 6)
    monkeypatch.setattr("torchcaps.data.mask_sources.TEST_AXONS", 3)
    monkeypatch.setattr("torchcaps.train.experiments.judge.DRAWS", 2)
    settings = ["model.channels=2", "augment.crop=16", "data.image_size=16", "discriminator.channels=2"]
    run = start_run(load_recipe("capspix2pix", [*settings, "train.epochs=1"]), out=tmp_path / "run", device="cpu")
    facts = ship(run, "mine", tmp_path / "shelf")
    card = json.loads((tmp_path / "shelf" / "mine" / "card.json").read_text())
    assert (card["dice"], card["n"], card["data"]) == (facts["dice"], 3, "axons")
    assert f"Dice {card['dice']:.2%}" in (tmp_path / "shelf" / "mine" / "README.md").read_text()


def test_a_model_of_masks_is_shipped_with_its_dice(tmp_path, monkeypatch):
    monkeypatch.setattr("torchcaps.data.mask_sources.AXONS", 6)
    monkeypatch.setattr("torchcaps.data.mask_sources.TEST_AXONS", 3)
    settings = ["model.channels=2", "data.image_size=16", "train.epochs=1"]
    run = start_run(load_recipe("segcaps", settings), out=tmp_path / "run", device="cpu")
    facts = ship(run, "mine", tmp_path / "shelf")
    assert f"Dice {facts['dice']:.2%} on 3 test images" in (tmp_path / "shelf" / "mine" / "README.md").read_text()


def test_unfinished_run_is_not_shipped(tmp_path):
    with pytest.raises(UserError, match="has not finished"):
        ship(tmp_path, "mine", tmp_path / "shelf")
    assert not (tmp_path / "shelf").exists()
