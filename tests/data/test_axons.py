import hashlib

import pytest
import torch

from torchcaps.data import AxonParameters, CropLoader, draw_axons
from torchcaps.data.datasets import axons
from torchcaps.errors import UserError

CHECKSUM = "b7c0620a4ba8a3bcebeecc9234ebdf69"  # of the first images of seed 0


def stacked(count, **options):
    """images (N, H, W) in [0, 1], masks (N, H, W)"""
    drawn = draw_axons(count, **options)
    return torch.stack(drawn.images)[:, 0] / 255, torch.stack(drawn.masks).bool()


def checksum(segments) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (*segments.images, *segments.masks):
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def dice(one, other) -> float:
    return float(2 * (one & other).sum() / (one.sum() + other.sum()))


def test_axons_are_the_same_everywhere():
    assert checksum(draw_axons(6)) == CHECKSUM


def test_an_image_depends_on_its_seed_and_position_alone(monkeypatch):
    whole = draw_axons(5, size=32, seed=3)
    monkeypatch.setattr(axons, "CHUNK_PIXELS", 2 * 32**2)
    few = draw_axons(3, size=32, seed=3)
    for tensors, others in ((whole.images, few.images), (whole.masks, few.masks)):
        assert all(torch.equal(one, other) for one, other in zip(tensors, others))
    assert len({checksum(draw_axons(2, size=32, seed=seed)) for seed in range(5)}) == 5
    assert len({image.numpy().tobytes() for image in whole.images}) == 5


def test_they_are_pairs_like_any_others():
    drawn = draw_axons(4, size=40)
    assert (len(drawn), drawn.channels, drawn.class_names) == (4, 1, ("background", "axon"))
    assert {tuple(image.shape) for image in drawn.images} == {(1, 40, 40)}
    assert drawn.absent == ()
    images, masks = CropLoader(drawn, 24, "cpu").take(torch.arange(4), torch.Generator().manual_seed(0))[:2]
    assert (images.shape, masks.shape) == ((4, 1, 24, 24), (4, 24, 24))


def test_a_threshold_finds_some_of_them_but_not_all():
    images, masks = stacked(100, seed=1)
    assert 0.05 < masks.float().mean() < 0.2
    assert images[masks].mean() > 1.7 * images[~masks].mean()
    best = max(dice(images > level / 255, masks) for level in range(50, 150, 5))
    assert 0.5 < best < 0.7


def test_the_light_of_one_sharp_fibre_without_noise_is_its_mask():
    clear = {"specks": (0, 0), "blobs": (0, 0), "photons": 1e6, "read_noise": 0, "shading": 0, "haze": 0}
    images, masks = stacked(30, fibres=(1, 1), branching=0, light=(0.5, 0.5), dim=1.0, blur=(0.1, 0.1), **clear)
    assert dice(images > 0.25, masks) > 0.99  # half of a pixel's light where the edge runs through its centre
    assert images.max() > 0.8  # and most of it in the boutons


def test_parameters_do_what_they_say():
    def mean(part, **options):
        images, masks = stacked(16, seed=2, **options)
        return {"light": images[masks].mean(), "dark": images[~masks].mean(), "ink": masks.float().mean()}[part]

    assert mean("ink", fibres=(0, 0)) == 0
    assert mean("ink", fibres=(6, 6)) > 1.5 * mean("ink", fibres=(2, 2))
    assert mean("ink", branching=1.0) > 1.2 * mean("ink", branching=0.0)
    assert mean("ink", radius=(1.8, 2.0)) > 1.4 * mean("ink")
    assert mean("ink", every=6.0) > 1.1 * mean("ink") > 1.1 * mean("ink", swelling=(0.0, 0.0))
    assert mean("light", dim=0.1) < 0.9 * mean("light")
    assert mean("light", blur=(2.0, 4.0)) < 0.8 * mean("light")
    assert mean("dark", blobs=(0, 0)) < 0.8 * mean("dark") < 0.8 * mean("dark", haze=0.2)
    quiet, loud = (stacked(16, seed=2, **options)[0] for options in ({"photons": 1e6, "read_noise": 0}, {}))
    assert 0.05 < (loud - quiet).std() < 0.12
    few = stacked(16, seed=2, photons=10.0)[0]
    assert (few - quiet).std() > 1.5 * (loud - quiet).std()
    assert (loud - quiet).mean().abs() < 0.01  # noise makes nothing brighter


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"count": 0}, "count=0"),
        ({"size": 4}, "size=4"),
        ({"fibre": (1, 2)}, "'fibre'.*did you mean 'fibres'"),
        ({"fibres": 3}, "pair"),
        ({"fibres": (3, 1)}, "smaller number first in a pair"),
        ({"dim": -1.0}, "dim=-1.0"),
        ({"dim": (0.1, 0.2)}, "one number"),
        ({"photons": 0}, "more than 0"),
        ({"blur": (0, 1)}, "more than 0"),
        ({"swelling": (0.5, 9.0)}, "give less"),
    ],
)
def test_impossible_axons_are_refused(options, word):
    with pytest.raises(UserError, match=word):
        draw_axons(**{"count": 1, **options})


def test_pairs_may_come_as_lists_and_defaults_are_valid():
    assert checksum(draw_axons(1, fibres=[1, 2])) == checksum(draw_axons(1, fibres=(1, 2)))
    assert AxonParameters().reach == 4
