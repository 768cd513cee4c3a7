"""Runs that learn masks: the same loop, the same resume, and figures of their own."""

import csv
import json

import pytest
import torch

from torchcaps.data import SegmentationDataset, draw_axons, load_data, mask_sources
from torchcaps.errors import UserError
from torchcaps.models import load
from torchcaps.train import loop, run
from torchcaps.train.callbacks import Callback, RunCallback
from torchcaps.train.distributed import make_fabric
from torchcaps.train.evaluate import evaluate_model
from torchcaps.train.experiments.suite import run_suite
from torchcaps.train.recipe import load_recipe, make_recipe

TINY = [
    *("data.image_size=24", "data.validation=3", "augment.crop=16", "augment.rotate=10"),
    *("model.channels=2", "model.decoder=yes", "train.epochs=2", "train.batch_size=8"),
]


def tiny(*more):
    return load_recipe("segcaps", [*TINY, *more])


def of_folder(folder, *more):
    return tiny("data.source=pairs", f"data.path={folder}", "data.image_size=null", *more)


@pytest.fixture
def few_axons(monkeypatch):
    """The source "axons" with 12 images instead of hundreds."""
    monkeypatch.setattr(mask_sources, "AXONS", 12)
    monkeypatch.setattr(mask_sources, "TEST_AXONS", 5)


@pytest.fixture
def pairs(tmp_path, write_pairs):
    """A folder of ten pairs of 32×32, masks of 0 and 255."""
    return write_pairs(tmp_path / "pairs", draw_axons(10, 32))


def weights_of(folder):
    return load(folder).state_dict()


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_leaves_masks_measured_class_by_class_and_image_by_image(few_axons, tmp_path):
    folder = run.start_run(tiny(), out=tmp_path / "run", device="cpu")
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["train_n"], summary["val_n"], summary["test_n"]) == (9, 3, 5)
    assert summary["steps"] == 2 * 3  # windows of 16 in nine images of 24: two of each, eight to a step
    for part in ("val", "test"):
        assert 0 <= summary[f"{part}_iou"] <= summary[f"{part}_dice"] <= 1
        assert summary[f"{part}_hausdorff95"] >= 0
        assert 0 <= summary[f"{part}_pixel_error"] <= 1
        assert set(summary[f"{part}_per_class"]) == {"background", "axon"}
        assert summary[f"{part}_per_class"]["axon"]["dice"] == pytest.approx(summary[f"{part}_dice"], abs=1e-6)
    with open(folder / "images.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    axons = [float(row["dice"]) for row in rows if row["class"] == "axon"]
    assert sum(axons) / 5 == pytest.approx(summary["test_dice"], abs=1e-6)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {"train_dice", "train_dice_loss", "train_reconstruction", "val_dice", "val_loss"} <= set(lines[-1])
    assert not list(folder.rglob(".*"))

    model = load(folder)
    assert (model.class_names, model.trained_by["recipe"]) == (("background", "axon"), "segcaps")
    figures = evaluate_model(model)
    assert figures["dice"] == pytest.approx(summary["test_dice"], abs=1e-6)
    assert (figures["n"], len(figures["images"])) == (5, 10)
    with pytest.raises(UserError, match="--views"):
        evaluate_model(model, views=True)
    with pytest.raises(UserError, match="segmentation model"):
        run_suite(model, "affine")

    page = (folder / "report.html").read_text()
    for title in ("Summary", "Learning curves", "Per class", "Masks", "Image by image", "Recipe"):
        assert f"<h2>{title}</h2>" in page
    assert "The reconstruction uses the capsules" in page
    assert page.count("<img ") == 2


def test_resume_in_the_middle_of_an_epoch_is_exact(few_axons, tmp_path, monkeypatch):
    straight = run.start_run(tiny(), out=tmp_path / "straight", device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(RunCallback, "on_step", lambda self, state, _: setattr(self, "_stop", state.step >= 2))
        with pytest.raises(loop.Interrupted):
            run.start_run(tiny(), out=tmp_path / "halted", device="cpu")
    halted = run.resume_run(tmp_path / "halted", device="cpu")
    assert same(weights_of(straight), weights_of(halted))
    one, other = (json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1]) for folder in (straight, halted))
    assert one["val_dice"] == other["val_dice"]
    assert one["train_dice"] == pytest.approx(other["train_dice"], abs=1e-6)


def test_a_folder_of_pairs_is_learned_whatever_its_masks_mean(pairs, tmp_path, write_pairs):
    settings = ("data.positive=0", "data.test=last:2", "data.limit=3", "data.validation=0", "train.epochs=1")
    folder = run.start_run(of_folder(pairs, *settings), out=tmp_path / "run", device="cpu")
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["train_n"], summary["val_n"], summary["test_n"]) == (3, 0, 2)
    model = load(folder)
    splits = load_data(**model.trained_by["data"])
    assert splits.test.names == ("axons-00008", "axons-00009")
    assert splits.test.class_counts()[1] > splits.test.class_counts()[0]  # here the background is looked for
    everything = evaluate_model(model, str(pairs))
    assert everything["n"] == 10
    assert everything["per_class"]["foreground"]["dice"] == pytest.approx(everything["dice"])
    ids = write_pairs(tmp_path / "ids", draw_axons(2, 20), values=(1, 7))
    with pytest.raises(UserError, match="positive=0: no mask has this value"):
        evaluate_model(model, str(ids))


def test_a_source_by_name_is_measured_by_the_split_it_was_trained_with(pairs, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    (tmp_path / "isbi2012").symlink_to(pairs)
    settings = ("data.source=isbi2012", "data.positive=0", "data.test=last:2", "data.validation=0", "train.epochs=1")
    folder = run.start_run(tiny("data.image_size=null", *settings), out=tmp_path / "run", device="cpu")
    own, named = evaluate_model(load(folder)), evaluate_model(load(folder), "isbi2012")
    assert own["n"] == named["n"] == 2
    assert own["dice"] == named["dice"]
    for setting in ("augment.crop=8", "data.limit=3"):
        with pytest.raises(UserError, match="is fixed by the run"):
            run.resume_run(folder, [setting], device="cpu")


def test_of_few_images_the_larger_choice_holds_the_smaller(pairs):
    names = [
        set(load_data("pairs", path=pairs, validation=0, test="last:2", limit=limit, split_seed=3).train.names)
        for limit in (2, 4, 8)
    ]
    assert [len(each) for each in names] == [2, 4, 8]
    assert names[0] < names[1] < names[2]


def test_a_unet_learns_by_the_same_recipe(few_axons, tmp_path):
    recipe = tiny("model={name: unet, channels: 2, depth: 2}", "train.epochs=1", "train.read_test=no")
    folder = run.start_run(recipe, out=tmp_path / "run", device="cpu")
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["test_dice"], summary["test_n"]) == (None, 0)
    assert "test_iou" not in summary
    assert "The reconstruction uses" not in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    "model", [{"name": "segcaps", "channels": 4, "width": 0.25}, {"name": "unet", "channels": 4, "depth": 2}]
)
def test_steps_of_masks_run_and_on_a_gpu_are_recorded(tmp_path, caplog, model):
    tree = {"name": "steps", "data": {"source": "axons", "image_size": 32, "limit": 8, "validation": 0}}
    changes = {"crop": 24, "rotate": 15, "elastic": 1, "turn": True, "flip": True, "contrast": 0.1, "noise": 0.05}
    train = {"epochs": 3, "batch_size": 2, "read_test": False, "ema": 0.9, "repeat": 2}
    tree |= {"model": model, "augment": changes, "train": train, "optim": {"lr": 0.003}}
    tree["loss"] = {"cross_entropy": 1.0, "dice": 1.0}
    folder = run.start_run(make_recipe(tree), out=tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["train_loss"] < lines[0]["train_loss"]
    assert "could not be" not in caplog.text


def test_a_run_that_holds_nothing_out_still_ends(pairs, tmp_path):
    recipe = of_folder(pairs, "data.validation=0", "data.test=0", "train.epochs=1", "model.decoder=no")
    folder = run.start_run(recipe, out=tmp_path / "run", device="cpu")
    assert "there is nothing to show" in (folder / "report.html").read_text()
    assert not (folder / "images.csv").exists()
    with pytest.raises(UserError, match="no test set"):
        evaluate_model(load(folder))


def test_it_learns(few_axons):
    """Where bright is class 1, a few steps are enough."""
    recipe = tiny("train.epochs=12", "optim.lr=0.02", "model.channels=4", "data.image_size=16", "data.validation=0")
    splits = load_data(**recipe.data.model_dump())
    bright = [(image[0] > 60).to(torch.uint8) for image in splits.train.images]
    data = SegmentationDataset(splits.train.images, bright, splits.train.class_names, splits.train.names)
    with run.seeded(0, torch.device("cpu")):
        state, task = run.make_state(recipe, data, torch.device("cpu"))
        before = task.evaluate(state.model, data).score
        fabric = make_fabric("cpu", "fp32")
        loop.train(state, data, None, task, recipe, fabric, Callback())
    after = task.evaluate(state.model, data).score
    assert after > max(0.6, before + 0.1)
