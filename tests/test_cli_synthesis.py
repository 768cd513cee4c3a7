"""Synthesis on the command line: from pairs to drawn images, films, explanations and a judgement; and every mistake."""

import json

import numpy as np
import pytest
from PIL import Image

from torchcaps.data import draw_axons
from torchcaps.models import create_model, save
from torchcaps.train.experiments import judge as judging

TINY = [
    *("augment.crop=16", "model.channels=2", "model.z=4", "train.epochs=1", "train.batch_size=8"),
    *("discriminator.channels=2", "discriminator.depth=1", "data.validation=2", "data.test=2"),
]
UNET = ["train.epochs=2", "model.channels=2", "model.depth=1"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory, write_pairs):
    return write_pairs(tmp_path_factory.mktemp("pairs"), draw_axons(6, 32))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Untrained: MODEL of capsules, OTHER a pix2pix, DROPPED one whose noise is dropout, MASKS one that segments."""
    made = {
        "MODEL": create_model("capspix2pix", image_shape=(1, 32, 32), channels=2, z=4),
        "OTHER": create_model("pix2pix", image_shape=(1, 32, 32), channels=2, z=4),
        "DROPPED": create_model("pix2pix", image_shape=(1, 32, 32), channels=2, noise="dropout"),
        "MASKS": create_model("unet", image_shape=(1, 32, 32), channels=2, depth=1),
    }
    folder = tmp_path_factory.mktemp("models")
    return {name: save(model, folder / name) for name, model in made.items()}


def settings(*given):
    return [part for setting in given for part in ("--set", setting)]


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_from_pairs_to_a_judgement(call, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "DRAWS", 2)
    run = tmp_path / "run"
    code, printed, complaint = call(
        "train", "capspix2pix", "--data", pairs, "--out", run, "--device", "cpu", *settings(*TINY)
    )
    assert code == 0, complaint
    assert "test similarity" in printed
    code, printed, complaint = call("eval", run, "--seeds", 1, "--out", tmp_path / "judged", *settings(*UNET))
    assert code == 0, complaint
    result = json.loads((tmp_path / "judged" / "judge.json").read_text())
    assert list(result["trained"]) == ["real", str(run), f"real + {run}"]
    assert "Dice on real images" in printed
    assert "generator parameters" in printed


def test_the_same_seed_gives_the_same_bytes(call, models, pairs, tmp_path):
    masks = [pairs / "masks" / f"axons-0000{number}.png" for number in range(2)]
    for folder, more in (("a", []), ("b", []), ("c", ["--seed", 1]), ("d", ["--n", 3])):
        code, printed, _ = call("generate", models["MODEL"], *masks, "--out", tmp_path / folder, "--n", 2, *more)
        assert code == 0
    one, again, other, more = (files(tmp_path / folder) for folder in "abcd")
    assert list(one) == ["axons-00000-0.png", "axons-00000-1.png", "axons-00001-0.png", "axons-00001-1.png"]
    assert one == again
    assert not set(one.values()) & set(other.values())
    assert len(set(one.values())) == 4
    assert len(more) == 6
    assert one.items() <= more.items()
    assert len(printed.split()) == 6
    assert np.asarray(Image.open(tmp_path / "a" / "axons-00000-0.png")).shape == (32, 32)


def test_a_film_from_one_noise_to_another(call, models, pairs, tmp_path):
    mask = pairs / "masks" / "axons-00000.png"
    arguments = ["generate", models["MODEL"], mask, "--interpolate", 0, 2, "--frames", 10, "--out", tmp_path / "a"]
    code, printed, _ = call(*arguments, "--json")
    assert code == 0
    strip, film = json.loads(printed)[0]["images"]
    with Image.open(strip) as picture, Image.open(film) as frames:
        assert (picture.height, picture.width) == (2 * 34, 8 * 34)
        assert frames.n_frames == 10 + 8
        first = np.asarray(picture)[1:33, 1:33]
    call("generate", models["MODEL"], mask, "--out", tmp_path / "b", "--n", 1)
    assert (first == np.asarray(Image.open(tmp_path / "b" / "axons-00000-0.png"))).all()


def test_explain_shows_features_on_the_way_beside_those_of_pix2pix(call, models, pairs, tmp_path):
    mask = pairs / "masks" / "axons-00000.png"
    code, printed, _ = call("explain", models["MODEL"], mask, "--out", tmp_path, "--against", models["OTHER"])
    assert code == 0
    names = set(files(tmp_path))
    assert {"drawings.png", "interpolation.png", "features-12-classes.png", "couplings-04-at_quarter.png"} <= names
    assert {f"interpolation-features-{name}.png" for name in ("capspix2pix", "pix2pix")} <= names
    assert len(printed.split()) == len(names)
    with np.load(tmp_path / "arrays.npz") as arrays:
        assert arrays["interpolation_features_capspix2pix"].shape == (8, 2, 32, 32)
        assert arrays["interpolation_features_pix2pix"].shape == (8, 4, 16, 16)
        assert arrays["drawings"].shape == (4, 1, 32, 32)


def test_masks_of_other_sizes_are_drawn_if_that_is_asked_for(call, models, tmp_path):
    Image.fromarray(np.zeros((16, 40), dtype=np.uint8)).save(tmp_path / "wide.png")
    code, _, _ = call(
        "generate", models["MODEL"], tmp_path / "wide.png", "--any-size", "--n", 1, "--out", tmp_path / "a"
    )
    assert code == 0
    assert np.asarray(Image.open(tmp_path / "a" / "wide-0.png")).shape == (16, 40)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "MODEL", "LARGE"], "large.png is 40×32, and this model was trained on 32×32"),
        (["generate", "MODEL", "ODD", "--any-size"], "multiples of 8; they are 12×32"),
        (["generate", "MODEL", "COLOUR"], "save the masks with one channel"),
        (["generate", "MODEL", "GREYS"], "class ids are 0 to 1, or 0 and 255 alone"),
        (["generate", "MODEL", "MASK", "ODD"], "odd.png is 12×32"),
        (["generate", "MODEL", "MASK", "--n", "0"], "greater than or equal to 1"),
        (
            ["generate", "MODEL", "MASK", "--n", "2", "--interpolate", "0", "1"],
            "--n and --interpolate do not go together",
        ),
        (["generate", "MODEL", "MASK", "--frames", "4"], "--frames is for interpolations"),
        (["generate", "MODEL", "MASK", "--interpolate", "0", "1", "--frames", "1"], "greater than or equal to 2"),
        (["generate", "MODEL", "MASK", "--interpolate", "0", "-1"], "numbered from 0"),
        (["generate", "MODEL", "MASK", "MASK"], "several masks are called"),
        (["generate", "MODEL", "NOWHERE"], "nowhere.png"),
        (["generate", "MASKS", "MASK"], "a UNet draws no images from masks"),
        (["generate", "DROPPED", "MASK", "--interpolate", "0", "1"], "the noise of this model is dropout"),
        (["predict", "MODEL", "MASK"], "use `torchcaps generate`"),
        (["explain", "MODEL", "MASK", "--target", "1"], "omit --target"),
        (["explain", "MODEL", "MASK", "--against", "MASKS"], "draws no images"),
        (["explain", "MASKS", "MASK", "--against", "MODEL"], "are for models that draw"),
        (["eval", "MODEL"], "does not record its training data"),
        (["eval", "MODEL", "--views"], "this model draws images"),
        (["eval", "MODEL", "--against", "MASKS"], "draws no images"),
        (["eval", "MASKS", "--set", "train.epochs=1"], "--set needs a synthesis model"),
        (["eval", "MODEL", "--suite", "affine"], "is a synthesis model, and the suites"),
        (["train", "capspix2pix", "--data", "digits", "--set", "augment.crop=0"], "it learns from images with masks"),
        (["train", "capspix2pix", "--data", "PAIRS", "--set", "augment.crop=20"], "multiples of 8"),
        (["train", "capspix2pix", "--data", "PAIRS", "--set", "augment.crop=8"], "windows of at least 12 pixels"),
        (["train", "capspix2pix", "--data", "PAIRS", "--set", "loss.dice=1"], "loss.dice is not for synthesis"),
    ],
)
def test_a_mistake_is_one_message_and_nothing_is_written(call, models, pairs, tmp_path, arguments, words):
    made = tmp_path / "made"
    made.mkdir()
    masks = {
        "large": np.zeros((40, 32)),
        "odd": np.zeros((12, 32)),
        "colour": np.arange(32 * 32 * 3).reshape(32, 32, 3) % 251,
        "greys": np.arange(32 * 32).reshape(32, 32) % 200,
    }
    places = {"MASK": pairs / "masks" / "axons-00000.png", "PAIRS": pairs, "NOWHERE": made / "nowhere.png", **models}
    for name, values in masks.items():
        places[name.upper()] = made / f"{name}.png"
        Image.fromarray(values.astype(np.uint8)).save(made / f"{name}.png")
    out = [] if arguments[0] in ("predict", "eval") else ["--out", tmp_path / "out"]
    code, _, complaint = call(*(places.get(each, each) for each in arguments), *out)
    assert code == 2
    assert words in " ".join(complaint.replace("│", " ").split())
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_an_image_never_overwrites_the_mask_it_was_drawn_from(call, models, tmp_path):
    for name in ("a", "a-0"):
        Image.fromarray(np.zeros((32, 32), dtype=np.uint8)).save(tmp_path / f"{name}.png")
    before = files(tmp_path)
    code, _, complaint = call("generate", models["MODEL"], tmp_path / "a.png", tmp_path / "a-0.png", "--out", tmp_path)
    assert code == 2
    assert "would overwrite the mask" in " ".join(complaint.split())
    assert files(tmp_path) == before
