"""Which models can be explored, how they are described, and which models are served beside the shipped ones."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from bodies import as_file, pixels_of, random_pixels
from PIL import Image, ImageDraw

from torchcaps.errors import UserError
from torchcaps.models import create_model, save, shipped_models
from torchcaps.serve.explorer import Explorer
from torchcaps.serve.requests import PredictRequest, ReconstructRequest, RoutingRequest, TransformRequest
from torchcaps.serve.served_models import ServedModel, check_explorable, load_models


def small(name="capsnet_small", shape=(1, 20, 20), **options):
    return create_model(name, image_shape=shape, **options).eval()


def test_models_are_described(explorer):
    described = explorer.models()
    assert described.default == "capsules"
    main, pairs, cnn, poses = described.models
    assert [(each.kind, each.role) for each in described.models] == [
        ("capsules", "main"),
        ("capsules", "overlap"),
        ("cnn", "comparison"),
        ("poses", "main"),
    ]
    assert (main.image.channels, pairs.image.height, pairs.image.width) == (1, 36, 36)
    assert (main.pose, main.iterations, main.classes) == (16, 3, list("0123456789"))
    assert (main.grid.types, main.grid.rows, main.grid.columns) == (4, 10, 10)
    assert (main.grid.stride, main.grid.field, main.grid.offset) == (2, 9, 0)
    assert (cnn.pose, cnn.iterations, cnn.grid) == (None, None, None)
    assert (poses.pose, poses.iterations, poses.grid) == (16, None, None)
    assert poses.placement == ["x", "y", "angle", "scale", "shear"]
    assert (poses.lattice.angles, poses.lattice.full_circle) == ([-45, -30, -15, 0, 15, 30, 45], False)
    assert (main.lattice, main.placement) == (None, None)
    assert [(each.part_types, each.part_pose) for each in described.models] == [(4, 8), (4, 8), (None, None), (4, 8)]
    assert [each.decoder for each in described.models] == [True, True, False, True]


def test_the_grid_of_the_papers_network():
    grid = ServedModel("paper", create_model("capsnet")).describe().grid
    assert (grid.types, grid.rows, grid.columns, grid.stride, grid.field) == (32, 6, 6, 2, 17)


@pytest.mark.parametrize("padding", [0, 2])
def test_the_box_of_a_part_is_its_receptive_field(padding):
    torch.manual_seed(0)
    served = ServedModel("one", small(shape=(1, 21, 24), padding=padding))
    types, rows, columns = served.part_grid
    for row, column in ((0, 0), (1, 2), (rows - 1, columns - 1)):
        image = torch.rand(1, 1, 21, 24, requires_grad=True)
        lengths = served.model.children_of(image).activation.view(types, rows, columns)
        lengths[:, row, column].sum().backward()
        seen = image.grad[0, 0].nonzero()
        part = {"type": 0, "row": row, "column": column}
        pixels = {"pixels": torch.rand(21, 24).tolist()}
        box = Explorer([served]).routing(RoutingRequest(image=pixels, part=part)).part.box
        (top, left), (bottom, right) = seen.min(0).values.tolist(), (seen.max(0).values + 1).tolist()
        assert box == [top, left, bottom, right]


@pytest.mark.parametrize("name", ["capsnet_small", "efficient_capsnet"])
@pytest.mark.parametrize("options", [{"num_classes": 1}, {"num_classes": 3}])
def test_colour_other_shapes_and_few_classes(name, options):
    torch.manual_seed(0)
    explorer = Explorer([ServedModel("one", small(name, (3, 32, 36), **options))])
    check_explorable(explorer.served_models["one"])
    image = {"png": as_file(Image.new("RGB", (50, 40), "navy")), "centre": False}
    answer = explorer.predict(PredictRequest(image=image, top=5))
    assert len(answer.winners) == len(answer.lengths) == options["num_classes"]
    assert pixels_of(answer.seen).shape == pixels_of(answer.decoded[0].reconstruction).shape == (32, 36, 3)
    strip = explorer.reconstruct(ReconstructRequest(**{"class": 0, "pose": [0.1] * 16, "sweep": True})).sweep
    assert pixels_of(strip.picture).shape == (16 * 32, 11 * 36, 3)
    steps = explorer.routing(RoutingRequest(image=image)).steps
    assert all(0 <= step.entropy <= 1 for step in steps)
    assert (
        explorer.transform(TransformRequest(image=image, rotate=20.0, along="scale", steps=3)).curve.comparison is None
    )


@pytest.mark.parametrize("options", [{"leaky": True}, {"routing": "self_attention"}, {"routing": "inverted_attention"}])
def test_other_routings_can_be_explored(options):
    torch.manual_seed(0)
    served = ServedModel("one", small(**options))
    check_explorable(served)
    steps = Explorer([served]).routing(RoutingRequest(image=random_pixels(side=20), iterations=2)).steps
    assert all(0 <= step.entropy <= 1 for step in steps)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (("segcaps", (1, 32, 32), {}), "segments or generates"),
        (("capspix2pix_small", (1, 32, 32), {}), "segments or generates"),
        (("em_capsnet", (1, 20, 20), {"channels": 4, "primary": 2, "first": 2, "second": 2}), "no capsules"),
        (("matched_cnn", (1, 20, 20), {"parameters": 20_000}), "no capsules"),
        (("capsnet_small", (1, 20, 20), {"decoder": "none"}), "no decoder"),
        (("capsnet_small", (1, 20, 20), {"routing": "em", "dim": 16}), "matrices"),
    ],
)
def test_models_that_cannot_be_explored_are_rejected(model, message):
    name, shape, options = model
    with pytest.raises(UserError, match=f"^mine cannot be explored.*{message}"):
        check_explorable(ServedModel("mine", small(name, shape, **options)))


def test_damaged_weights_are_refused():
    model = small()
    model.classes.weight.data[0] = torch.nan
    with pytest.raises(UserError, match="output is NaN"):
        check_explorable(ServedModel("mine", model))


def test_a_model_in_a_folder_is_served_alone(tmp_path):
    save(small(class_names=["a", "b"], num_classes=2), tmp_path / "run")
    (served,) = load_models(str(tmp_path / "run"))
    assert (served.name, served.card, served.meanings) == ("run", {}, None)
    (tmp_path / "run" / "card.json").write_text(json.dumps({"error": 0.5}))
    assert load_models(str(tmp_path / "run") + "/")[0].card == {"error": 0.5}


@pytest.fixture(scope="module")
def shipped():
    return load_models("capsnet-mnist")


def test_extra_models_are_served_with_the_shipped_one(shipped):
    extra = [name for name in ("capsnet-multimnist", "cnn-mnist", "capsnet-mnist-routing") if name in shipped_models()]
    assert [each.name for each in shipped] == ["capsnet-mnist", *extra]
    assert "cnn-mnist" in extra
    assert [each.role for each in shipped] == ["main", "overlap", "comparison", "routing"]
    assert [each.role for each in load_models("capsnet-mnist-routing")] == ["main", "overlap", "comparison"]
    assert shipped[0].card["error"] < 0.005


@pytest.mark.skipif("capsnet-multimnist" not in shipped_models(), reason="weights for pairs are not shipped")
def test_models_trained_on_pairs_are_marked(shipped):
    (alone,) = load_models("capsnet-multimnist")
    assert alone.describe().pairs
    assert [each.describe().pairs for each in shipped] == [False, True, False, False]


@pytest.mark.parametrize(("paper", "pen"), [(255, 0), (235, 30), (200, 40), (255, 130)])
def test_a_photographed_digit_is_classified_on_any_paper(shipped, paper, pen):
    image = Image.new("L", (400, 300), paper)
    ImageDraw.Draw(image).line([(140, 60), (260, 60), (190, 240)], fill=pen, width=18)
    noise = np.random.default_rng(0).normal(0, 5, (300, 400))
    photo = (np.asarray(image) + noise).clip(0, 255).astype(np.uint8)
    answer = Explorer(shipped).predict(PredictRequest(image={"png": as_file(photo), "centre": True}))
    assert answer.winners == [7]
    assert answer.lengths[7] > 0.8


def test_the_shipped_network_classifies_a_drawn_digit(shipped):
    paper = Image.new("L", (400, 300), "white")
    pen = ImageDraw.Draw(paper)
    pen.line([(40, 30), (140, 30), (80, 200)], fill="black", width=14)  # a 7, small and off centre
    answer = Explorer(shipped).predict(PredictRequest(image={"png": as_file(paper, "jpeg"), "centre": True}))
    assert answer.winners == [7]
    assert answer.lengths[7] > 0.8
    assert answer.error < 0.05


def test_the_shipped_meanings_follow_the_documented_rule(shipped):
    """A dimension has a name exactly if one property correlates well and clearly better than the others."""
    meanings = shipped[0].describe().meanings
    assert [len(row) for row in meanings] == [16] * 10
    for each in (each for row in meanings for each in row):
        second = max(map(abs, each.others.values()))
        assert (each.name is not None) == (
            abs(each.correlation) >= 0.6 and abs(each.correlation) - second >= 0.15 - 1e-9
        )
        assert len(each.others) == 5
    named = [each.name for row in meanings for each in row if each.name]
    page = (Path(__file__).parents[2] / "docs" / "explorer.md").read_text(encoding="utf-8")
    assert f"Of the 160 dimensions of `capsnet-mnist`, {len(named)} get a name" in page
    assert f"{named.count('thickness')} thickness" in page
