"""Pose capsules from a recipe to a run: their losses, their threshold, their report, and an exact resume."""

from __future__ import annotations

import json

import pytest
import torch

from torchcaps.data import Dataset
from torchcaps.errors import UserError
from torchcaps.explain.familiarity import score_images
from torchcaps.models import create_model, load, save
from torchcaps.train.calibrate import none_threshold
from torchcaps.train.recipe import LossSection, load_recipe
from torchcaps.train.run import start_run
from torchcaps.train.tasks.classification import ClassificationTask

QUICK = ["data.limit=120", "data.image_size=12", "model.width=2", "train.epochs=2", "optim.warmup_steps=0"]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return create_model("posecaps_small", image_shape=(1, 12, 12), num_classes=3, width=2)


@pytest.fixture
def images():
    pixels = torch.randint(256, (40, 1, 12, 12), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return Dataset(pixels, torch.arange(40) % 3, ("a", "b", "c"))


def test_disagreement_is_among_the_losses(model, images):
    task = ClassificationTask.make(model, images, LossSection())
    assert task.weights["disagreement"] == 0.1
    batch, targets = model.prepare(images.images), images.targets
    output = model(batch, targets)
    assert torch.equal(task.terms(output, batch, targets)["disagreement"], output.disagreement)
    assert "disagreement" not in ClassificationTask.make(model, images, LossSection(disagreement=0)).weights


def test_disagreement_of_other_models_is_refused(images):
    other = create_model("capsnet_small", image_shape=(1, 12, 12), num_classes=3)
    assert "disagreement" not in ClassificationTask.make(other, images, LossSection()).weights
    with pytest.raises(UserError, match=r"loss.disagreement: only pose capsules .* omit it"):
        ClassificationTask.make(other, images, LossSection(disagreement=0.1))


@pytest.mark.parametrize("kept", [0.9, 0.5])
def test_threshold_keeps_the_share_that_was_asked_for(model, images, kept):
    threshold = none_threshold(model.eval(), images, kept)
    scores = score_images(model, model.prepare(images.images)).scores["familiarity"]
    assert (scores >= threshold).float().mean().item() == pytest.approx(kept, abs=1 / 40)


def test_no_threshold_without_validation_images_or_familiarity(model, images):
    assert none_threshold(model, None) is None
    assert none_threshold(model, images.subset(torch.arange(10))) is None
    assert none_threshold(create_model("capsnet_small", image_shape=(1, 12, 12), num_classes=3), images) is None


def test_threshold_is_saved_with_the_model(model, tmp_path):
    assert load(save(model, tmp_path / "unset")).none_below is None
    model.none_below = 1.25
    assert load(save(model, tmp_path / "set")).none_below == 1.25


def test_a_run_from_the_recipe(tmp_path):
    folder = start_run(load_recipe("posecaps", [*QUICK, "data.validation=30"]), out=tmp_path / "run", device="cpu")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["model"] == "posecaps_small"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line["train_disagreement"] > 0 for line in lines if "train_disagreement" in line)
    assert any("train_disagreement" in line for line in lines)
    model = load(folder)
    assert isinstance(model.none_below, float)
    page = (folder / "report.html").read_text()
    assert "Poses" in page
    assert "Views" in page
    assert "<h2>None of these</h2>" in page
    assert "Accuracy over the most familiar 95 %" in page
    assert summary["thickness"] == model.trained_by["thickness"]
    assert summary["thickness"]["given"] == (model.thickness_weight is not None)


def test_eval_counts_what_is_answered_none_of_these(model, images, call, monkeypatch):
    """Half of the images are rejected; which of the others are right is counted by hand."""
    monkeypatch.setattr("torchcaps.load", lambda name, device="cpu": model.eval())
    monkeypatch.setattr(
        "torchcaps.train.tasks.classification.classification_test_set", lambda model, data: (images, "drawn")
    )
    assert "none_of_these" not in json.loads(call("eval", "model", "--json")[1])
    scored = score_images(model, images.images)
    familiar = scored.scores["familiarity"]
    model.none_below = familiar.median().item()
    found = json.loads(call("eval", "model", "--json")[1])["none_of_these"]
    kept = familiar >= model.none_below
    assert (found["rejected"], found["none_below"]) == (19, model.none_below)
    right = (scored.classes == images.targets)[kept].double().mean().item()
    assert found["kept_accuracy"] == pytest.approx(right, abs=1e-5)
    printed = call("eval", "model")[1]
    assert f"none of these: 19 of 40 images (47.50%), familiarity below {model.none_below:.4g}" in printed
    assert f"of the 21 kept {right:.2%} right; of the most familiar 95 %" in printed


def test_the_same_seed_gives_the_same_weights(tmp_path):
    recipe = load_recipe("posecaps", QUICK)
    first, second = (load(start_run(recipe, out=tmp_path / name, device="cpu")) for name in ("a", "b"))
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values()))
