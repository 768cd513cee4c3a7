import json

import pytest
import torch
from PIL import Image

import torchcaps
from torchcaps.errors import UserError
from torchcaps.models import create_model
from torchcaps.train.evaluate import evaluate_model
from torchcaps.train.experiments.suite import run_suite, suite_table


@pytest.fixture(scope="module")
def model():
    return torchcaps.load("capsnet-digits")


def cnn(**options):
    return create_model(
        "matched_cnn", **{"image_shape": (1, 16, 16), "num_classes": 10, "parameters": 9_000, **options}
    )


def test_a_suite_is_written_and_drawn(model, tmp_path):
    out = tmp_path / "new" / "folder"
    result = run_suite(model, "scrambled", against=cnn(), names=("mine", "theirs"), n=40, out=out)
    assert json.loads((out / "scrambled.json").read_text()) == result
    with Image.open(out / "scrambled.png") as picture:
        assert picture.width > 300
    assert (result["n"], result["data"], result["models"]) == (40, "digits", ["mine", "theirs"])
    heading, rows = suite_table(result)
    assert heading == ["change", "strength", "measure", "mine", "theirs"]
    assert all(len(row) == 5 for row in rows)
    assert rows[0][:3] == ["quadrants", "intact", "accuracy"]


def test_all_test_images_give_the_accuracy_of_eval(model):
    result = run_suite(model, "scrambled", n=100_000)
    expected = evaluate_model(model)
    assert result["n"] == expected["n"]
    assert result["curves"][0]["values"]["model"][0] == pytest.approx(expected["accuracy"], abs=1e-5)


def test_images_are_drawn_from_each_class_by_the_seed(model, monkeypatch):
    seen = []
    monkeypatch.setitem(
        torchcaps.train.experiments.suite.SUITES,
        "affine",
        lambda models, images, targets, seed: seen.append((images, targets)) or {},
    )
    for seed in (0, 0, 1):
        run_suite(model, "affine", n=50, seed=seed)
    (first, classes), (again, _), (other, _) = seen
    assert classes.bincount().min() >= 4
    assert first.shape == (50, 1, 16, 16)
    assert first.max() <= 1
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_tables_leave_out_what_a_model_has_not_got(model):
    result = run_suite(model, "equivariance", against=cnn(), n=20)
    _, rows = suite_table(result)
    linear = [row for row in rows if row[2] == "R² of the pose"]
    assert [row[0] for row in linear] == ["rotation", "thickness", "shift"]
    assert all(row[3] and not row[4] for row in linear)
    assert any(row[2] == "angle of the pose" and row[3].endswith("°") for row in rows)


def test_unfamiliar_images_have_rows_by_score(model):
    result = run_suite(model, "unfamiliar", against=cnn(), n=20)
    _, rows = suite_table(result)
    by = {(row[1], row[2]): row[3:] for row in rows}
    assert result["height"] == 16  # the embedded digits fill their frame
    assert all(figure.endswith("%") for figure in by["look-alikes", "FPR95 by max length"])
    assert not any(figure.endswith("%") for figure in by["letters", "AUROC by max length"])
    capsules, network = by["dots", "AUROC by energy"]
    assert not capsules
    assert network
    assert by["0.95 of the images", "accuracy by max length"][0].endswith("%")
    assert not any(row[1] == "Fashion-MNIST" for row in rows)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"suite": "afine"}, "did you mean 'affine'"),
        ({"n": 0}, "at least 1"),
        ({"against": cnn(), "names": ("a", "a")}, "the same model"),
        ({"against": cnn(image_shape=(1, 28, 28)), "names": ("a", "b")}, "image_shape"),
        ({"against": cnn(class_names=list("abcdefghij")), "names": ("a", "b")}, "class_names"),
        ({"against": cnn(multi_label=True)}, "multi-label model"),
    ],
)
def test_mistakes_are_named(model, options, words):
    with pytest.raises(UserError, match=words):
        run_suite(model, **{"suite": "affine", "n": 10, **options})


def test_multi_label_models_are_sent_to_plain_eval(model, monkeypatch):
    monkeypatch.setitem(model.trained_by, "multi_label", True)
    with pytest.raises(UserError, match="without --suite"):
        run_suite(model, "affine")
