"""Models that predict placements: the explorer returns what the model and `torchcaps predict` return."""

import numpy as np
import pytest
import torch
from bodies import as_file, pixels_of, random_pixels
from PIL import Image

from torchcaps import geometry
from torchcaps.data import load_data
from torchcaps.errors import UserError
from torchcaps.explain.placement import POSE_SWEEP, lattice_lengths, sweep_pose
from torchcaps.models import Placement, create_model, load
from torchcaps.predict import predict_file
from torchcaps.serve.explorer import Explorer
from torchcaps.serve.poses import placements_of
from torchcaps.serve.requests import LatticeRequest, PredictRequest, ReconstructRequest, TransformRequest
from torchcaps.serve.served_models import ServedModel, check_explorable, load_models


def close(returned, expected, atol=2e-6):
    torch.testing.assert_close(torch.tensor(returned).float(), expected.detach().float(), atol=atol, rtol=0)


@pytest.fixture(scope="module")
def digits():
    """The shipped model, and an explorer that serves it."""
    served_models = load_models("posecaps-digits")
    return served_models[0].model, Explorer(served_models)


@pytest.fixture(scope="module")
def test_digits():
    return load_data("digits", image_size=16).test


def request_for(model_name="poses", seed=0, **options):
    return PredictRequest(image=random_pixels(seed), model=model_name, **options)


def test_predict_is_the_models_own_forward(explorer, served_models):
    model, question = served_models[3].model, request_for(top=2)
    answer = explorer.predict(question)
    image = torch.tensor(question.image.pixels)[None, None]
    output = model(image)
    order = output.lengths[0].argsort(descending=True)[:2]
    both = model(image, each=order[None]).reconstruction[0]
    close(answer.lengths, output.lengths[0])
    for name in ("x", "y", "angle", "scale", "spread", "shear"):
        close(getattr(answer.placements, name), getattr(output.placement, name)[0], atol=1e-5)
    assert answer.placements.stretch is None
    assert answer.winners == [each.class_ for each in answer.decoded] == order.tolist()
    for each, picture in zip(answer.decoded, both):
        close(each.pose, output.poses[0, each.class_])
        assert np.abs(pixels_of(each.reconstruction) - 255 * picture[0].detach().numpy()).max() <= 0.51
        upright = model.draw_upright(output.poses[:, each.class_], torch.tensor([each.class_]))[0, 0]
        assert np.abs(pixels_of(each.upright) - 255 * upright.detach().numpy()).max() <= 0.51
    close(answer.error, (image[0] - both.sum(0).clamp(max=1)).square().mean())


def test_none_of_the_classes_is_predicted_where_torchcaps_predict_does(digits, test_digits, tmp_path):
    model, explorer = digits
    noise = np.random.default_rng(0).integers(0, 200, (16, 16)).astype(np.uint8)
    noise[[0, -1]] = noise[:, [0, -1]] = 0  # with a light border the image would be inverted
    found = []
    for index, pixels in enumerate([*test_digits.images[:6, 0].numpy(), noise]):
        path = tmp_path / f"{index}.png"
        Image.fromarray(pixels).save(path)
        expected = predict_file(model, path)
        answer = explorer.predict(PredictRequest(image={"png": as_file(pixels), "centre": False}))
        assert [model.class_names[each] for each in answer.classes] == expected["classes"]
        assert answer.familiarity == pytest.approx(expected["familiarity"], abs=1e-4)
        first = expected["ranking"][0]
        winner = answer.winners[0]
        assert model.class_names[winner] == first["class"]
        for name in ("x", "y", "angle", "scale", "spread"):
            assert getattr(answer.placements, name)[winner] == pytest.approx(first[name], abs=1e-3)
        found.append(answer.classes)
    assert found[-1] == []
    assert sum(map(bool, found[:6])) >= 5  # the threshold keeps 95 % of the validation images
    assert explorer.models().models[0].none_below == model.none_below


@pytest.mark.parametrize("name", ["capsules", "poses", "cnn"])
def test_reject_overrides_the_models_threshold(explorer, served_models, name):
    model = next(each.model for each in served_models if each.name == name)
    longest = max(explorer.predict(request_for(name)).lengths)
    low, high = (explorer.predict(request_for(name, reject=longest + step)) for step in (-1e-4, 1e-4))
    assert low.classes == low.winners
    assert high.classes == []
    assert high.winners == low.winners
    assert low.familiarity is high.familiarity is None
    assert model.none_below is None


def test_the_models_threshold_is_the_default(explorer, served_models, monkeypatch):
    monkeypatch.setattr(served_models[3].model, "none_below", 100.0)
    answer = explorer.predict(request_for())
    assert (answer.classes, len(answer.winners)) == ([], 1)
    assert answer.familiarity < 100
    assert explorer.predict(request_for(reject=0.0)).classes == answer.winners


def test_a_placement_rotates_and_moves_the_drawing(explorer, served_models):
    """The drawing is rotated about its own centre by exactly the change of the angle."""
    model, pose = served_models[3].model, torch.linspace(-0.5, 0.5, 16)
    drawn = {}
    for name, placement in (
        ("middle", None),
        ("quarter", {"x": 13.5, "y": 13.5, "angle": 90}),
        ("moved", {"x": 16.5, "y": 9.5}),
        ("all", {"x": 15.0, "y": 12.0, "angle": 10, "scale": 1.2, "shear": 0.3}),
    ):
        body = {"class": 4, "pose": pose.tolist(), "model": "poses", "placement": placement}
        answer = explorer.reconstruct(ReconstructRequest(**body))
        drawn[name] = pixels_of(answer.reconstruction)
        upright = pixels_of(answer.upright)
    assert (drawn["middle"] == upright).all()
    assert np.abs(drawn["quarter"] - np.rot90(upright)).max() <= 1
    assert np.abs(drawn["moved"][:-4, 3:] - upright[4:, :-3]).max() <= 1
    affine = geometry.Affine.of(x=torch.tensor([1.5]), y=-1.5, angle=10.0, scale=1.2, shear=0.3)
    expected = model.draw(pose[None], torch.tensor([4]), affine)[0, 0] * 255
    assert np.abs(drawn["all"] - expected.detach().numpy()).max() <= 0.51


def test_the_sweep_of_a_placement_equals_sweep_pose(explorer, served_models):
    model, question = served_models[3].model, request_for()
    answer = explorer.predict(question)
    (decoded,), read = answer.decoded, answer.placements
    placement = {name: getattr(read, name)[decoded.class_] for name in ("x", "y", "angle", "scale", "shear")}
    body = {"class": decoded.class_, "pose": decoded.pose, "placement": placement, "sweep": True, "model": "poses"}
    swept = explorer.reconstruct(ReconstructRequest(**body))
    assert pixels_of(swept.reconstruction).tolist() == pixels_of(decoded.reconstruction).tolist()
    expected = sweep_pose(model, torch.tensor(question.image.pixels)[None])
    assert [part.name for part in swept.sweep.parts] == list(expected) == ["angle", "scale", "x", "y", "shear"]
    for part in swept.sweep.parts:
        assert tuple(part.values) == POSE_SWEEP[part.name]
        strip = pixels_of(part.picture).reshape(28, 11, 28).transpose(1, 0, 2)
        assert np.abs(strip - 255 * expected[part.name][:, 0].numpy()).max() <= 0.6
    assert pixels_of(swept.sweep.picture).shape == (16 * 28, 11 * 28)


def test_the_lattice_equals_the_models(explorer, served_models):
    model, question = served_models[3].model, LatticeRequest(image=random_pixels(), model="poses")
    answer = explorer.lattice(question)
    image = torch.tensor(question.image.pixels)[None]
    close(answer.lengths, lattice_lengths(model, image).movedim(-1, 0))
    assert np.shape(answer.lengths) == (10, len(answer.angles), len(answer.scales)) == (10, 7, 3)
    predicted = explorer.predict(request_for())
    assert answer.presence == pytest.approx(predicted.lengths, abs=2e-6)
    assert answer.placements.angle == pytest.approx(predicted.placements.angle, abs=1e-4)


def test_the_predicted_angle_follows_the_applied_one(digits, test_digits):
    _, explorer = digits
    for pixels, label in zip(test_digits.images[:4, 0], test_digits.targets):
        image = {"pixels": (pixels.float() / 255).tolist()}
        answer = explorer.transform(TransformRequest(image=image, along="rotate", steps=25))
        curve, index = answer.curve, int(label)
        applied = np.array(curve.values)
        read = np.array([each.angle[index] for each in curve.placements])
        near = np.abs(applied) <= 31
        slope = np.polyfit(applied[near], read[near], 1)[0]
        assert 0.8 < slope < 1.2
        assert len(curve.placements) == 25
        single = explorer.transform(TransformRequest(image=image, rotate=30.0))
        assert single.placements.angle[index] == pytest.approx(read[14], abs=1e-3)


@pytest.mark.skipif("thickness" not in Placement._fields, reason="no model predicts the stroke width")
def test_the_stroke_width_is_returned_if_it_is_predicted(explorer, served_models):
    parts = [torch.full((1, 2), float(index)) for index in range(5)]
    converted = placements_of(Placement(*parts, thickness=torch.tensor([[2.5, 3.0]])))[0]
    assert (converted.thickness, converted.stretch, converted.spread) == ([2.5, 3.0], None, [4, 4])
    assert explorer.predict(request_for()).placements.thickness is None


def test_models_of_other_kinds_have_no_placements(explorer):
    answer = explorer.predict(request_for("capsules"))
    assert (answer.placements, answer.decoded[0].upright) == (None, None)
    moved = explorer.transform(TransformRequest(image=random_pixels(), along="rotate", steps=3))
    assert (moved.placements, moved.curve.placements) == (None, None)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("lattice", {}, "capsules does not predict placements; use a model of kind poses"),
        ("lattice", {"model": "cnn"}, "cnn does not predict placements; use a model of kind poses"),
        ("routing", {"model": "poses"}, "poses has no routed capsules; use a model of kind capsules"),
        ("predict", {"model": "poses", "iterations": 2}, "iterations: poses has no routing; omit it"),
        ("predict", {"model": "poses", "decode": [10]}, "class: the model has 10 classes, numbered from 0"),
        ("predict", {"reject": 1.5}, "reject: Input should be less than or equal to 1"),
    ],
)
def test_unsupported_requests_get_one_sentence(client, path, body, message):
    response = client.post(f"/api/{path}", json={"image": random_pixels(), **body})
    assert (response.status_code, response.json()) == (422, {"detail": message})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"pose": [0.0] * 15, "model": "poses"}, "pose: a capsule of poses has 16 dimensions, got 15"),
        ({"placement": {"x": 1, "y": 2}}, "placement: capsules does not predict placements; omit it"),
        ({"model": "poses", "placement": {"x": 1}}, "placement.y: Field required"),
        (
            {"model": "poses", "placement": {"x": 1, "y": 2, "scale": 0}},
            "placement.scale: Input should be greater than or equal to 0.05",
        ),
        (
            {"model": "poses", "placement": {"x": 1, "y": 2, "stretch": 1.5}},
            "placement.stretch: this model does not predict it; omit it",
        ),
    ],
)
def test_unsupported_placements_get_one_sentence(client, body, message):
    response = client.post("/api/reconstruct", json={"class": 1, "pose": [0.0] * 16, **body})
    assert (response.status_code, response.json()) == (422, {"detail": message})


def test_without_a_decoder_all_but_reconstruction_works():
    torch.manual_seed(0)
    served = ServedModel("blind", create_model("posecaps_small", width=4, types=4, decoder="none").eval())
    check_explorable(served)
    explorer = Explorer([served])
    assert explorer.models().models[0].decoder is False
    answer = explorer.predict(request_for("blind"))
    (decoded,) = answer.decoded
    assert (decoded.reconstruction, decoded.coloured, decoded.upright) == (None, None, None)
    assert (answer.together, answer.missing, answer.error) == (None, None, None)
    assert len(answer.placements.angle) == len(answer.lengths) == 10
    assert np.shape(explorer.lattice(LatticeRequest(image=random_pixels())).lengths) == (10, 7, 3)
    with pytest.raises(UserError, match="^blind has no decoder and cannot reconstruct images$"):
        explorer.reconstruct(ReconstructRequest(**{"class": 1, "pose": [0.0] * 16}))


def test_damaged_offsets_are_refused():
    model = create_model("posecaps_small", width=4, types=4).eval()
    model.offset.bias.data[0] = torch.nan
    with pytest.raises(UserError, match="output is NaN"):
        check_explorable(ServedModel("mine", model))


def test_a_drawing_is_reduced_to_the_training_images_resolution():
    """scikit-learn's digits have 8×8 pixels, so finer lines look unfamiliar; an image of the model's size is kept."""
    served = ServedModel("posecaps-digits", load("posecaps-digits"))
    line = np.zeros((160, 160), np.uint8)
    line[:, 78:82] = 255
    fine = served.preprocess(PredictRequest(image={"png": as_file(line)}).image)[0]
    assert ((fine > 0.01).sum(1) >= 3).all()
    small = np.zeros((16, 16), np.uint8)
    small[:, 7] = 255
    kept = served.preprocess(PredictRequest(image={"png": as_file(small)}).image)[0]
    assert (255 * kept.numpy() == small).all()
    fitted = served.preprocess(PredictRequest(image={"png": as_file(line[40:]), "centre": True}).image)[0]
    assert (fitted.amax(1) > 0.1).all()  # the digits of this data source fill their images
