import json
from itertools import pairwise

import pytest
import torch
from torch import nn

from torchcaps.errors import UserError
from torchcaps.explain.style import png_bytes
from torchcaps.metrics.detection import roc_points
from torchcaps.metrics.equivariance import angles, linearity
from torchcaps.metrics.predictions import predict_batches
from torchcaps.models import ImageModel, Output, create_model
from torchcaps.robustness import suites
from torchcaps.robustness.charts import FIGURES
from torchcaps.robustness.suites import SUITES

SIDE = 16


class Finder(ImageModel):
    """Two classes, left and right half; the pose is where the brightness lies, as a line or as a parabola."""

    def __init__(self, bent: bool = False, poses: bool = True):
        super().__init__((1, SIDE, SIDE), 2)
        self.bent, self.poses = bent, poses
        self.unused = nn.Parameter(torch.zeros(1))
        self.seen: list[torch.Tensor] = []

    def forward(self, images, targets=None):
        assert not self.training
        self.seen.append(images.detach())
        places = torch.arange(SIDE) - (SIDE - 1) / 2
        centre = (images.sum((1, 2)) * places).sum(-1) / images.sum((1, 2, 3)).clamp_min(1e-6)
        lengths = torch.stack([-centre, centre], 1).sigmoid()
        moving = centre.square() if self.bent else 3 + centre
        poses = torch.stack([torch.ones_like(centre), moving], -1)[:, None].expand(-1, 2, -1)
        return Output(lengths, poses if self.poses else None, logits=None if self.poses else lengths)


def points(columns: list[int]) -> torch.Tensor:
    """An image for each column: a bright pixel in it, half way down."""
    images = torch.zeros(len(columns), 1, SIDE, SIDE)
    images[torch.arange(len(columns)), 0, SIDE // 2, columns] = 1
    return images


def along(result, change, measure="accuracy"):
    (curve,) = (c for c in result["curves"] if (c["change"], c["measure"]) == (change, measure))
    return dict(zip(curve["strengths"], zip(*curve["values"].values())))


@pytest.fixture(scope="module")
def everything():
    """What every suite says of a capsule network, a CNN and one without a decoder, on a few random images."""
    torch.manual_seed(0)
    shape = {"image_shape": (1, SIDE, SIDE), "num_classes": 3}
    models = {
        "capsules": create_model("capsnet_small", **shape, channels=4, types=2),
        "CNN $5": create_model("matched_cnn", **shape, parameters=5_000),
        "no decoder": create_model("capsnet_small", **shape, channels=4, types=2, decoder="none"),
    }
    images, targets = torch.rand(12, 1, SIDE, SIDE), torch.arange(12) % 3
    return {name: suite(models, images, targets, seed=1) for name, suite in SUITES.items()}, models, images, targets


@pytest.mark.parametrize("suite", sorted(SUITES))
def test_results_are_plain_and_repeatable(suite, everything):
    results, models, images, targets = everything
    result = results[suite]
    assert json.loads(json.dumps(result)) == result
    assert (result["suite"], result["n"], result["models"]) == (suite, 12, list(models))
    for curve in result["curves"]:
        assert all(len(values) == len(curve["strengths"]) for values in curve["values"].values())
    if suite != "adversarial":  # the slow one; its attacks are tested for this by themselves
        assert SUITES[suite](models, images, targets, seed=1) == result
    if suite in ("scrambled", "crowding"):
        assert SUITES[suite](models, images, targets, seed=2)["curves"] != result["curves"]


@pytest.mark.parametrize("suite", sorted(SUITES))
@pytest.mark.parametrize("name", [None, "CNN $5"])
def test_figures_have_room_for_their_words(suite, name, everything):
    result = everything[0][suite]
    if name:  # one model alone, without poses or reconstructions
        result = only(name, result)
    figure = FIGURES[suite](result)
    assert png_bytes(figure, 50)
    (legend,) = figure.legends
    canvas, box = figure.get_window_extent(), legend.get_window_extent()
    assert canvas.x0 <= box.x0
    assert box.x1 <= canvas.x1
    for axes in figure.axes:
        assert not box.overlaps(axes.get_tightbbox())
        ticks = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        assert all(left.x1 <= right.x0 for left, right in pairwise(ticks))


def only(name, result):
    curves = [c | {"values": {name: c["values"][name]}} for c in result["curves"] if name in c["values"]]
    return {**result, "models": [name], "curves": curves, "detection": [], "linearity": []}


def test_accuracy_falls_where_the_model_must_err():
    images, targets = points([2, 3, 12, 13]), torch.tensor([0, 0, 1, 1])
    result = suites.affine({"finder": Finder()}, images, targets)
    moved = along(result, "translation")
    assert moved[0] == (1.0,)
    assert moved[8] == (0.5,)  # 2 → 10 by a move to the right errs; 13 → 5 by one to the left; two go up and down
    turned = along(result, "rotation")
    assert turned[0] == turned[-45] == (1.0,)
    assert set(turned) == set(range(-90, 91, 15))
    assert set(along(result, "scale")) >= {0.5, 1.0, 1.5}


def test_all_models_see_the_same_changed_images_and_none_trains():
    first, second = Finder().train(), Finder()
    suites.corruption({"a": first, "b": second}, torch.rand(5, 1, SIDE, SIDE), torch.zeros(5, dtype=torch.long))
    assert len(first.seen) == 21
    assert all(torch.equal(mine, other) for mine, other in zip(first.seen, second.seen))
    assert first.training
    again = Finder()
    suites.corruption({"a": again}, torch.ones(5, 1, SIDE, SIDE), torch.zeros(5, dtype=torch.long), seed=1)
    assert len({image.sum().item() for image in again.seen[1]}) == 5  # every image has noise of its own


def test_batches_make_one_answer():
    model, images = Finder(), torch.rand(600, 1, SIDE, SIDE)
    answers = predict_batches({"finder": model}, images)["finder"]
    assert [len(seen) for seen in model.seen] == [256, 256, 88]
    torch.testing.assert_close(answers.lengths, model.eval()(images).lengths)
    assert answers.errors is None


def test_a_pose_that_follows_in_a_line_has_r_squared_1():
    models = {"straight": Finder(), "bent": Finder(bent=True), "none": Finder(poses=False)}
    images = points([7, 8])
    result = suites.equivariance(models, images, torch.tensor([0, 1]))
    (found,) = (each for each in result["linearity"] if each["change"] == "shift")
    assert found["values"]["straight"] == pytest.approx(1, abs=1e-6)
    assert found["values"]["bent"] == pytest.approx(60 / 368, abs=1e-5)  # of (s ± ½)², the line's share over −4 … 4
    assert set(found["values"]) == {"straight", "bent"}
    assert found["chance"] == pytest.approx(1 / 8)
    lengths, turned = along(result, "shift", "length of the true class"), along(result, "shift", "angle of the pose")
    assert len(lengths[0]) == 3
    assert turned[0] == (0.0, 0.0)
    assert turned[-4][0] > turned[-2][0] > 1


def test_r_squared_by_hand_and_by_chance():
    strengths = [-1.0, 0.0, 1.0]
    poses = torch.tensor([[[0.0, 5.0]], [[0.0, 5.0]], [[3.0, 5.0]]])  # total 6, of which the line explains 4.5
    assert linearity(poses, strengths) == pytest.approx(0.75)
    assert linearity(torch.ones(3, 4, 2), strengths) is None
    still = torch.cat([poses, torch.ones(3, 1, 2)], dim=1)  # one that moves, one that does not
    assert linearity(still, strengths) == pytest.approx(0.75)
    assert linearity(torch.randn(9, 4000, 6), list(range(9))) == pytest.approx(1 / 8, abs=0.01)


def test_angles_by_hand():
    poses = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[0.0, 3.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, -1.0]]])
    assert angles(poses, 0) == pytest.approx([0, 45, 180])


def test_detection_of_separable_and_of_indistinguishable_errors():
    clean = torch.rand(2000)
    apart = roc_points(clean, clean + 2)
    assert apart["auc"] == 1
    assert roc_points(clean, torch.rand(2000))["auc"] == pytest.approx(0.5, abs=0.03)
    assert roc_points(clean, clean - 2)["auc"] == 0
    curve = roc_points(clean, clean + 0.3)
    assert len(curve["caught"]) == len(curve["false_alarms"]) <= 100
    assert (curve["false_alarms"][0], curve["caught"][-1]) == (0, 1)
    assert curve["auc"] == pytest.approx(1 - 0.7**2 / 2, abs=0.03)


def test_attacks_are_detected_only_with_a_decoder(everything):
    result = everything[0]["adversarial"]
    assert {each["model"] for each in result["detection"]} == {"capsules"}
    assert len(result["detection"]) == len(suites.ATTACKS) * (len(suites.EPS) - 1)
    unharmed = [along(result, method)[0.0] for method in suites.ATTACKS]
    assert len(set(unharmed)) == 1


def test_shuffled_parts_change_the_answer_of_a_model_that_looks_where_they_are():
    images, targets = points([0, 15] * 40), torch.tensor([0, 1] * 40)
    result = suites.scrambled({"finder": Finder()}, images, targets)
    right = along(result, "quadrants")
    assert right["intact"] == right["mirrored"] == (1.0,)  # mirrored within its quadrant, a point keeps its side
    assert 0.2 < right["shuffled"][0] < 0.8
    assert along(result, "quadrants", "length of the true class")["mirrored"][0] < 1


def test_crowds_are_pairs_of_one_class_and_of_two():
    model = Finder()
    columns = [2, 3, 4, 11, 12, 13]
    images, targets = torch.zeros(6, 1, SIDE, SIDE), torch.tensor([0, 0, 0, 1, 1, 1])
    images[torch.arange(6), 0, torch.arange(6), columns] = 1  # the row tells which image it was
    result = suites.crowding({"finder": model}, images, targets)
    alone, same, different = model.seen
    assert torch.equal(alone, images)
    for seen, one_class in ((same, True), (different, False)):
        for overlaid in seen[:, 0]:
            (one, at), (two, there) = overlaid.nonzero().tolist()
            assert one != two
            assert (targets[one] == targets[two]) == one_class
            assert {at - columns[one], there - columns[two]} == {-2, 2}
    assert along(result, "images", "longest is of a shown class") == {
        "alone": (1.0,),
        "same class": (1.0,),
        "two classes": (1.0,),
    }
    assert along(result, "images", "shown classes are in the longest two")["two classes"] == (1.0,)
    lengths = along(result, "images", "longest capsule")
    assert lengths["two classes"] < lengths["same class"]
    assert result["pairs"] == {"alone": 6, "same class": 6, "two classes": 6}


def test_crowds_need_company():
    with pytest.raises(UserError, match="of one class"):
        suites.crowding({"finder": Finder()}, points([2, 3]), torch.tensor([0, 0]))
    with pytest.raises(UserError, match="two images"):
        suites.crowding({"finder": Finder()}, points([2, 13]), torch.tensor([0, 1]))
