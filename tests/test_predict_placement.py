"""What `torchcaps predict` says of how classes stand, and when it answers "none of these"."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import torchcaps
from torchcaps.data.images import upright_size
from torchcaps.errors import UserError
from torchcaps.models import Output, Placement, create_model, save
from torchcaps.predict import predict_file

PLAIN = {"x", "y", "angle", "scale", "spread"}


def tiny(**options):
    return create_model("posecaps_small", image_shape=(1, 16, 16), num_classes=3, **options).eval()


def draw(path, height=16, width=16, **options):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return path


def says(model, *, lengths=(0.1, 0.9, 0.2), **placed):
    """The model, which now answers this to every image: one number for all classes, or one for each."""
    standing = {"x": 7.5, "y": 7.5, "angle": 0.0, "scale": 1.0, "spread": 2.0, **placed}
    each = {name: torch.as_tensor(value).float().expand(1, len(lengths)) for name, value in standing.items()}
    model.forward = lambda images: Output(torch.tensor([lengths]), placement=Placement(**each))
    return model


@pytest.fixture
def loading(monkeypatch):
    """loading(model): every name that a command is given now stands for this model."""
    return lambda model: monkeypatch.setattr(torchcaps, "load", lambda name, device="cpu": model)


def test_a_saved_model_says_how_every_class_stands(tmp_path, call):
    model = tiny()
    save(model, tmp_path / "model")
    path = draw(tmp_path / "a.png")
    code, printed, _ = call("predict", tmp_path / "model", path, "--json")
    assert code == 0
    ranking = json.loads(printed)[0]["ranking"]
    assert all(set(entry) == {"class", "length"} | PLAIN for entry in ranking)
    with torch.no_grad():
        out = model(torch.from_numpy(np.array(Image.open(path)))[None, None] / 255)
    for entry in ranking:
        for name in PLAIN:
            expected = getattr(out.placement, name)[0, int(entry["class"])].item()
            assert entry[name] == pytest.approx(expected, abs=1e-4)


def test_stretch_and_shear_are_told_by_models_that_read_them(tmp_path):
    model = tiny(stretches=(0.9, 1.0, 1.1), shears=(-0.1, 0.0, 0.1))
    entry = predict_file(model, draw(tmp_path / "a.png"))["ranking"][0]
    assert set(entry) == {"class", "length", "stretch", "shear"} | PLAIN


@pytest.mark.parametrize("resize_to", [(16, 16), (20, 24)])
def test_places_are_in_pixels_of_the_file(tmp_path, resize_to):
    """A file of 80×48 shrinks by 80/h and 48/w, then loses (h − 16) / 2 rows and (w − 16) / 2 columns."""
    h, w = resize_to
    model = says(tiny(resize_to=resize_to), x=3.0, y=5.25, angle=-12.3456789)
    entry = predict_file(model, draw(tmp_path / "a.png", 80, 48))["ranking"][0]
    assert entry["x"] == pytest.approx((3.0 + (w - 16) / 2 + 0.5) * 48 / w - 0.5, abs=1e-4)
    assert entry["y"] == pytest.approx((5.25 + (h - 16) / 2 + 0.5) * 80 / h - 0.5, abs=1e-4)
    assert entry["angle"] == -12.3457


def test_a_spot_is_found_where_it_is_in_the_file(tmp_path):
    """Without a network: the brightest pixel of what the model is given, mapped back."""
    pixels = np.zeros((64, 96), dtype=np.uint8)
    pixels[20:24, 60:66] = 255  # its middle is at x 62.5, y 21.5
    Image.fromarray(pixels).save(tmp_path / "spot.png")
    model = tiny(resize_to=(16, 20))

    def forward(images):
        weights = images[0, 0] / images.sum()
        places = torch.arange(16.0)
        x, y = (weights.sum(0) * places).sum(), (weights.sum(1) * places).sum()
        standing = [value.expand(1, 3) for value in (x, y, torch.zeros(1), torch.ones(1), torch.ones(1))]
        return Output(torch.tensor([[0.1, 0.9, 0.2]]), placement=Placement(*standing))

    model.forward = forward
    entry = predict_file(model, tmp_path / "spot.png")["ranking"][0]
    assert entry["x"] == pytest.approx(62.5, abs=0.3)
    assert entry["y"] == pytest.approx(21.5, abs=0.3)


@pytest.mark.parametrize("turned", [1, 3, 6, 8])
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
def test_the_size_of_a_file_is_that_of_the_upright_picture(tmp_path, suffix, turned):
    exif = Image.Exif()
    exif[0x0112] = turned
    path = draw(tmp_path / f"x{suffix}", 30, 50, exif=exif)
    assert upright_size(path) == ((50, 30) if turned > 4 else (30, 50))


def test_the_command_prints_a_line_for_each_class_found(tmp_path, call, loading, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw(tmp_path / "new.png")
    model = says(tiny(), lengths=(0.1, 0.98, 0.7), x=[0, 13.24, 2], y=14.0, angle=[0, -12.4, -0.01], scale=1.061)
    loading(model)
    code, printed, _ = call("predict", "model", "new.png")
    assert code == 0
    assert printed == "new.png  1  presence 0.98  x 13.2  y 14.0  angle -12.4°  scale 1.06\n"
    model.trained_by = {"multi_label": True, "labels_each": 2}
    _, printed, _ = call("predict", "model", "new.png")
    assert printed.splitlines()[1] == "new.png  2  presence 0.70  x 2.0  y 14.0  angle 0.0°  scale 1.06"
    loading(says(tiny(), stretch=1.1, shear=-0.25))
    assert call("predict", "model", "new.png")[1].endswith("scale 1.00  stretch 1.10  shear -0.25\n")


def test_reject_is_about_lengths(tmp_path, call, loading, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw(tmp_path / "new.png")
    loading(says(tiny()))
    code, printed, _ = call("predict", "model", "new.png", "--reject", "0.95")
    assert (code, printed) == (0, "new.png  none of these  nearest 1  presence 0.90\n")


def test_what_is_unfamiliar_is_none_of_these(tmp_path, call, loading, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw(tmp_path / "new.png")
    model = says(tiny())
    model.familiarity = lambda images, output: torch.full((len(images),), -2.5)
    model.none_below = -2.0
    loading(model)
    code, printed, _ = call("predict", "model", "new.png")
    assert code == 0
    assert printed == "new.png  none of these  nearest 1  presence 0.90  familiarity -2.5, below -2\n"
    answer = json.loads(call("predict", "model", "new.png", "--json")[1])[0]
    assert (answer["classes"], answer["familiarity"], answer["none_below"]) == ([], -2.5, -2.0)
    answer = json.loads(call("predict", "model", "new.png", "--json", "--reject", "0")[1])[0]
    assert answer["classes"] == ["1"]
    assert "familiarity" not in answer
    model.none_below = -3.0
    answer = json.loads(call("predict", "model", "new.png", "--json")[1])[0]
    assert (answer["classes"], answer["familiarity"], answer["none_below"]) == (["1"], -2.5, -3.0)
    model.none_below = None
    assert "familiarity" not in json.loads(call("predict", "model", "new.png", "--json")[1])[0]


def test_a_threshold_without_a_measure_is_told_once(tmp_path, call, loading):
    path = draw(tmp_path / "new.png")
    model = create_model("capsnet_small", image_shape=(1, 16, 16), channels=4, types=2, hidden=[4]).eval()
    model.none_below = 0.5
    loading(model)
    code, printed, complaint = call("predict", "model", path, path)
    assert (code, printed) == (2, "")
    assert complaint.count("give --reject") == 1
    assert call("predict", "model", path, "--reject", "0")[0] == 0


@pytest.mark.parametrize("name", ["x", "angle"])
def test_a_place_that_is_no_number_is_told(tmp_path, name):
    with pytest.raises(UserError, match="the model answers NaN"):
        predict_file(says(tiny(), **{name: float("nan")}), draw(tmp_path / "a.png"))


def test_models_without_a_placement_print_what_they_did(tmp_path, call):
    model = create_model("capsnet_small", image_shape=(1, 16, 16), num_classes=3, channels=4, types=2, hidden=[4])
    save(model, tmp_path / "model")
    path = draw(tmp_path / "a.png")
    answer = json.loads(call("predict", tmp_path / "model", path, "--json")[1])[0]
    assert set(answer) == {"file", "classes", "ranking"}
    assert all(set(entry) == {"class", "length"} for entry in answer["ranking"])
    assert call("predict", tmp_path / "model", path)[1].split()[:4] == ["file", "class", "length", "next"]


def test_the_decoder_runs_only_if_familiarity_decides(tmp_path):
    model, path, runs = tiny(), draw(tmp_path / "a.png"), []
    model.decoder.register_forward_hook(lambda *_: runs.append(1))
    before = predict_file(model, path)
    assert (runs, "familiarity" in before) == ([], False)
    model.none_below = -100.0
    familiar = predict_file(model, path)
    assert len(runs) == 1
    assert familiar["ranking"] == before["ranking"]
    predict_file(model, path, reject=0.1)
    assert len(runs) == 1
    assert model.decoder is not None
