"""Segmentation on the command line: from a folder of pairs to masks, overlays and explanations; and every mistake."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from torchcaps.data import draw_axons
from torchcaps.models import create_model, save

TINY = [
    *("augment.crop=16", "model.channels=2", "model.width=0.5", "train.epochs=1", "train.batch_size=16"),
    *("data.validation=2", "data.test=2"),
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory, write_pairs):
    return write_pairs(tmp_path_factory.mktemp("pairs"), draw_axons(8, 40))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    options = {"channels": 2, "width": 0.5, "class_names": ("background", "axon")}
    return save(create_model("segcaps", image_shape=(1, 32, 32), **options), tmp_path_factory.mktemp("model"))


def settings(*more):
    return [part for setting in (*TINY, *more) for part in ("--set", setting)]


def test_from_a_folder_of_pairs_to_masks(call, pairs, tmp_path):
    code, printed, _ = call("train", "--data", pairs, "--out", tmp_path / "run", "--device", "cpu", *settings())
    assert code == 0
    assert "test dice" in printed
    assert "4 to train on, 2 validation, 2 test" in printed
    code, printed, _ = call("eval", tmp_path / "run", "--json")
    summary, figures = json.loads((tmp_path / "run" / "summary.json").read_text()), json.loads(printed)
    assert figures["dice"] == pytest.approx(summary["test_dice"], abs=1e-6)
    code, printed, _ = call("eval", tmp_path / "run", "--data", pairs)
    assert code == 0
    assert "on 8 images" in printed
    assert "Hausdorff" in printed


def test_predict_writes_a_mask_and_an_overlay_of_the_same_name(call, model, tmp_path):
    sizes = {"wide": (31, 70), "dot": (1, 1), "colour": (20, 20, 3)}
    rng = np.random.default_rng(0)
    for name, size in sizes.items():
        Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(tmp_path / f"{name}.png")
    np.save(tmp_path / "array.npy", rng.random((17, 9)))
    (tmp_path / "broken.png").write_text("no image")
    images = [tmp_path / f"{name}.png" for name in sizes] + [tmp_path / "array.npy", tmp_path / "broken.png"]
    code, printed, complaint = call("predict", model, *images, "--out", tmp_path / "out", "--json")
    assert code == 1
    assert "broken.png" in complaint
    answers = json.loads(printed)
    assert [answer["size"] for answer in answers] == [[31, 70], [1, 1], [20, 20], [17, 9]]
    for answer in answers:
        mask, overlay = (np.asarray(Image.open(answer[kind])) for kind in ("mask", "overlay"))
        assert list(mask.shape) == answer["size"]
        assert set(np.unique(mask)) <= {0, 255}
        assert (mask > 0).mean() == pytest.approx(answer["shares"]["axon"], abs=1e-6)
        assert overlay.shape == (*mask.shape, 3)
    written = sorted(path.name for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert written == sorted(2 * ["array.png", "colour.png", "dot.png", "wide.png"])
    code, printed, _ = call("predict", model, images[0], "--out", tmp_path / "out")
    assert code == 0
    assert "31×70" in printed


def test_predict_overwrites_neither_drawn_masks_nor_images(call, model, tmp_path):
    (tmp_path / "masks").mkdir()
    for path in (tmp_path / "a.png", tmp_path / "masks" / "a.png"):
        Image.fromarray(np.full((20, 20), 7, dtype=np.uint8)).save(path)
    for image, words in (("a.png", "was not written by torchcaps"), ("masks/a.png", "was not written by torchcaps")):
        code, _, complaint = call("predict", model, tmp_path / image, "--out", tmp_path)
        assert code == 2
        assert words in " ".join(complaint.split())
    (tmp_path / "overlays").mkdir()
    (tmp_path / "overlays" / "a.png").touch()
    code, _, complaint = call("predict", model, tmp_path / "masks" / "a.png", "--out", tmp_path)
    assert code == 2
    assert "would overwrite an image" in " ".join(complaint.split())
    assert (np.asarray(Image.open(tmp_path / "masks" / "a.png")) == 7).all()


def test_explain_writes_every_layer(call, model, pairs, tmp_path):
    code, printed, _ = call("explain", model, pairs / "images" / "axons-00000.png", "--out", tmp_path / "why")
    assert code == 0
    names = {path.name for path in (tmp_path / "why").iterdir()}
    assert {"mask.png", "features-00-conv.png", "features-12-classes.png", "couplings-04-at_quarter.png"} <= names
    assert len(printed.split()) == len(names)
    with np.load(tmp_path / "why" / "arrays.npz") as arrays:
        assert arrays["presence"].shape == (1, 40, 40)
        assert arrays["pose_at_eighth"].shape == (4, 4, 5, 5)
        assert arrays["couplings_at_quarter"].shape[2:] == (10, 10)


def spoil(kind):
    """What a user may have done to a folder of pairs, or to one of its masks."""

    def change(root):
        mask = root / "masks" / "axons-00001.png"
        values = np.asarray(Image.open(mask)).copy()
        if kind == "missing":
            mask.unlink()
        elif kind == "size":
            Image.fromarray(values[:-1]).save(mask)
        elif kind == "values":
            values[0, :3] = (1, 77, 130)
            Image.fromarray(values).save(mask)
        elif kind == "jpeg":
            mask.unlink()
            Image.fromarray(values).save(mask.with_suffix(".jpg"))
        elif kind == "few":
            for path in [*root.glob("images/*"), *root.glob("masks/*")]:
                if path.stem > "axons-00001":
                    path.unlink()

    return change


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("missing", "has no mask for axons-00001"),
        ("size", "make them the same size"),
        ("values", "axons-00001.png has the values 0, 1, 77, 130"),
        ("jpeg", "lossy compression changes the values of a mask; save the masks as PNG"),
        ("few", "too few for a split"),
    ],
)
def test_a_spoiled_folder_is_one_message_and_nothing_is_written(call, pairs, tmp_path, kind, words):
    root = shutil.copytree(pairs, tmp_path / "pairs")
    spoil(kind)(root)
    code, _, complaint = call("train", "segcaps", "--data", root, "--out", tmp_path / "run", *settings())
    assert code == 2
    assert words in " ".join(complaint.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["predict", "MODEL", "IMAGE"], "choose a folder for the masks with --out"),
        (["predict", "MODEL", "IMAGE", "IMAGE", "--out", "OUT"], "several images are called axons-00000"),
        (["predict", "MODEL", "IMAGE", "--out", "PAIRS"], "whose masks would be overwritten"),
        (["predict", "MODEL", "IMAGE", "--out", "OUT", "--reject", "0.5"], "--reject is for classifiers"),
        (["predict", "capsnet-digits", "IMAGE", "--out", "OUT"], "this one classifies images"),
        (["explain", "MODEL", "IMAGE", "--out", "OUT", "--target", "axon"], "omit --target"),
        (["eval", "MODEL"], "does not record its training data"),
        (["eval", "MODEL", "--data", "digits"], "this model segments images"),
        (["eval", "capsnet-digits", "--data", "PAIRS"], "this model classifies whole images"),
        (["train", "segcaps", "--data", "digits"], "it learns from images with masks"),
        (["train", "digits", "--data", "PAIRS", "--set", "data.image_size=null"], "these are images with masks"),
        (["train", "segcaps", "--data", "PAIRS", "--set", "data.positive=9"], "no mask has this value, only 0, 255"),
        (["train", "segcaps", "--data", "PAIRS", "--set", "data.test=last:9"], "a number from 1 to 8"),
        (["train", "isbi"], "register at the ISBI 2012 challenge"),
        (["train", "segcaps", "--data", "PAIRS", "--set", "also=[mnist-expanded]"], "this recipe learns masks"),
    ],
)
def test_a_mistake_is_one_message(call, model, pairs, tmp_path, arguments, words):
    image = pairs / "images" / "axons-00000.png"
    places = {"MODEL": model, "IMAGE": image, "PAIRS": pairs, "OUT": tmp_path / "out"}
    more = ["--out", tmp_path / "run"] if arguments[0] == "train" else []
    code, _, complaint = call(*(places.get(each, each) for each in arguments), *more)
    assert code == 2
    assert words in " ".join(complaint.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["absent", "dot"])
def test_a_class_that_is_nowhere_and_an_image_of_one_pixel_are_no_mistakes(call, tmp_path, write_pairs, kind):
    drawn = draw_axons(6, 24)
    if kind == "absent":
        for mask in drawn.masks:
            mask.zero_()
    else:
        drawn.images[1], drawn.masks[1] = drawn.images[1][:, :1, :1], drawn.masks[1][:1, :1]
    root = write_pairs(tmp_path / "pairs", drawn)
    code, printed, complaint = call("train", "--data", root, "--out", tmp_path / "run", "--device", "cpu", *settings())
    assert code == 0, complaint
    assert "test dice" in printed
