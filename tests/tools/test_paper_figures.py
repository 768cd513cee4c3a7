import sys
from itertools import pairwise
from pathlib import Path

import matplotlib.text
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.data import Batch
from torchcaps.errors import UserError
from torchcaps.explain import SWEEP, png_bytes
from torchcaps.explain.pair_figures import LIGHTS, add_colours, figure_pair_examples
from torchcaps.explain.pairs import Examples, pair_examples
from torchcaps.models import CapsNet, create_model

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from paper_figures import (
    CouplingMaps,
    coupling_maps,
    digit_examples,
    figure_coupling_maps,
    figure_digit_examples,
    figure_perturbations,
    perturbations,
)

D = 4


class Told(CapsNet):
    """A model that answers what it is shown: row j of an image is the pose of class j, and the decoder puts it back."""

    def __init__(self, classes: int = 4, channels: int = 1):
        super().__init__((channels, 12, 12), classes, channels=2, kernel=5, types=1, primary_kernel=5, class_dim=D)
        self.classes, self.decoder = nn.Identity(), PutBack(self.image_shape)

    def children_of(self, images: Tensor) -> Capsules:
        assert not self.training
        return Capsules(images[:, 0, : self.num_classes, :D])


class PutBack(nn.Module):
    def __init__(self, image_shape):
        super().__init__()
        self.image_shape = image_shape

    def forward(self, masked_BJD: Tensor) -> Tensor:
        drawn = masked_BJD.new_zeros(len(masked_BJD), *self.image_shape)
        drawn[:, :, : masked_BJD.shape[1], :D] = masked_BJD[:, None]
        return drawn


def saying(lengths: list[list[float]], channels: int = 1) -> Tensor:
    """Images to which `Told` answers with these lengths (N, J)."""
    images = torch.zeros(len(lengths), channels, 12, 12)
    images[:, :, : len(lengths[0]), 0] = torch.tensor(lengths)[:, None]
    return images


def pairs(lengths: list[list[float]], labels: list[list[int]], channels: int = 1) -> Batch:
    return Batch(saying(lengths, channels), torch.zeros(len(labels), len(lengths[0])), None, torch.tensor(labels))


def places(examples: Examples, images: Tensor) -> list[int]:
    """Which of the images each column shows."""
    return [next(i for i, image in enumerate(images) if torch.equal(image, each.image)) for each in examples.columns]


def rows(drawn: Tensor) -> list[int]:
    """The classes that `PutBack` was shown, picture by picture."""
    return [int(picture.sum((0, 2)).argmax()) for picture in drawn]


def words(figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_visible() and text.get_text()]


def drawn_without_overlap(figure) -> None:
    assert png_bytes(figure, 60)  # warnings of the layout are errors
    figure.draw_without_rendering()
    box = figure.get_window_extent()
    labels = [axes.title.get_window_extent() for axes in figure.axes if axes.get_title()]
    assert all(left.x1 <= right.x0 for left, right in pairwise(labels) if abs(left.y0 - right.y0) < 1)
    for text in figure.findobj(matplotlib.text.Text):
        if text.get_visible() and text.get_text():
            extent = text.get_window_extent()
            assert box.x0 <= extent.x0 + 1
            assert extent.x1 <= box.x1 + 1
            assert extent.y1 <= box.y1 + 1


ANSWERS = [[0.1, 0.9, 0.2], [0.3, 0.1, 0.8], [0.2, 0.7, 0.1], [0.6, 0.1, 0.2], [0.1, 0.5, 0.4], [0.5, 0.1, 0.2]]
TARGETS = torch.tensor([1, 0, 1, 0, 2, 0])  # right, 0 taken for 2, right, right, 2 taken for 1, right


def test_the_first_right_of_each_class_and_the_first_mistakes_are_shown():
    model, images = Told(3).train(), saying(ANSWERS)
    examples = digit_examples(model, images, TARGETS, failures=1)
    assert places(examples, images) == [3, 0, 1, 1]  # no image of class 2 was answered right
    triples = [(*each.labels, *each.predicted, *each.shown) for each in examples.columns]
    assert triples == [(0, 0, 0), (1, 1, 1), (0, 2, 0), (0, 2, 2)]
    assert [rows(each.drawn) for each in examples.columns] == [[0], [1], [0], [2]]
    assert (examples.images, examples.mistakes) == (6, 2)
    assert model.training
    two = digit_examples(model, images, TARGETS, classes=[1], failures=9)
    assert places(two, images) == [0, 1, 1, 4, 4]


def test_figure_3_names_its_triples():
    figure = figure_digit_examples(digit_examples(Told(3), saying(ANSWERS), TARGETS, failures=1))
    drawn_without_overlap(figure)
    assert len(figure.axes) == 2 * 4 + 2  # two headings
    assert {"(1, 1, 1)", "(0, 2, 0)", "(0, 2, 2)", "Mistakes: 2 in 6 images, 1 shown."} <= set(words(figure))
    names = figure_digit_examples(digit_examples(Told(3), saying(ANSWERS), TARGETS), ["a $hoe", "b", "c"])
    assert "(a \\$hoe,\nc,\na \\$hoe)" in words(names)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_model_without_mistakes_has_no_failures_and_says_so(channels):
    images = saying(ANSWERS[:1], channels)
    examples = digit_examples(Told(3, channels), images, torch.tensor([1]))
    assert [each.group for each in examples.columns] == ["right"]
    figure = figure_digit_examples(examples)
    drawn_without_overlap(figure)
    assert len(figure.axes) == 3
    assert "No mistake in 1 images." in words(figure)
    nothing = figure_digit_examples(digit_examples(Told(3, channels), images[:0], TARGETS[:0]))
    assert "No mistake in 0 images." in words(nothing)


LENGTHS = [[0.9, 0.1, 0.8, 0.3], [0.2, 0.9, 0.7, 0.1], [0.9, 0.8, 0.3, 0.4], [0.1, 0.2, 0.9, 0.8]]
LABELS = [[2, 0], [0, 1], [0, 1], [1, 0]]  # found; 1 and 2 instead of 0 and 1; found; neither found


def test_pairs_are_chosen_in_order_and_drawn_from_what_they_say():
    batch = pairs(LENGTHS, LABELS)
    examples = pair_examples(Told(), batch, right=9, failures=9, absent=9)
    assert places(examples, batch.images) == [0, 2, 1, 1, 3, 3, 0, 2]
    assert [each.group for each in examples.columns] == ["right"] * 2 + ["wrong"] * 4 + ["absent"] * 2
    # A predicted class that is a label reading, and is coloured, where the label reading.
    shown = [(2, 0), (0, 1), (0, 1), (2, 1), (1, 0), (2, 3), (2, 3), (0, 3)]
    assert [each.shown for each in examples.columns] == shown
    assert [tuple(rows(each.drawn)) for each in examples.columns] == shown
    assert (examples.images, examples.mistakes) == (4, 2)
    assert places(pair_examples(Told(), batch, right=1, failures=1, absent=1), batch.images) == [0, 1, 1, 0]


def test_the_class_that_is_not_there_is_neither_label_nor_prediction():
    lengths = torch.rand(300, 10)
    labels = lengths.topk(2).indices.flip(1)  # all of them right
    batch = pairs(lengths.tolist(), labels.tolist())
    columns = pair_examples(Told(10), batch, right=0, absent=300).columns
    assert len(columns) == 300
    for each, runner_up in zip(columns, lengths.topk(3).indices[:, 2].tolist()):
        assert each.shown == (each.labels[0], runner_up)
        assert runner_up not in (*each.labels, *each.predicted)


@pytest.mark.parametrize(("channels", "colours"), [(1, "red-green"), (3, "orange-blue")])
def test_figure_5_marks_predictions_and_absent_classes(channels, colours):
    examples = pair_examples(Told(4, channels), pairs(LENGTHS, LABELS, channels), failures=1, absent=1)
    figure = figure_pair_examples(examples, colours=colours)
    drawn_without_overlap(figure)
    assert len(figure.axes) == 2 * 5 + 3
    labels = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert labels[:2] == ["R:(2, 0)\nL:(2, 0)", "R:(0, 1)\nL:(0, 1)"]
    assert labels[2:] == ["R:(0, 1)\nL:(0, 1)", "R:P:(2, 1)\nL:(0, 1)", "*R:(2, 3)\nL:(2, 0)"]
    lefts = [axes.get_position().x0 for axes in figure.axes]
    assert lefts[:3] == pytest.approx([lefts[3 + 2 * column] for column in (0, 2, 4)], abs=0.01)  # headings first
    first, second = LIGHTS[colours]
    below = f"The first class of R is {first}, the second {second}. Mistakes: 2 in 4 pairs, 1 shown."
    assert below in [text.replace("\n", " ") for text in words(figure)]
    lower = [axes.images[0].get_array() for axes in figure.axes if axes.images and not axes.get_title()]
    assert np.array_equal(lower[0], add_colours(examples.columns[0].drawn, colours))


@pytest.mark.parametrize("right", [True, False])
def test_one_pair_is_enough(right):
    examples = pair_examples(Told(), pairs(LENGTHS[:1], [[0, 2] if right else [0, 1]]))
    assert [each.group for each in examples.columns] == (["right", "absent"] if right else ["wrong", "wrong"])
    figure = figure_pair_examples(examples)
    drawn_without_overlap(figure)
    assert any("No mistake in 1 pairs." in text.replace("\n", " ") for text in words(figure)) == right


def test_of_two_classes_none_is_absent():
    examples = pair_examples(Told(2), pairs([[0.9, 0.8]], [[0, 1]]))
    assert [each.group for each in examples.columns] == ["right"]


def test_overlaid_colours_add_up():
    first, second = torch.tensor([[[1.0, 0.0, 1.0, 0.5]]]), torch.tensor([[[0.0, 1.0, 1.0, 0.25]]])
    red_green = add_colours(torch.stack([first, second]))
    assert red_green.tolist() == [[[1, 0, 0], [0, 1, 0], [1, 1, 0], [0.5, 0.25, 0]]]
    safe = add_colours(torch.stack([first, second]), "orange-blue")
    np.testing.assert_allclose(safe, [[[1, 0.6, 0], [0, 0.4, 1], [1, 1, 1], [0.5, 0.4, 0.25]]], atol=1e-6)
    channels = torch.tensor([0.3, 0.6, 0.9]).view(1, 3, 1, 1)
    np.testing.assert_allclose(add_colours(torch.cat([channels, 2 + channels])), [[[0.6, 1, 0]]], atol=1e-6)
    with pytest.raises(UserError, match="red-green"):
        add_colours(torch.stack([first, second]), "red-gren")


def test_the_dimension_that_varies_most_over_its_class_is_changed():
    images = saying([[0.1, 0.6], [0.6, 0.1], [0.6, 0.2], [0.2, 0.6], [0.2, 0.6]])
    targets = torch.tensor([0, 0, 0, 1, 1])  # the first image of class 0 is taken for class 1
    images[:3, 0, 0, 2] = torch.tensor([0.0, 0.1, 0.9])  # class 0 varies in dimension 3
    images[3:, 0, 0, 1] = torch.tensor([0.0, 0.3])  # what its capsule does in images of class 1 does not count
    images[3:, 0, 1, 3] = torch.tensor([0.1, 0.2])
    found = perturbations(Told(2), images, targets)
    assert [(row.label, row.dimension) for row in found] == [(0, 2), (1, 3)]
    torch.testing.assert_close(found[0].swept[:, 0, 0, 2], images[1, 0, 0, 2] + torch.tensor(SWEEP))
    assert (found[0].swept[:, 0, 1] == 0).all()
    figure = figure_perturbations(found, class_names=["nought", "one"])
    drawn_without_overlap(figure)
    assert {"nought, dim. 3", "one, dim. 4", "−0.25", "+0.25"} <= set(words(figure))
    assert [row.label for row in perturbations(Told(2), images, targets, [0.1], classes=[1])] == [1]
    assert "No image was answered right." in words(figure_perturbations([]))


def test_maps_show_what_routing_gained(monkeypatch):
    model = create_model("capsnet_small", image_shape=(3, 13, 17), num_classes=4, types=2)  # a grid of 3 × 5
    with torch.no_grad():
        model.classes.weight.zero_()
        model.classes.weight[3, 1] = 1.0  # top row, fourth column, votes for class 1
        model.classes.weight[25, 2] = 0.5  # bottom row, first column, for class 2
    monkeypatch.setattr(model, "children_of", lambda images: Capsules(torch.full((len(images), 30, 8), 0.2)))
    images = torch.rand(2, 3, 13, 17)
    maps = coupling_maps(model, images)
    assert maps.classes.tolist() == [[1, 2], [1, 2]]
    assert (maps.gained >= 0).all()
    tops = [divmod(int(each.argmax()), 17) for each in maps.gained[1]]
    assert tops == [(4, 10), (8, 4)]  # a child's centre: 4 pixels from the edge, and 2 for each cell
    for batch in (1, 2):
        some = CouplingMaps(*(each[:batch] for each in maps))
        figure = figure_coupling_maps(images[:batch], some, colours="orange-blue")
        drawn_without_overlap(figure)
        assert len(figure.axes) == 3 * batch
        assert f"2, length {maps.lengths[0, 1]:.2f}" in words(figure)


def test_what_is_missing_is_named():
    images, targets = torch.rand(1, 1, 12, 12), torch.zeros(1, dtype=torch.long)
    blind = create_model("capsnet_small", image_shape=(1, 12, 12), decoder="none")
    for explanation in (digit_examples, perturbations):
        with pytest.raises(UserError, match="no decoder"):
            explanation(blind, images, targets)
    with pytest.raises(UserError, match="two labels"):
        pair_examples(Told(), Batch(images, targets))
    with pytest.raises(UserError, match="no capsules"):
        coupling_maps(create_model("matched_cnn", image_shape=(1, 12, 12), parameters=20_000), images)
