"""The CNNs that pose capsules are compared with: their size, their answers, and the lattice of poses."""

from __future__ import annotations

import math

import pytest
import torch

from torchcaps.errors import UserError
from torchcaps.geometry import Lattice, view
from torchcaps.losses import cross_entropy, margin_loss
from torchcaps.models import create_model, load, save
from torchcaps.models.baselines.sizes import largest
from torchcaps.models.registry import accepts_option

NAMES = ["strong_cnn", "pooled_cnn", "small_resnet"]
LATTICE = {"turn": 30, "scales": (0.8, 1.0, 1.25)}  # 15 poses
USES = [
    {},
    {"features": 9},
    {"answer": "sigmoid"},
    {"lattice_use": "test", **LATTICE},
    {"lattice_use": "train", **LATTICE},
    {"lattice_use": "train", "answer": "sigmoid", **LATTICE},
]


def small(**options):
    return create_model("strong_cnn", **{"image_shape": (1, 12, 12), "num_classes": 3, "width": 4, **options})


def settled(**options):
    """The same after one batch, in the mood for predictions: its normalisation has seen images."""
    model = small(**options)
    model(torch.rand(8, *model.image_shape))
    return model.eval()


def described(options):
    return "-".join(str(options[key]) for key in ("features", "answer", "lattice_use") if key in options) or "plain"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("shape", "classes", "parameters"),
    [
        ((1, 40, 40), 10, 321_000),
        ((1, 28, 28), 10, 321_000),
        ((3, 32, 32), 10, 321_000),
        ((1, 28, 28), 10, 1_130_000),
        ((3, 32, 32), 100, 200_000),
        ((1, 17, 23), 2, 50_000),
        ((1, 28, 28), 10, 20_000),
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_parameters_within_one_percent(name, shape, classes, parameters):
    with torch.device("meta"):
        model = create_model(name, image_shape=shape, num_classes=classes, parameters=parameters)
        assert abs(model.parameter_count() / parameters - 1) <= 0.01
        assert model.eval()(torch.empty(1, *shape)).lengths.shape == (1, classes)


def test_parameters_counted_by_hand():
    with torch.device("meta"):
        pooled = create_model("pooled_cnn")
        strong = create_model("strong_cnn", width=4, features=20)
    assert pooled.parameter_count() == (81 * 256 + 256) + (81 * 256 * 256 + 256) + (256 * 10 + 10)
    convolutions = 9 * (1 * 2 + 2 * 4 + 4 * 8 + 8 * 8 + 8 * 16 + 16 * 16) + 16 * 20
    norms = 2 * (2 + 4 + 8 + 8 + 16 + 16 + 20)
    assert strong.parameter_count() == convolutions + norms + 20 * 10 + 10


def test_features_are_no_bottleneck():
    with torch.device("meta"):
        model = create_model("strong_cnn", parameters=20_000)
    assert model.arguments["features"] >= 4 * model.arguments["width"]


def test_largest():
    for limit in range(1, 40):
        assert largest(lambda number, limit=limit: number <= limit) == limit
    assert largest(lambda number: False, least=4) == 4


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("strong_cnn", {"parameters": 500}, "no network of 500 parameters.*give a larger number"),
        ("pooled_cnn", {"parameters": 50}, "no network of 50 parameters.*give a larger number"),
        ("small_resnet", {"parameters": 50}, "no network of 50 parameters.*give a larger number"),
        ("strong_cnn", {"parameters": 9_000, "width": 4}, "decides width; omit one"),
        ("matched_cnn", {"parameters": 9_000, "hidden": (4,)}, "decides hidden; omit one"),
        ("strong_cnn", {"width": 3}, "width must be at least 4"),
        ("strong_cnn", {"answer": "margin"}, "'softmax' or 'sigmoid', got 'margin'"),
        ("strong_cnn", {"lattice_use": "always"}, "'none', 'train' or 'test', got 'always'"),
        ("strong_cnn", {"lattice_use": "test"}, "more than one pose; give turn or scales"),
        ("strong_cnn", {"turn": 30}, "need lattice_use='train' or 'test'"),
        ("strong_cnn", {"lattice_use": "train", "turn": 180, "turn_step": 1e-9}, "give a larger turn_step"),
        ("strong_cnn", {"lattice_use": "train", "turn": 30, "views": 1}, "set lattice_use='none'"),
        ("strong_cnn", {"padding": -1}, "padding at least 0"),
        ("pooled_cnn", {"image_shape": (1, 16, 30)}, "at least 17×17, got 16×30; enlarge them"),
        ("pooled_cnn", {"channels": (4,)}, "channels must be two numbers"),
        ("small_resnet", {"blocks": 0}, "must be at least 1"),
    ],
)
def test_what_cannot_be_made(name, options, message):
    with pytest.raises(UserError, match=message):
        create_model(name, **options)


@pytest.mark.parametrize("options", USES, ids=described)
def test_answers(options):
    model, images = small(**options), torch.rand(4, 1, 12, 12)
    for out in (model(images), model.eval()(images)):
        assert ((out.lengths >= 0) & (out.lengths <= 1)).all()
        if options.get("answer") == "sigmoid":
            assert out.logits is None
            assert model.objective == "margin"
        else:
            torch.testing.assert_close(out.lengths, out.logits.softmax(-1))
            assert model.objective == "cross_entropy"


@pytest.mark.parametrize("name", NAMES)
def test_several_labels_are_answered_class_by_class(name):
    model = create_model(name, image_shape=(1, 18, 18), num_classes=3, multi_label=True).eval()
    out = model(torch.rand(2, 1, 18, 18))
    torch.testing.assert_close(out.lengths, out.logits.sigmoid())
    assert accepts_option(name, "multi_label")
    assert not accepts_option("capsnet", "multi_label")
    assert not accepts_option("nothing", "multi_label")


@pytest.mark.parametrize("options", USES, ids=described)
def test_the_rest_of_a_batch_changes_nothing(options):
    model, images = settled(**options), torch.rand(5, 1, 12, 12)
    whole = model(images).lengths
    torch.testing.assert_close(model(images[3:4]).lengths, whole[3:4])
    torch.testing.assert_close(model(images.flip(0)).lengths.flip(0), whole)
    assert model(images[:0]).lengths.shape == (0, 3)


def logits_by_hand(model, images, padding=4):
    """(B, G, J), by the same weights without a lattice."""
    plain = small(image_shape=(1, 12 + 2 * padding, 12 + 2 * padding)).eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    seen = view(images, Lattice.regular(30, 15, (0.8, 1.0, 1.25)).poses(), (12 + 2 * padding,) * 2)
    return torch.stack([plain(seen[:, g]).logits for g in range(15)], dim=1)


@pytest.mark.parametrize("padding", [0, 4])
def test_average_at_test_is_that_of_the_views(padding):
    model, images = settled(lattice_use="test", padding=padding, **LATTICE), torch.rand(3, 1, 12, 12)
    expected = logits_by_hand(model, images, padding).softmax(-1).mean(1)
    torch.testing.assert_close(model(images).lengths, expected)
    model.multi_label = True
    torch.testing.assert_close(model(images).lengths, logits_by_hand(model, images, padding).sigmoid().mean(1))


def test_lattice_at_test_leaves_training_as_it_is():
    model, images = small(lattice_use="test", **LATTICE), torch.rand(3, 1, 12, 12)
    plain = small(image_shape=(1, 20, 20))
    plain.load_state_dict(model.state_dict())
    padded = torch.nn.functional.pad(images, (4,) * 4)
    torch.testing.assert_close(model(images).logits, plain(padded).logits)


@pytest.mark.parametrize(("answer", "t"), [("softmax", 1.0), ("sigmoid", 10.0)])
def test_scores_are_combined_over_views(answer, t):
    model, images = settled(lattice_use="train", answer=answer, **LATTICE), torch.rand(3, 1, 12, 12)
    scores = logits_by_hand(model, images)
    scores = scores.sigmoid() if answer == "sigmoid" else scores
    expected = ((t * scores).exp().mean(1)).log() / t
    out = model(images)
    torch.testing.assert_close(out.lengths if answer == "sigmoid" else out.logits, expected)
    torch.nn.init.constant_(model.log_sharpness, math.log(1e4))
    out = model(images)
    torch.testing.assert_close(out.lengths if answer == "sigmoid" else out.logits, scores.amax(1), atol=1e-3, rtol=0)


@pytest.mark.parametrize("options", USES, ids=described)
def test_gradients_reach_every_parameter(options):
    model, targets = small(**options), torch.arange(6) % 3
    out = model(torch.rand(6, 1, 12, 12))
    loss = margin_loss(out.lengths, targets) if out.logits is None else cross_entropy(out.logits, targets)
    loss.mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_views_are_drawn_anew_from_the_seed():
    model, images = small(lattice_use="train", views=3, **LATTICE), torch.rand(4, 1, 12, 12)
    draws = {tuple(model._random_indices().tolist()) for _ in range(20)}
    assert len(draws) > 10
    assert {draw[0] for draw in draws} == {model.lattice.identity}
    assert all(len(set(draw)) == 3 for draw in draws)
    torch.manual_seed(3)
    first, second = model(images).lengths, model(images).lengths
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(model(images).lengths, first)


@pytest.mark.parametrize("options", USES, ids=described)
def test_a_seed_makes_the_same_model(options):
    torch.manual_seed(5)
    first = small(**options).state_dict()
    torch.manual_seed(5)
    second = small(**options).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("options", USES, ids=described)
def test_saved_and_loaded_is_the_same(options, tmp_path):
    model, images = settled(**options), torch.rand(2, 1, 12, 12)
    assert torch.equal(load(save(model, tmp_path)).eval()(images).lengths, model(images).lengths)


@pytest.mark.parametrize("training", [False, True])
def test_lattice_compiles_in_one_graph(training):
    model = small(lattice_use="train", turn=15, answer="sigmoid").train(training)
    images = torch.rand(3, 1, 12, 12)
    expected = model(images).lengths  # of three poses all are seen, in any order
    model.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(model(images).lengths, expected)
