"""From a recipe and data to a model."""

import warnings

import pytest
import torch

from torchcaps.data import Dataset, SegmentationDataset, draw_axons
from torchcaps.errors import UserError
from torchcaps.models import Output, create_model
from torchcaps.train.recipe import LossSection, load_recipe
from torchcaps.train.setup import make_model
from torchcaps.train.tasks.classification import ClassificationTask


def data(size, classes=2, multi_label=False):
    names = tuple("abcdefghij"[:classes])
    targets = torch.ones(2, classes) if multi_label else torch.tensor([0, 1])
    return Dataset(torch.zeros(2, 3, size, size, dtype=torch.uint8), targets, names)


def test_large_images_warn_with_the_parameter_count_and_the_way_out():
    recipe = load_recipe("folder", ["model.types=32", "model.decoder=none"])
    images = data(200)
    with torch.device("meta"), pytest.warns(UserWarning, match=r"75,497,472 parameters.*data\.image_size"):
        make_model(recipe, images)


def test_usual_images_do_not_warn():
    images = data(32)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("error")
        make_model(load_recipe("folder"), images)


def test_model_takes_shapes_and_names_from_the_data():
    model = make_model(load_recipe("folder"), data(32))
    assert (model.image_shape, model.class_names) == ((3, 32, 32), ("a", "b"))


def test_crop_sets_the_size_of_the_model_and_of_files():
    model = make_model(load_recipe("folder", ["augment.crop=24"]), data(32))
    assert (model.image_shape, model.resize_to) == ((3, 24, 24), (32, 32))
    image = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    image[..., 4, 4] = 255
    assert model.prepare(image)[0, :, 0, 0].tolist() == [1, 1, 1]


def test_crop_larger_than_the_images():
    with pytest.raises(UserError, match=r"augment\.crop is 40"):
        make_model(load_recipe("folder", ["augment.crop=40"]), data(32))


def test_default_weights_are_the_papers_at_28():
    task = ClassificationTask.make(create_model("capsnet_small"), data(28), LossSection())
    assert task.weights == pytest.approx({"margin": 1.0, "reconstruction": 0.0005})


def test_default_weights_of_a_cnn():
    model = create_model("matched_cnn", parameters=200_000)
    assert ClassificationTask.make(model, data(28), LossSection()).weights == {"cross_entropy": 1.0}


@pytest.mark.parametrize(
    ("name", "options", "section", "message"),
    [
        ("capsnet_small", {"decoder": "none"}, {"reconstruction": 0.1}, "no decoder"),
        ("capsnet_small", {}, {"cross_entropy": 1.0}, r"use loss\.margin"),
        ("capsnet_small", {}, {"margin": 0.0, "reconstruction": 0.0}, "nothing to learn"),
        ("em_capsnet", {}, {"squared_lengths": True}, "it is a form of the margin loss; set loss.margin, too"),
    ],
)
def test_losses_that_do_not_fit_the_model(name, options, section, message):
    with pytest.raises(UserError, match=message):
        ClassificationTask.make(create_model(name, **options), data(28), LossSection(**section))


def test_the_margin_loss_may_take_squared_lengths():
    model, lengths = create_model("capsnet_small", decoder="none"), torch.full((1, 2), 0.5)
    for squared, expected in ((False, 0.4**2 + 0.5 * 0.4**2), (True, 0.81 - 0.25 + 0.5 * (0.25 - 0.01))):
        task = ClassificationTask.make(model, data(28), LossSection(squared_lengths=squared))
        terms = task.terms(Output(lengths), torch.zeros(1), torch.tensor([0]))
        assert terms["margin"].tolist() == pytest.approx([expected])


def test_rare_classes_count_more():
    counts = Dataset(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 0, 0, 1]), ("a", "b"))
    task = ClassificationTask.make(create_model("capsnet_small"), counts, LossSection(class_weights=True))
    assert task.example_weights(torch.tensor([0, 1])).tolist() == pytest.approx([0.5, 1.5])


def test_several_labels_are_right_only_together():
    lengths = torch.tensor([[0.9, 0.8, 0.1], [0.9, 0.2, 0.1], [0.9, 0.8, 0.7]])
    targets = torch.tensor([[1.0, 1, 0]] * 3)
    assert ClassificationTask({}).correct(lengths, targets).tolist() == [1, 0, 0]


def test_where_every_image_has_two_labels_the_two_longest_answer():
    lengths = torch.tensor([[0.9, 0.8, 0.1], [0.3, 0.2, 0.1], [0.9, 0.7, 0.8]])
    targets = torch.tensor([[1.0, 1, 0]] * 3)
    assert ClassificationTask({}, labels_each=2).correct(lengths, targets).tolist() == [1, 1, 0]


def test_multi_label_cnn_answers_class_by_class():
    model = make_model(load_recipe("mnist-cnn", ["model.parameters=200000"]), data(28, multi_label=True))
    lengths = model.eval()(torch.rand(1, 3, 28, 28)).lengths
    assert not torch.allclose(lengths.sum(), torch.tensor(1.0))


def test_a_model_must_fit_what_is_known_of_the_images():
    masks, classes = "images with masks", "images with a class each"
    with pytest.raises(UserError, match=f"segcaps: it learns from {masks}, and these are {classes}"):
        make_model(load_recipe("digits", ["model={name: segcaps}"]), data(16))
    with pytest.raises(UserError, match=f"capsnet_small: it learns from {classes}, and these are {masks}"):
        make_model(load_recipe("digits"), draw_axons(2, 16))


def test_a_model_of_masks_is_made_for_windows_of_the_images():
    axons = draw_axons(2, 40)
    for setting, side in (("augment.crop=24", 24), ("augment.crop=48", 48), ("augment.crop=0", 40)):
        recipe = load_recipe("segcaps", ["model.channels=2", setting])
        model = make_model(recipe, axons)
        assert (model.image_shape, model.class_names) == ((1, side, side), ("background", "axon"))
    pixels = torch.stack(axons.images).float() / 255
    assert float(model.mean) == pytest.approx(float(pixels.mean()), abs=1e-3)
    assert float(model.std) == pytest.approx(float(pixels.std()), abs=1e-3)
    black = SegmentationDataset([torch.zeros(1, 9, 9).byte()], [torch.zeros(9, 9).byte()], ("a", "b"), ("x",))
    assert float(make_model(recipe, black).std) > 0


def test_only_squares_are_turned():
    images = Dataset(torch.zeros(2, 1, 8, 12, dtype=torch.uint8), torch.tensor([0, 1]), ("a", "b"))
    with pytest.raises(UserError, match="8×12 are not square"):
        make_model(load_recipe("digits", ["augment.turn=yes"]), images)
