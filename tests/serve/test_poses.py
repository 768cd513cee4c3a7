"""Models that say how classes stand: what the explorer answers is what the model and `torchcaps predict` answer."""

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
from torchcaps.serve.served_models import ServedModel, check_explorable, open_models


def close(answered, expected, atol=2e-6):
    torch.testing.assert_close(torch.tensor(answered).float(), expected.detach().float(), atol=atol, rtol=0)


@pytest.fixture(scope="module")
def digits():
    """The shipped model, and an explorer of it."""
    served_models = open_models("posecaps-digits")
    return served_models[0].model, Explorer(served_models)


@pytest.fixture(scope="module")
def test_digits():
    return load_data("digits", image_size=16).test


def asked(model_name="poses", seed=0, **options):
    return PredictRequest(image=random_pixels(seed), model=model_name, **options)


def test_predict_is_the_models_own_forward(explorer, served_models):
    model, question = served_models[3].model, asked(top=2)
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


def test_none_of_these_is_answered_where_predict_answers_it(digits, test_digits, tmp_path):
    model, explorer = digits
    noise = np.random.default_rng(0).integers(0, 200, (16, 16)).astype(np.uint8)
    noise[[0, -1]] = noise[:, [0, -1]] = 0  # a light border would be taken for paper
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
def test_reject_takes_the_place_of_the_models_threshold(explorer, served_models, name):
    model = next(each.model for each in served_models if each.name == name)
    longest = max(explorer.predict(asked(name)).lengths)
    low, high = (explorer.predict(asked(name, reject=longest + step)) for step in (-1e-4, 1e-4))
    assert low.classes == low.winners
    assert high.classes == []
    assert high.winners == low.winners
    assert low.familiarity is high.familiarity is None
    assert model.none_below is None


def test_an_own_threshold_is_the_default_and_reject_overrules_it(explorer, served_models, monkeypatch):
    monkeypatch.setattr(served_models[3].model, "none_below", 100.0)
    answer = explorer.predict(asked())
    assert (answer.classes, len(answer.winners)) == ([], 1)
    assert answer.familiarity < 100
    assert explorer.predict(asked(reject=0.0)).classes == answer.winners


def test_a_placement_turns_and_moves_the_drawing(explorer, served_models):
    """Ten degrees more of the angle are ten degrees more of the drawing, about its own centre."""
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


def test_the_sweep_of_a_placement_is_sweep_pose(explorer, served_models):
    model, question = served_models[3].model, asked()
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


def test_the_lattice_is_that_of_the_model(explorer, served_models):
    model, question = served_models[3].model, LatticeRequest(image=random_pixels(), model="poses")
    answer = explorer.lattice(question)
    image = torch.tensor(question.image.pixels)[None]
    close(answer.lengths, lattice_lengths(model, image).movedim(-1, 0))
    assert np.shape(answer.lengths) == (10, len(answer.angles), len(answer.scales)) == (10, 7, 3)
    said = explorer.predict(asked())
    assert answer.presence == pytest.approx(said.lengths, abs=2e-6)
    assert answer.placements.angle == pytest.approx(said.placements.angle, abs=1e-4)


def test_the_angle_read_follows_the_angle_applied(digits, test_digits):
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


@pytest.mark.skipif("thickness" not in Placement._fields, reason="no model reads the width of strokes")
def test_the_width_of_strokes_is_told_if_it_is_read(explorer, served_models):
    parts = [torch.full((1, 2), float(index)) for index in range(5)]
    told = placements_of(Placement(*parts, thickness=torch.tensor([[2.5, 3.0]])))[0]
    assert (told.thickness, told.stretch, told.spread) == ([2.5, 3.0], None, [4, 4])
    assert explorer.predict(asked()).placements.thickness is None


def test_models_of_other_kinds_have_no_placements(explorer):
    answer = explorer.predict(asked("capsules"))
    assert (answer.placements, answer.decoded[0].upright) == (None, None)
    moved = explorer.transform(TransformRequest(image=random_pixels(), along="rotate", steps=3))
    assert (moved.placements, moved.curve.placements) == (None, None)


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("lattice", {}, "capsules does not say how a class stands: ask a model whose kind is poses"),
        ("lattice", {"model": "cnn"}, "cnn does not say how a class stands: ask a model whose kind is poses"),
        ("routing", {"model": "poses"}, "poses has no capsules that are routed: ask a model whose kind is capsules"),
        ("predict", {"model": "poses", "iterations": 2}, "iterations: poses does not route; omit it"),
        ("predict", {"model": "poses", "decode": [10]}, "class: the model has 10 classes, numbered from 0"),
        ("predict", {"reject": 1.5}, "reject: Input should be less than or equal to 1"),
    ],
)
def test_what_a_model_cannot_tell_is_said_in_one_sentence(client, path, body, told):
    response = client.post(f"/api/{path}", json={"image": random_pixels(), **body})
    assert (response.status_code, response.json()) == (422, {"detail": told})


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"pose": [0.0] * 15, "model": "poses"}, "pose: a capsule of poses has 16 dimensions, got 15"),
        ({"placement": {"x": 1, "y": 2}}, "placement: capsules does not say how a class stands; omit it"),
        ({"model": "poses", "placement": {"x": 1}}, "placement.y: Field required"),
        (
            {"model": "poses", "placement": {"x": 1, "y": 2, "scale": 0}},
            "placement.scale: Input should be greater than or equal to 0.05",
        ),
        (
            {"model": "poses", "placement": {"x": 1, "y": 2, "stretch": 1.5}},
            "placement.stretch: this model does not read it; omit it",
        ),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_sentence(client, body, told):
    response = client.post("/api/reconstruct", json={"class": 1, "pose": [0.0] * 16, **body})
    assert (response.status_code, response.json()) == (422, {"detail": told})


def test_without_a_decoder_all_but_drawing_works():
    torch.manual_seed(0)
    served = ServedModel("blind", create_model("posecaps_small", width=4, types=4, decoder="none").eval())
    check_explorable(served)
    explorer = Explorer([served])
    assert explorer.models().models[0].decoder is False
    answer = explorer.predict(asked("blind"))
    (decoded,) = answer.decoded
    assert (decoded.reconstruction, decoded.coloured, decoded.upright) == (None, None, None)
    assert (answer.together, answer.missing, answer.error) == (None, None, None)
    assert len(answer.placements.angle) == len(answer.lengths) == 10
    assert np.shape(explorer.lattice(LatticeRequest(image=random_pixels())).lengths) == (10, 7, 3)
    with pytest.raises(UserError, match="^blind has no decoder: it cannot draw what a capsule saw$"):
        explorer.reconstruct(ReconstructRequest(**{"class": 1, "pose": [0.0] * 16}))


def test_damaged_offsets_are_refused():
    model = create_model("posecaps_small", width=4, types=4).eval()
    model.offset.bias.data[0] = torch.nan
    with pytest.raises(UserError, match="answers NaN"):
        check_explorable(ServedModel("mine", model))


def test_a_drawing_is_made_as_coarse_as_the_training_images_were():
    """scikit-learn's digits have 8×8 pixels, and a finer line is unfamiliar; a picture of the model's size is kept."""
    served = ServedModel("posecaps-digits", load("posecaps-digits"))
    line = np.zeros((160, 160), np.uint8)
    line[:, 78:82] = 255
    fine = served.see(PredictRequest(image={"png": as_file(line)}).image)[0]
    assert ((fine > 0.01).sum(1) >= 3).all()
    small = np.zeros((16, 16), np.uint8)
    small[:, 7] = 255
    kept = served.see(PredictRequest(image={"png": as_file(small)}).image)[0]
    assert (255 * kept.numpy() == small).all()
    fitted = served.see(PredictRequest(image={"png": as_file(line[40:]), "centre": True}).image)[0]
    assert (fitted.amax(1) > 0.1).all()  # the digits of this source fill their images
