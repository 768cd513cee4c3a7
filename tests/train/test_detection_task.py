"""Detection as a task and on the command line: train, eval, detect to JSON, CSV and pictures; and every mistake."""

import csv
import json
import math

import pytest
import torch
from PIL import Image

import torchcaps
from torchcaps.data import SOURCES, Splits, annotate, draw_shapes
from torchcaps.errors import UserError
from torchcaps.models import create_model, save
from torchcaps.train.recipe import LossSection
from torchcaps.train.tasks.detection import DetectionTask

PARTS, SHIPPED = ("rectangle", "triangle"), "scenecaps-shapes"
TINY = ("--set", "data.source=few-shapes", "--set", "model.width=4", "--set", "train.epochs=1")


@pytest.fixture(scope="module", autouse=True)
def few_shapes():
    """A data set of a few drawn images."""
    parts = [annotate(draw_shapes(count, seed), PARTS) for seed, count in enumerate((16, 4, 6))]
    SOURCES["few-shapes"] = lambda *settings: Splits(*parts, "few-shapes")
    yield parts
    del SOURCES["few-shapes"]


@pytest.fixture(scope="module")
def run(few_shapes, tmp_path_factory):
    from torchcaps.train.recipe import load_recipe
    from torchcaps.train.run import start_run

    recipe = load_recipe("shapes", [setting for setting in TINY if setting != "--set"])
    return start_run(recipe, out=tmp_path_factory.mktemp("run") / "shapes", device="cpu")


@pytest.fixture
def picture(few_shapes, tmp_path):
    path = tmp_path / "boat.png"
    Image.fromarray(few_shapes[2].images[0, 0].numpy()).save(path)
    return path


def test_a_run_measures_objects(call, run):
    summary = json.loads((run / "summary.json").read_text())
    assert 0 <= summary["test_f1"] <= 1
    assert {"test_precision", "test_recall", "test_median_error_pixels"} <= set(summary)
    assert "<h2>Objects</h2>" in (run / "report.html").read_text()
    code, printed, _ = call("eval", run, "--json")
    assert code == 0
    assert json.loads(printed)["f1"] == pytest.approx(summary["test_f1"])


def test_detect_prints_json_csv_and_pictures(call, few_shapes, picture, tmp_path):
    arguments = ("--out", tmp_path / "found", "--csv", tmp_path / "objects.csv")
    code, printed, _ = call("detect", SHIPPED, picture, *arguments, "--json")
    assert code == 0
    (answer,) = json.loads(printed)
    assert answer["file"] == str(picture)
    (first,) = answer["objects"]
    truth = few_shapes[2].objects[0]
    (whole,) = truth[truth[:, 0] == 1]
    assert first["class"] == ("boat", "house")[int(whole[1])]
    assert math.hypot(first["x"] - whole[2], first["y"] - whole[3]) < 0.5
    assert sorted(part["class"] for part in first["parts"]) == ["rectangle", "triangle"]
    assert {"presence", "x", "y", "angle", "scale", "parts", "box"} == set(first) - {"class"}
    ys, xs = (few_shapes[2].images[0, 0] > 99).nonzero().unbind(-1)
    left, top, right, bottom = (f(v[i] for v in first["box"]) for f in (min, max) for i in (0, 1))
    assert left - 1 < xs.min() <= xs.max() < right + 1
    assert top - 1 < ys.min() <= ys.max() < bottom + 1
    rows = [*csv.DictReader((tmp_path / "objects.csv").read_text().splitlines())]
    assert len(rows) == 1
    assert float(rows[0]["x"]) == first["x"]
    assert sorted(path.name for path in (tmp_path / "found").iterdir()) == ["boat-objects.png", "boat.png"]
    code, printed, _ = call("detect", SHIPPED, picture)
    assert code == 0
    assert "°" in printed


def test_an_image_without_objects_has_an_empty_list(call, run, tmp_path):
    path = tmp_path / "black.png"
    Image.new("L", (40, 30)).save(path)
    code, printed, _ = call("detect", SHIPPED, path, "--json")
    assert (code, json.loads(printed)) == (0, [{"file": str(path), "objects": []}])
    code, printed, _ = call("detect", SHIPPED, path)
    assert "nothing" in printed


def test_files_that_cannot_be_read_are_named_and_the_others_answered(call, run, picture, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    code, printed, errors = call("detect", SHIPPED, tmp_path / "text.png", picture, tmp_path / "gone.png", "--json")
    assert code == 1
    assert [answer["file"] for answer in json.loads(printed)] == [str(picture)]
    assert "text.png" in errors
    assert "gone.png" in errors


def test_detect_from_python(few_shapes):
    images = few_shapes[2].images
    found = torchcaps.detect(SHIPPED, images)
    assert [len(objects) for objects in found] == [1] * 6
    one = torchcaps.detect(SHIPPED, images[:1].float() / 255)[0]
    assert one == found[0]
    assert one[0].drawing.shape == (1, 32, 32)
    assert (one[0].drawing - images[0].float() / 255).abs().mean() < 0.05
    assert one[0].box.shape == (4, 2)
    for wrong, message in (
        (images[0], r"images\[None\]"),
        (images[:, :, :0], "has nothing in it"),
        (images.float() / 0, "NaN or infinite"),
        (torch.zeros(1, 1, 1 << 13, 1 << 12), "too large"),
    ):
        with pytest.raises(UserError, match=message):
            torchcaps.detect(SHIPPED, wrong)
    with pytest.raises(UserError, match="presence=2"):
        torchcaps.detect(SHIPPED, images, presence=2)


def test_other_models_and_other_commands_say_what_to_use(call, run, picture, tmp_path):
    code, _, errors = call("detect", "capsnet-digits", picture)
    assert code == 2
    assert "does not find objects" in errors
    code, _, errors = call("predict", run, picture)
    assert code == 2
    assert "torchcaps detect" in errors
    code, _, errors = call("explain", run, picture, "--out", tmp_path / "why")
    assert code == 2
    assert "torchcaps detect" in errors
    code, _, errors = call("train", "digits", "--set", "model.name=scenecaps", "--out", tmp_path / "run")
    assert code == 2
    assert "it learns from images with objects" in errors
    code, _, errors = call("eval", run, "--data", "digits")
    assert code == 2
    assert "does not have the objects" in errors


def test_weights_of_the_losses(few_shapes):
    data = few_shapes[0]
    options = {"levels": data.levels, "members": data.members, "class_names": data.class_names}
    model = create_model("scenecaps_small", width=4, **options)
    assert set(DetectionTask.make(model, data, LossSection()).weights) == {
        "presence",
        "pose",
        "layout",
        "reconstruction",
    }
    assert DetectionTask.make(model, data, LossSection(reconstruction=0.5)).weights["reconstruction"] == 0.5
    with pytest.raises(UserError, match="no decoder"):
        DetectionTask.make(
            create_model("scenecaps_small", width=4, decoder="none", **options), data, LossSection(reconstruction=1.0)
        )
    with pytest.raises(UserError, match=r"loss\.margin is not for detection"):
        DetectionTask.make(model, data, LossSection(margin=1.0))


def test_a_saved_model_finds_the_same(few_shapes, tmp_path):
    model = torchcaps.load(SHIPPED)
    again = torchcaps.load(save(model, tmp_path / "model"))
    images = few_shapes[2].images
    assert torchcaps.detect(model, images) == torchcaps.detect(again, images)


@pytest.mark.slow
def test_shapes_are_found_at_all_angles_after_training_on_upright_ones(tmp_path):
    from torchcaps.data import frozen_set
    from torchcaps.metrics.objects import match_objects
    from torchcaps.train.recipe import load_recipe
    from torchcaps.train.run import start_run

    folder = start_run(load_recipe("shapes"), out=tmp_path / "run", device="cpu")
    model = torchcaps.load(folder)
    for name in ("upright", "turned"):
        data = annotate(frozen_set(name), PARTS)
        with torch.no_grad():
            output = model(data.images.float() / 255)
        matches = match_objects(output.label, output.presence, output.poses, data.objects, 1)
        assert matches.f1() >= 0.99, name
        figures = matches.summary()
        assert figures["median_error_pixels"] <= 0.5
        assert figures["median_error_degrees"] <= 2
        assert figures["median_error_scale"] <= 0.04
