"""Models that draw: the papers' sizes, what noise and labels do, which sizes they take."""

import pytest
import torch

from torchcaps.errors import UserError
from torchcaps.losses import IGNORED
from torchcaps.models import Discriminator, create_model, load, save
from torchcaps.models.synthesis import SpatialNoise, noise_vectors, slerp

SMALL = {"channels": 4, "width": 0.5, "image_shape": (1, 16, 16)}


def count(name, **options):
    with torch.device("meta"):
        return create_model(name, **options).parameter_count()


def test_the_papers_generators_have_their_parameters():
    assert count("capspix2pix") == 1_416_529
    assert count("capspix2pix", noise="linear") == 1_416_529 + 256 * 256 * 101
    assert count("capspix2pix", noise="latent") == 1_416_529 - 400 + 101 * 32
    widths = [64, 128, 256, 512, 512, 512, 512, 512]
    down = sum(16 * a * b for a, b in zip([2, *widths], widths)) + 2 * sum(widths[1:-1])
    up = sum(16 * a * b + 2 * b for a, b in zip([512, 1024, 1024, 1024, 1024, 512, 256], widths[-2::-1]))
    assert count("pix2pix") == down + up + 16 * 128 + 1 == 54_408_833
    assert count("capspix2pix") <= count("pix2pix") / 6


@pytest.mark.parametrize("noise", ["broadcast", "linear", "latent"])
def test_noise_and_label_both_change_the_image(noise):
    model = create_model("capspix2pix", noise=noise, **SMALL).eval()
    masks = torch.zeros(2, 16, 16, dtype=torch.long)
    masks[1, 4:12, 4:12] = 1
    noises = noise_vectors(0, range(2), model.z)
    by_noise = model(masks[:1].expand(2, -1, -1), noises)
    by_label = model(masks, noises[:1].expand(2, -1))
    assert (by_noise[0] - by_noise[1]).abs().max() > 1e-4
    assert (by_label[0] - by_label[1]).abs().max() > 1e-4


def test_what_is_ignored_is_drawn_as_background():
    model = create_model("capspix2pix", num_classes=3, **SMALL).eval()
    masks = torch.randint(0, 3, (1, 16, 16))
    hidden = masks.clone()
    hidden[:, :4], masks[:, :4] = IGNORED, 0
    noise = noise_vectors(0, [0], model.z)
    assert torch.equal(model(masks, noise), model(hidden, noise))
    seen = model.discriminator_input(hidden, torch.rand(1, 1, 16, 16))
    assert seen.shape == (1, 3, 16, 16)
    assert not seen[:, :, :4].any()
    assert seen[:, 2, 4:].all()


def test_drawing_begins_at_the_mean_of_the_images():
    for name in ("capspix2pix", "pix2pix"):
        options = {"channels": 4, "image_shape": (1, 32, 32), "mean": [0.1], "std": [0.2]}
        model = create_model(name, **options).eval()
        drawn = model(torch.randint(0, 2, (2, 32, 32)), noise_vectors(0, range(2), 100))
        assert drawn.mean().item() == pytest.approx(0.1, abs=0.05)


def test_grain_is_noise_of_its_own_at_every_place_and_the_same_for_images_of_any_size():
    noise = SpatialNoise(100)(noise_vectors(3, range(400), 100), 12, 20)
    assert noise.shape == (400, 1, 12, 20)
    assert ((noise.std(0) > 0.1) & (noise.std(0) < 1.8)).all()
    assert 0.7 < noise.std() < 1.0
    fine = SpatialNoise(100).cells(noise_vectors(3, range(400), 100), 0, 12, 20)[..., :12, :20]
    alike = torch.corrcoef(fine[:, 0].flatten(1).T).fill_diagonal_(0)
    assert (alike.abs() > 0.9).float().mean() < 0.02  # two pixels in a hundred have the same number
    assert (alike.abs() < 0.3).float().mean() > 0.97
    larger = SpatialNoise(100)(noise_vectors(3, range(400), 100), 32, 48)
    torch.testing.assert_close(larger[:, :, :8, :8], noise[:, :, :8, :8])


def test_grain_is_white_and_changes_evenly_between_the_middles_of_squares():
    (fine,) = SpatialNoise(100).cells(noise_vectors(0, [0], 100), 0, 256, 256)[..., :256, :256]
    power = torch.fft.fft2(fine[0]).abs().pow(2).flatten()[1:]
    assert power.max() < 40 * power.mean()  # of noise the largest of 65,535 is about log of it, 11, times the mean
    noise = torch.tensor([[1.0, -2.0, 0.5]])
    grain = SpatialNoise(3)
    corners = grain.cells(noise, 1, 1, 2)[0, 0, 0]
    assert set(corners.abs().tolist()) <= {0.5, 1.0, 2.0}
    fine, coarse = grain.cells(noise, 0, 8, 8)[..., :8, :8], grain.cells(noise, 1, 2, 2)[..., :2, :2]
    middles = torch.nn.functional.interpolate(coarse, scale_factor=4, mode="bilinear")
    whole = grain(noise, 8, 8) * 3**0.5 - fine - middles
    torch.testing.assert_close(
        whole, grain.cells(noise, 2, 1, 1)[..., :1, :1].expand(1, 1, 8, 8)
    )  # one square: alike everywhere


def test_grain_spreads_one_number_too():
    assert SpatialNoise(1)(torch.ones(2, 1), 5, 300).shape == (2, 1, 5, 300)


def test_a_noise_vector_does_not_depend_on_the_others():
    assert torch.equal(noise_vectors(0, [2, 0], 100)[1], noise_vectors(0, range(5), 100)[0])
    assert not torch.equal(noise_vectors(0, [0], 100), noise_vectors(1, [0], 100))
    assert noise_vectors(0, [], 4).shape == (0, 4)


def test_between_two_vectors_the_length_is_theirs():
    first, last = noise_vectors(0, range(2), 100)
    path = slerp(first, last, 9)
    torch.testing.assert_close(path[[0, -1]], torch.stack([first, last]))
    lengths = path.norm(dim=1)
    assert lengths.min() > 0.9 * min(first.norm(), last.norm())
    torch.testing.assert_close(slerp(first, first, 3), first.expand(3, -1))


def test_other_sizes_are_drawn_in_multiples_alone():
    model = create_model("capspix2pix", **SMALL)
    assert model(torch.zeros(1, 8, 24, dtype=torch.long), torch.randn(1, 100)).shape == (1, 1, 8, 24)
    with pytest.raises(UserError, match="multiples of 8; they are 12×16"):
        model(torch.zeros(1, 12, 16, dtype=torch.long), torch.randn(1, 100))
    fixed = create_model("capspix2pix", noise="linear", **SMALL)
    with pytest.raises(UserError, match="for 16×16 images only"):
        fixed(torch.zeros(1, 8, 16, dtype=torch.long), torch.randn(1, 100))
    with pytest.raises(ValueError, match=r"noise \(B, 100\)"):
        model(torch.zeros(1, 16, 16, dtype=torch.long), torch.randn(2, 100))


def test_dropout_is_the_only_noise_of_the_published_pix2pix(tmp_path):
    options = {"noise": "dropout", "channels": 4, "image_shape": (1, 16, 16)}
    model = load(save(create_model("pix2pix", **options), tmp_path))
    masks, noise = torch.randint(0, 2, (1, 16, 16)), torch.randn(2, 100)
    images = []
    for seed, vector in ((0, 0), (0, 1), (1, 0)):
        torch.manual_seed(seed)
        images.append(model(masks, noise[vector : vector + 1]))
    assert torch.equal(images[0], images[1])
    assert not torch.equal(images[0], images[2])


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("capspix2pix", {"noise": "none"}, "noise must be"),
        ("capspix2pix", {"image_shape": (1, 20, 16)}, "multiples of 8"),
        ("capspix2pix", {"num_classes": 1}, "at least 2"),
        ("capspix2pix", {"z": 0}, "at least 1"),
        ("capspix2pix", {"routing": "r2"}, "'r1' or 'r3'"),
        ("pix2pix", {"noise": "linear"}, "noise must be"),
        ("pix2pix", {"image_shape": (1, 6, 6)}, "depth must be at least 2"),
        ("pix2pix", {"image_shape": (1, 16, 24), "depth": 4}, "multiples of 16"),
    ],
)
def test_wrong_settings_are_named(name, options, words):
    with pytest.raises(UserError, match=words):
        create_model(name, **options)


@pytest.mark.parametrize(("depth", "patch"), [(1, 16), (2, 34), (3, 70)])
def test_each_answer_of_the_discriminator_sees_a_patch(depth, patch):
    judge = Discriminator(2, channels=2, depth=depth, spectral_norm=False)
    seen = torch.rand(1, 2, 96, 96, requires_grad=True)
    answers = judge(seen)
    middle = answers.shape[-1] // 2
    answers[0, 0, middle, middle].backward()
    touched = seen.grad[0].abs().sum(0).sum(0).nonzero().flatten()
    assert len(touched) == patch


def test_what_the_discriminator_notices_on_its_way_to_the_answer():
    judge = Discriminator(2, channels=3, depth=2, spectral_norm=False)
    seen = torch.rand(1, 2, 32, 32)
    *maps, logits = judge.features(seen)
    assert [tuple(each.shape[1:]) for each in maps] == [(3, 16, 16), (6, 8, 8), (12, 7, 7)]
    assert torch.equal(maps[0], judge.layers[1](judge.layers[0](seen)))
    assert torch.equal(logits, judge(seen))


def test_spectral_norm_bounds_every_layer():
    judge = Discriminator(2, channels=8, depth=2)
    for _ in range(30):  # each pass brings the estimate nearer
        judge(torch.rand(2, 2, 32, 32))
    for layer in judge.layers:
        if hasattr(layer, "weight"):
            assert torch.linalg.matrix_norm(layer.weight.flatten(1), 2) < 1.05


def test_instance_norm_keeps_differences_from_fading():
    torch.manual_seed(0)
    seen = torch.randn(2, 2, 64, 64)
    plain, normed = (Discriminator(2, channels=8, spectral_norm=False, instance_norm=on) for on in (False, True))
    first, *others, last = (each.std() for each in plain.features(seen))
    assert last < first / 10
    first, *others, last = (each.std() for each in normed.features(seen))
    assert all(each > first for each in others)
    assert last > first / 2


def test_instance_norm_is_for_each_image_by_itself_and_not_for_the_first_or_last_layer():
    judge = Discriminator(2, channels=3, depth=2, instance_norm=True)
    kinds = [type(layer).__name__.removeprefix("Parametrized") for layer in judge.layers]
    normed = ["Conv2d", "InstanceNorm2d", "LeakyReLU"]
    assert kinds == ["Conv2d", "LeakyReLU", *normed, *normed, "Conv2d"]
    judge.eval()
    one, other = torch.rand(1, 2, 32, 32), torch.rand(1, 2, 32, 32)
    assert torch.allclose(judge(torch.cat([one, other]))[:1], judge(one), atol=1e-6)
