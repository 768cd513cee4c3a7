"""Pictures of drawn images: label maps, films, and what capsules hold on the way from one noise to another."""

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps import explain
from torchcaps.errors import UserError
from torchcaps.explain.files import write_gif, write_png
from torchcaps.losses import IGNORED
from torchcaps.models import create_model
from torchcaps.models.synthesis import noise_vectors


@pytest.fixture
def model():
    return create_model("capspix2pix", image_shape=(1, 16, 16), channels=4, width=0.5)


@pytest.fixture
def mask():
    return (torch.rand(16, 16) > 0.7).to(torch.uint8)


def test_a_walk_begins_and_ends_at_the_two_images(model, mask):
    interpolation = explain.interpolate(model, mask, first=2, last=5, frames=4, seed=1)
    assert interpolation.images.shape == (4, 1, 16, 16)
    assert interpolation.features.shape == (4, 4, 16, 16)
    with torch.no_grad():
        ends = model.eval()(mask.long().expand(2, -1, -1), noise_vectors(1, (2, 5), model.z))
    torch.testing.assert_close(interpolation.images[[0, -1]], ends)
    torch.testing.assert_close(interpolation.images, model.to_image(interpolation.features).detach())


def test_the_capsules_of_every_layer_of_a_drawing(model, mask):
    noise = noise_vectors(0, [0], model.z)[0]
    layers = explain.drawing_maps(model, mask, noise)
    assert [layer.name for layer in layers][:2] == ["conv", "primary"]
    assert layers[-1].pose.shape == (1, 4, 16, 16)
    assert layers[4].couplings.sum(1).allclose(torch.tensor(1.0))
    assert model.training  # as before
    with pytest.raises(UserError, match="no capsules"):
        explain.drawing_maps(create_model("pix2pix", image_shape=(1, 16, 16), channels=2), mask, noise)


def test_a_label_is_white_or_in_colours():
    one = explain.label_picture(torch.tensor([[0, 1, IGNORED]]))
    assert one[0].tolist() == [[0] * 3, [255] * 3, [128] * 3]
    several = explain.label_picture(torch.tensor([[0, 1, 2]]))
    assert len({tuple(pixel) for pixel in several[0].tolist()}) == 3
    assert several[0, 1].tolist() != [255] * 3


def test_a_film_strip_has_every_frame_in_its_place():
    frames = torch.linspace(0, 1, 5)[:, None, None, None].expand(5, 1, 4, 6)
    strip = explain.film_strip(frames, across=3)
    assert strip.shape == (2 * 6, 3 * 8)
    assert strip[3, [3, 11, 19]].tolist() == [0, 64, 128]
    assert strip[9, [3, 11, 19]].tolist() == [191, 255, 255]
    assert explain.film_strip(frames[:2].expand(2, 3, 4, 6)).shape == (6, 16, 3)


def test_files_are_whole_and_the_same_every_time(tmp_path):
    frames = [np.full((4, 4), value, dtype=np.uint8) for value in (0, 90, 180)]
    for name in ("a", "b"):
        write_gif(tmp_path / "deep" / f"{name}.gif", frames)
        write_png(tmp_path / "deep" / f"{name}.png", frames[1])
    for kind in ("gif", "png"):
        one, other = ((tmp_path / "deep" / f"{name}.{kind}").read_bytes() for name in "ab")
        assert one == other
    with Image.open(tmp_path / "deep" / "a.gif") as film:
        assert film.n_frames == 4  # there and back
    assert len(list((tmp_path / "deep").iterdir())) == 4
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        write_png(tmp_path / "file" / "a.png", frames[0])


def test_figures_show_every_image(model, mask):
    interpolation = explain.interpolate(model, mask, frames=3)
    figure = explain.figure_interpolation({"one": interpolation, "other": interpolation})
    assert len(figure.axes) == 6
    figure = explain.figure_drawings([mask, mask], [torch.rand(1, 16, 16)] * 2, [interpolation.images] * 2)
    assert len(figure.axes) == 2 * (2 + 3)
    figure = explain.figure_interpolation_features(interpolation, title="features")
    shown = figure.axes[0].images[0].get_array()
    assert shown.shape == (3 * 17, 4 * 17)
    assert len(explain.png_bytes(figure)) > 1000
