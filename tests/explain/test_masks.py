"""Masks over images, and what the capsules of a segmentation network hold."""

import pytest
import torch

from torchcaps import explain
from torchcaps.errors import UserError
from torchcaps.explain.masks import COLOURS, EXTRA, MAX_SIDE_PIXELS, MISSED
from torchcaps.models import create_model


def small(**options):
    return create_model("segcaps", image_shape=(1, 16, 16), channels=2, width=0.5, **options).eval()


def hex_of(pixel) -> str:
    return "#" + "".join(f"{int(value):02x}" for value in pixel)


def test_an_overlay_veils_what_was_found_and_nothing_else():
    image = torch.zeros(1, 2, 3)
    image[0, 0, 0] = 1.0
    ids = torch.tensor([[0, 1, 2], [255, 0, 1]])
    shown = explain.overlay(image, ids)
    assert shown.shape == (2, 3, 3)
    assert [hex_of(shown[y, x]) for y, x in ((0, 0), (1, 0), (1, 1))] == ["#ffffff", "#000000", "#000000"]
    assert (shown[0, 1] == shown[1, 2]).all()
    assert shown[0, 1].tolist() != shown[0, 2].tolist() != [0, 0, 0]
    colour = explain.overlay(torch.rand(3, 4, 4), torch.zeros(4, 4, dtype=torch.long))
    assert colour.shape == (4, 4, 3)
    many = torch.arange(1, len(COLOURS) + 2)[None]
    assert explain.overlay(torch.zeros(1, *many.shape), many).any(-1).all()  # colours begin again


def test_errors_are_told_apart_and_unknown_pixels_are_none():
    true, found = torch.tensor([[0, 1, 1, 255, 2]]), torch.tensor([[1, 0, 1, 1, 1]])
    shown = explain.error_map(torch.zeros(1, 1, 5), true, found)[0]
    assert [hex_of(pixel) for pixel in shown] == [EXTRA, MISSED, "#000000", "#000000", "#f0e442"]


@pytest.mark.parametrize("classes", [2, 3])
def test_figures_of_masks(classes):
    model = small(num_classes=classes)
    image, mask = torch.randint(0, 256, (1, 9, 13), dtype=torch.uint8), torch.ones(9, 13, dtype=torch.uint8)
    compared = explain.compare(model, image, mask, mask * 0, "a")
    assert compared.reconstruction.shape == (1, 9, 13)
    names = ["none", "$x$", "y"][:classes]
    assert len(explain.figure_masks([compared, compared._replace(reconstruction=None)], names).axes) == 2 * 5
    plain = explain.compare(small(num_classes=classes, decoder=False), image, mask, mask, "b")
    figure = explain.figure_masks([plain], names)
    assert len(figure.axes) == 4
    explain.png_bytes(figure, 40)
    presence = torch.rand(1 if classes == 2 else classes, 9, 13)
    found = explain.figure_predicted_mask(compared.image, mask, presence, compared.reconstruction, names)
    assert len(found.axes) == len(presence) + 3


def test_of_a_large_image_the_middle_is_shown():
    place = torch.arange(MAX_SIDE_PIXELS + 10)
    assert explain.centre_crop(place.expand(4, -1)).tolist() == [list(range(5, MAX_SIDE_PIXELS + 5))] * 4


def test_the_capsules_of_every_layer_and_where_they_were_routed():
    model, image = small(), torch.rand(1, 12, 20)
    maps = explain.feature_maps(model, image)
    with torch.no_grad():
        layers = model.layers(model.pad(image[None]))
    assert [each.name for each in maps] == list(layers)
    for each in maps:
        torch.testing.assert_close(each.pose, layers[each.name].pose[0])
        if each.couplings is not None:
            assert each.couplings.shape[1:] == (len(each.pose), *each.pose.shape[2:])
            torch.testing.assert_close(each.couplings.sum(1), torch.ones_like(each.couplings[:, 0]))
    routed = {each.name for each in maps if each.couplings is not None}
    assert "at_quarter" in routed
    assert not routed & {"conv", "primary", "classes"}  # one iteration, or one parent: nothing to decide
    assert not any(layer._forward_pre_hooks for _, layer in model.capsule_layers)

    wide = next(each for each in maps if each.name == "to_eighth")
    for figure in (explain.figure_features(wide), explain.figure_couplings(wide)):
        assert len(explain.png_bytes(figure, 40)) > 1000
    with pytest.raises(ValueError, match="routes nothing"):
        explain.figure_couplings(maps[0])
    with pytest.raises(UserError, match="a UNet has no capsules"):
        explain.feature_maps(create_model("unet", channels=2, depth=1), image)
