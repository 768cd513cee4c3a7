"""Width of strokes, read by pose capsules: fitted after training, given where it holds, saved with the model."""

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.data import Dataset, load_data
from torchcaps.explain.placement_charts import figure_read_poses, pose_words
from torchcaps.explain.strokes import stroke_width
from torchcaps.models import Output, Placement, create_model, load, save
from torchcaps.predict import predict_file
from torchcaps.train.calibrate import calibrate_thickness

SIZE = 16


def bars(count, seed):
    """Soft bars of random width and place, upright (class 0) or lying (class 1)."""
    generator = torch.Generator().manual_seed(seed)
    width, off = 1.5 + 4 * torch.rand(count, generator=generator), 4 * torch.rand(count, generator=generator) - 2
    across = (torch.arange(SIZE) - (SIZE - 1) / 2 - off[:, None]).abs()
    profile = ((width[:, None] / 2 - across) + 0.5).clamp(0, 1)
    along = (torch.arange(SIZE) - (SIZE - 1) / 2).abs() < 6.6
    images = profile[:, None, :] * along[:, None]
    classes = torch.arange(count) % 2
    images = torch.where(classes[:, None, None] == 1, images.mT, images)[:, None]
    return Dataset((255 * images).to(torch.uint8), classes, ("upright", "lying"))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return create_model("posecaps_small", image_shape=(1, SIZE, SIZE), num_classes=2, width=4).eval()


@pytest.fixture
def calibrated(model):
    assert calibrate_thickness(model, bars(300, 0), bars(60, 1))["given"]
    return model


def test_the_reading_follows_the_measured_width(model):
    images = bars(40, 2)
    before = model(model.prepare(images.images))
    assert before.placement.thickness is None
    figures = calibrate_thickness(model, bars(300, 0), bars(60, 1))
    assert figures["given"]
    assert figures["r2"] > 0.8
    assert figures["slope"] == pytest.approx(1, abs=0.3)
    assert figures["n"] == 60
    with torch.no_grad():
        after = model(model.prepare(images.images))
    read = after.placement.thickness.gather(1, images.targets[:, None])[:, 0]
    measured = stroke_width(model.prepare(images.images))
    assert (read - measured).abs().median() < 0.3
    torch.testing.assert_close(after.lengths, before.lengths)  # nothing else has changed
    torch.testing.assert_close(after.placement[:5], before.placement[:5])


def test_it_has_a_gradient(calibrated):
    images = calibrated.prepare(bars(2, 3).images).requires_grad_()
    calibrated(images).placement.thickness.sum().backward()
    assert images.grad.abs().sum() > 0


def test_what_the_capsules_do_not_carry_is_not_given(model, monkeypatch):
    monkeypatch.setattr(model, "mean_primary", lambda seen, weights: torch.rand(*weights.shape[::2], 64))
    figures = calibrate_thickness(model, bars(300, 0), bars(60, 1))
    assert (figures["given"], figures["r2"] < 0.5) == (False, True)
    assert model(model.prepare(bars(2, 3).images)).placement.thickness is None
    assert model.arguments["thickness"] is False


def test_nothing_is_fitted_where_there_are_no_strokes(model, calibrated):
    noise = torch.randint(128, 256, (60, 1, SIZE, SIZE), generator=torch.Generator().manual_seed(0))
    blobs = Dataset(noise.to(torch.uint8), torch.arange(60) % 2, ("a", "b"))
    assert calibrate_thickness(calibrated, blobs, blobs) == {}
    assert calibrated.thickness_weight is None  # what was read before is gone
    several = bars(60, 1)
    several = Dataset(several.images, torch.nn.functional.one_hot(several.targets).float(), several.class_names)
    assert calibrate_thickness(model, several, several) == {}
    assert calibrate_thickness(model, bars(60, 0), None) == {}
    assert calibrate_thickness(create_model("capsnet_small"), bars(60, 0), bars(60, 1)) == {}


def test_it_is_saved_with_the_model(calibrated, model, tmp_path):
    images = calibrated.prepare(bars(3, 3).images)
    again = load(save(calibrated, tmp_path / "read"))
    assert torch.equal(again(images).placement.thickness, calibrated(images).placement.thickness)
    calibrated.set_thickness_weight(None)
    assert load(save(calibrated, tmp_path / "unread"))(images).placement.thickness is None


def test_the_shipped_model_reads_the_width_of_digits():
    shipped = load("posecaps-digits")
    test = load_data(**shipped.trained_by["data"]).test
    images = shipped.prepare(test.images)
    with torch.no_grad():
        read = shipped(images).placement.thickness[torch.arange(len(images)), test.targets]
    truth = stroke_width(images)
    known = truth.isfinite()
    assert known.float().mean() > 0.9
    assert (read - truth)[known].abs().median() < 0.4
    assert torch.corrcoef(torch.stack([read[known], truth[known].float()]))[0, 1] > 0.6


def test_a_read_out_of_another_shape_is_refused(model):
    with pytest.raises(ValueError, match=r"expected a weight of shape \(2, 65\), got \(2, 64\)"):
        model.set_thickness_weight(torch.zeros(2, 64))


def test_predict_gives_it_in_pixels_of_the_file(model, tmp_path):
    parts = [torch.full((1, 2), value) for value in (7.5, 7.5, 0.0, 1.0, 2.0)]
    placement = Placement(*parts, thickness=torch.tensor([[2.0, 3.0]]))
    model.forward = lambda images: Output(torch.tensor([[0.9, 0.1]]), placement=placement)
    Image.fromarray(np.zeros((64, 16), dtype=np.uint8)).save(tmp_path / "high.png")
    ranking = predict_file(model, tmp_path / "high.png")["ranking"]
    assert [entry["thickness"] for entry in ranking] == [4.0, 6.0]  # √(4 · 1) times as wide


def test_the_command_prints_it(calibrated, tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(calibrated, tmp_path / "model")
    Image.fromarray(bars(1, 3).images[0, 0].numpy()).save("bar.png")
    code, printed, _ = call("predict", "model", "bar.png")
    assert code == 0
    width = stroke_width(calibrated.prepare(bars(1, 3).images)).item()
    assert abs(float(printed.split("thickness ")[1].removesuffix(" px\n")) - width) < 1


def test_figures_show_it(calibrated):
    values = torch.tensor([1.0, 2.0])
    placed = Placement(values, values, values, values, values, thickness=torch.tensor([2.94, 3.0]))
    assert pose_words(placed, 0)[-1] == "strokes 2.9 px"
    assert len(pose_words(placed._replace(thickness=None), 0)) == 3
    ids = torch.tensor([0, 1])
    assert len(figure_read_poses(values, values, ids, ("a", "b"), placed.thickness).axes) == 6
    assert len(figure_read_poses(values, values, ids, ("a", "b")).axes) == 4
