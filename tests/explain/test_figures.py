import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps import explain
from torchcaps.explain.style import Tile, names_of, new_figure, pixels, shorten, show_tiles
from torchcaps.models import create_model


def words(figure) -> list[str]:
    """Every text that is drawn."""
    import matplotlib.text

    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_visible() and text.get_text()]


def drawn(figure, tmp_path) -> np.ndarray:
    (tmp_path / "figure.png").write_bytes(explain.png_bytes(figure, 60))
    return np.asarray(Image.open(tmp_path / "figure.png").convert("L"))


def test_importing_explain_leaves_matplotlib_alone():
    code = "import sys, torchcaps.explain; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(("channels", "batch"), [(1, 1), (3, 4), (2, 12)])
def test_capsule_figures(channels, batch, tmp_path):
    model = create_model("capsnet_small", image_shape=(channels, 13, 17), num_classes=3)
    images, names = torch.rand(batch, channels, 13, 17), ["cat", "dog", "$\\bad{$ \n name"]
    result = explain.reconstructions(model, images, torch.zeros(batch, dtype=torch.long))
    figure = explain.figure_reconstructions(images, result, names, limit=5)
    assert len(figure.axes[0].images) == 4 * min(batch, 5)
    assert drawn(figure, tmp_path).std() > 10
    heat = explain.maps_on_image(model, explain.routing_maps(model, images)[:, 0])
    routed = explain.figure_routing(images[0], heat, result.lengths[0], torch.tensor([1.0986, 1.05, 0.5]), names, top=2)
    assert "Iteration 2\nentropy 1.050\nof 1.099" in words(routed)  # ln 3
    leaky = explain.figure_routing(images[0], heat, result.lengths[0], torch.tensor([1.386, 1.25, 0.5]), names)
    assert "Iteration 3\nentropy 0.500\nof 1.386" in words(leaky)  # ln 4: the leak is one more parent
    assert len(routed.axes[0].images) == 1 + 3 * 2  # the input, and two classes in three iterations
    assert len(routed.axes) == 2  # with the colour bar
    assert drawn(routed, tmp_path).std() > 10


def test_every_tile_stands_in_its_place_as_it_is_with_its_label_above():
    figure = new_figure(4, 4)
    tall, wide = torch.full((1, 8, 4), 0.25), np.full((4, 8, 3), 0.75)
    rows = [[Tile(tall, "tall"), None], [Tile(wide, "two\nlines", "red"), Tile(tall)]]
    axes = show_tiles(figure, rows, ["first", "second"], side=1)
    first, second, third = axes.images
    assert [float(image.get_array().mean()) for image in axes.images] == [0.25, 0.75, 0.25]
    boxes = []
    for image, aspect in ((first, 2), (second, 0.5), (third, 2)):
        left, right, bottom, top = image.get_extent()
        assert (bottom - top) / (right - left) == pytest.approx(aspect)
        boxes.append((left, right, top, bottom))
    assert boxes[0][3] < boxes[1][2]  # below one another,
    assert boxes[1][1] < boxes[2][0]  # and beside
    figure.draw_without_rendering()
    places = {text.get_text(): text.get_window_extent() for text in axes.texts}
    frame = figure.get_window_extent()
    assert set(places) == {"tall", "two\nlines", "first", "second"}
    for place in places.values():
        assert frame.x0 <= place.x0
        assert place.y1 <= frame.y1
    assert places["two\nlines"].y1 < places["tall"].y0
    for name, image in (("tall", first), ("two\nlines", second)):
        assert places[name].y0 >= image.get_window_extent().y1  # no label lies on an image
    assert places["first"].x1 <= first.get_window_extent().x0


def test_images_of_any_shape_leave_room_for_their_labels():
    for shape in ((1, 90, 3), (1, 3, 90)):
        images = torch.rand(3, *shape)
        figure = explain.figure_mistakes(images, torch.arange(3), torch.arange(3), torch.rand(3, 3), limit=3)
        figure.draw_without_rendering()
        (axes,) = figure.axes
        for text, image in zip(axes.texts, axes.images):
            assert text.get_window_extent().y0 >= image.get_window_extent().y1
            assert text.get_window_extent().y1 <= figure.get_window_extent().y1
            left, right, bottom, top = image.get_extent()
            assert (bottom - top) / (right - left) == pytest.approx(shape[1] / shape[2])


def test_sweep_tiles_stand_in_their_row_and_column():
    swept = torch.zeros(3, 2, 1, 8, 8)
    swept[2, 1] = 0.5
    figure = explain.figure_sweep(swept, (-0.1, 0.1))
    (image,) = figure.axes[0].images
    assert image.get_array()[22, 13] == 0.5  # row 3 starts at 2 · (8 + 1), column 2 at 9
    assert image.get_array()[4, 13] == 0
    assert {"−0.10", "+0.10", "1", "3"} <= set(words(figure))


def test_curves_draw_what_is_there_and_nothing_else():
    history = [
        {"epoch": 1, "train_loss": 2.0, "train_accuracy": 0.5, "note": "x", "train_margin": float("nan")},
        {"epoch": 2, "train_loss": 1.0, "val_loss": 1.5, "train_accuracy": None},
    ]
    figure = explain.figure_curves(history)
    assert [axes.get_ylabel() for axes in figure.axes] == ["Loss", "Accuracy"]
    assert [line.get_xydata().tolist() for line in figure.axes[0].lines] == [[[1, 2], [2, 1]], [[2, 1.5]]]
    assert "No epoch was recorded." in words(explain.figure_curves([]))


def test_a_curve_by_size_has_each_mean_at_its_size_and_its_deviation_about_it():
    curves = {"one": [(24, 81.0, 0.5), (3, 79.0, 0.25)], "other": [(6, 80.0, 0.0)]}
    (axes,) = explain.figure_by_size(curves, measure="Dice, %").axes
    first, second = (container.lines[0].get_xydata().tolist() for container in axes.containers)
    assert (first, second) == ([[3, 79], [24, 81]], [[6, 80]])
    (bars,) = axes.containers[0].lines[2]
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [[78.75, 79.25], [80.5, 81.5]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["3", "6", "24"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one", "other"]


@pytest.mark.parametrize(("classes", "numbers"), [(1, True), (2, True), (10, True), (200, False)])
def test_confusion_prints_numbers_only_where_they_fit(classes, numbers, tmp_path):
    matrix = torch.eye(classes, dtype=torch.long) * 123
    figure = explain.figure_confusion(matrix, [f"a class with a long name {i}" for i in range(classes)])
    assert ("123" in words(figure)) == numbers
    assert drawn(figure, tmp_path).std() > 10
    ticks = figure.axes[0].get_yticklabels()
    tops = [tick.get_window_extent() for tick in ticks]
    assert all(below.y1 <= above.y0 + 1 for above, below in pairwise(tops))  # no two names overlap


def test_mistakes_and_lengths(tmp_path):
    lengths = torch.rand(3, 200)
    answers = lengths.argmax(-1)
    figure = explain.figure_mistakes(torch.rand(3, 1, 9, 9), torch.tensor([0, 1, 2]), answers, lengths)
    assert any(f"true 1\npred. {answers[1]} ({lengths[1].max():.2f})" == text for text in words(figure))
    assert drawn(figure, tmp_path).std() > 10
    empty = explain.figure_mistakes(torch.rand(0, 1, 9, 9), answers[:0], answers[:0], lengths[:0])
    assert "No mistakes." in words(empty)
    bars = explain.figure_lengths(lengths[0], target=int(answers[0]), top=20)
    assert len(bars.axes[0].patches) == 20
    assert f"{lengths[0].max():.2f} (true class)" in words(bars)


def test_names_and_pixels():
    assert shorten("n02085620 Chihuahua dog", 16) == "n02085620…a dog"
    assert shorten("two\nlines $5") == r"two lines \$5"
    assert names_of(torch.tensor([True, False, True]), ["a", "b", "c"]) == "a + c"
    assert names_of(torch.tensor([False, False]), None) == "none"
    assert pixels(torch.tensor([[[float("nan"), 2.0]]])).tolist() == [[0.0, 1.0]]
    figure = explain.figure_lengths(torch.rand(2), ["雪", "x"])
    assert explain.png_bytes(figure, 50) == explain.png_bytes(figure, 50)
