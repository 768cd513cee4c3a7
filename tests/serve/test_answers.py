"""Responses equal what the model itself, or the reference implementation of its routing, computes."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from bodies import pixels_of, random_pixels

from torchcaps.errors import UserError
from torchcaps.explain import SWEEP
from torchcaps.ops.dynamic import reference
from torchcaps.serve.requests import PredictRequest, ReconstructRequest, RoutingRequest, TransformRequest


def tensor(image):
    return torch.tensor(image["pixels"])[None, None]


def close(returned, expected, atol=2e-6):
    torch.testing.assert_close(torch.tensor(returned).float(), expected.detach().float(), atol=atol, rtol=0)


def same_picture(data_url, expected_CHW):
    """Equal up to rounding to a grey level."""
    levels = (expected_CHW.detach().clamp(0, 1) * 255).permute(1, 2, 0).squeeze(-1).numpy()
    assert np.abs(pixels_of(data_url) - levels).max() <= 0.5 + 1e-3


def difference(drawn, redrawn):
    """Light red where only the drawing has ink, light blue where only the reconstruction has."""
    red, blue = np.array([0xFF, 0x6B, 0x6B]), np.array([0x4D, 0xAB, 0xF7])
    lacking, made_up = np.maximum(0, drawn - redrawn), np.maximum(0, redrawn - drawn)
    return (lacking[..., None] * red + made_up[..., None] * blue) / 255


@pytest.mark.parametrize(("name", "side", "index"), [("capsules", 28, 0), ("pairs", 36, 1)])
def test_predict_is_the_models_own_forward(explorer, served_models, name, side, index):
    image, model = random_pixels(side=side), served_models[index].model
    response = explorer.predict(PredictRequest(image=image, model=name, top=2))
    output = model(tensor(image))
    order = output.lengths[0].argsort(descending=True)[:2]
    close(response.lengths, output.lengths[0])
    assert response.winners == order.tolist()
    assert [each.class_ for each in response.decoded] == order.tolist()
    both = model(tensor(image), each=order[None]).reconstruction[0]
    for each, picture in zip(response.decoded, both):
        close(each.pose, output.poses[0, each.class_])
        close(each.length, output.lengths[0, each.class_])
        same_picture(each.reconstruction, picture)
    close(response.error, (tensor(image)[0] - both.sum(0).clamp(max=1)).square().mean())
    same_picture(response.seen, tensor(image)[0])


def test_colours_add_up_and_show_what_is_missing(explorer):
    image = random_pixels()
    response = explorer.predict(PredictRequest(image=image, decode=[2, 7]))
    first, second = (pixels_of(each.reconstruction) for each in response.decoded)
    orange, blue = np.array([0xE8, 0x59, 0x0C]), np.array([0x1C, 0x7E, 0xD6])
    expected = np.minimum(255, (first[..., None] * orange + second[..., None] * blue) / 255)
    assert np.abs(pixels_of(response.together) - expected).max() <= 2
    assert np.abs(pixels_of(response.decoded[1].coloured) - second[..., None] * blue / 255).max() <= 1
    drawn, redrawn = pixels_of(response.seen), np.minimum(255, first + second)
    assert np.abs(pixels_of(response.missing) - difference(drawn, redrawn)).max() <= 2
    assert (drawn > redrawn + 10).any()
    assert (redrawn > drawn + 10).any()


def test_predict_with_other_classes_and_iterations(explorer, served_models):
    image, model = random_pixels(), served_models[0].model
    response = explorer.predict(PredictRequest(image=image, decode=[9, 0], iterations=1))
    parents = model.classes(model.children_of(tensor(image)), iterations=1)
    assert [each.class_ for each in response.decoded] == [9, 0]
    close(response.lengths, parents.activation[0])
    assert response.lengths != explorer.predict(PredictRequest(image=image)).lengths


def test_a_model_without_capsules_returns_probabilities(explorer, served_models):
    image = random_pixels()
    response = explorer.predict(PredictRequest(image=image, model="cnn", top=3))
    close(response.lengths, served_models[2].model(tensor(image)).logits[0].softmax(0))
    assert len(response.winners) == 3
    assert (response.decoded, response.together, response.missing, response.error) == ([], None, None, None)


def test_reconstruct_is_the_decoder(explorer, served_models):
    pose = torch.linspace(-1, 1, 16)
    response = explorer.reconstruct(
        ReconstructRequest(**{"class": 4, "pose": pose.tolist(), "sweep": True, "compare": random_pixels()})
    )
    masked = torch.zeros(1, 10, 16)
    masked[0, 4] = pose
    same_picture(response.reconstruction, served_models[0].model.decoder(masked)[0])
    assert response.sweep.values == list(SWEEP)
    strip = pixels_of(response.sweep.picture).reshape(16, 28, 11, 28)
    for dimension, step in ((0, 0), (3, 10), (15, 7)):
        moved = masked.clone()
        moved[0, 4, dimension] += SWEEP[step]
        expected = served_models[0].model.decoder(moved)[0, 0] * 255
        assert np.abs(strip[dimension, :, step] - expected.detach().numpy()).max() <= 0.501
    assert (strip[:, :, 5] == pixels_of(response.reconstruction)).all()
    drawn = np.array(random_pixels()["pixels"]) * 255
    assert np.abs(pixels_of(response.difference) - difference(drawn, pixels_of(response.reconstruction))).max() <= 2


@pytest.mark.parametrize(("name", "side", "index"), [("capsules", 28, 0), ("pairs", 36, 1)])
@torch.no_grad()
def test_routing_equals_the_reference_at_each_iteration(explorer, served_models, name, side, index):
    image, model = random_pixels(side=side), served_models[index].model
    part = {"type": 2, "row": 1, "column": 3}
    response = explorer.routing(RoutingRequest(image=image, model=name, iterations=4, part=part))
    children = model.children_of(tensor(image))
    u, weight = children.pose.double(), model.classes.weight.double()
    bias = None if model.classes.bias is None else model.classes.bias.double()
    types, rows, columns = 4, *model.grid
    part = (2 * rows + 1) * columns + 3
    votes = torch.einsum("ijdk,ik->ijd", weight, u[0])
    lengths = u[0].norm(dim=-1)
    grid = lengths.view(types, rows, columns)
    assert len(response.steps) == len(response.part.steps) == 4
    close(response.lengths_of_parts, grid)
    for iteration, (step, of_part) in enumerate(zip(response.steps, response.part.steps), start=1):
        poses, couplings = reference.dynamic_routing(u, weight, iteration, bias, False)
        towards = poses[0] / poses[0].norm(dim=-1, keepdim=True)
        along = (votes * towards).sum(-1)
        speaks = (couplings[0] * along).view(types, rows, columns, 10)
        close(step.lengths, poses[0].norm(dim=-1), atol=1e-5)
        close(step.support, speaks.sum(0).permute(2, 0, 1), atol=1e-5)
        close(step.types, speaks.sum((1, 2)).T, atol=1e-5)
        shares = couplings[0].view(types, rows, columns, 10) * grid[..., None]
        close(step.coupling, (shares.sum(0) / grid.sum(0)[..., None]).permute(2, 0, 1), atol=1e-5)
        nats = -(couplings[0] * couplings[0].log()).sum(-1)
        assert step.entropy == pytest.approx(float((nats * lengths).sum() / lengths.sum()) / math.log(10), abs=1e-5)
        close(of_part.couplings, couplings[0, part], atol=1e-5)
        close(of_part.votes, votes[part].norm(dim=-1), atol=1e-5)
        close(of_part.agreement, along[part] / votes[part].norm(dim=-1), atol=1e-5)
        assert step.decided == pytest.approx(float((couplings[0].amax(-1) > 0.5).double().mean()), abs=1e-5)
        for i, voting in enumerate(response.votes.parts):
            of_votes = (voting.type * rows + voting.row) * columns + voting.column
            close(response.votes.couplings[iteration - 1][i], couplings[0, of_votes, response.votes.classes], atol=1e-5)
    assert response.steps[0].entropy == 1
    assert response.steps[3].entropy < response.steps[1].entropy < 1
    finding, lengths = response.finding, torch.tensor([step.lengths for step in response.steps[:3]])
    assert finding.winners == lengths.argmax(-1).tolist()  # of the model's own three iterations
    assert finding.undecided == pytest.approx(response.steps[2].entropy, abs=1e-5)
    assert finding.decided == round(response.steps[2].decided * finding.parts)
    assert finding.starts_uniform
    assert finding.sentence.count(f"{finding.decided:,} of {finding.parts:,} parts") == 1


def test_transform_at_identity_is_predict(explorer):
    image = random_pixels()
    response = explorer.transform(TransformRequest(image=image))
    assert response.lengths == explorer.predict(PredictRequest(image=image)).lengths
    assert response.comparison.name == "cnn"
    assert response.comparison.probabilities == explorer.predict(PredictRequest(image=image, model="cnn")).lengths
    assert response.curve is None


def test_transform_moves_as_requested(explorer):
    image = random_pixels()
    seen = pixels_of(explorer.transform(TransformRequest(image=image)).seen)

    def moved(**moves):
        return pixels_of(explorer.transform(TransformRequest(image=image, **moves)).seen)

    assert np.abs(moved(rotate=90.0) - np.rot90(seen)).max() <= 1  # counter-clockwise
    right, down = moved(shift_x=3.0), moved(shift_y=5.0)
    assert np.abs(right[:, 3:] - seen[:, :-3]).max() <= 1
    assert not right[:, :3].any()
    assert np.abs(down[5:] - seen[:-5]).max() <= 1
    # Scaled first and moved last: the middle, twice as large, four pixels to the right.
    assert moved(scale=0.5, shift_x=4.0)[:, :11].max() == 0
    assert np.abs(moved(rotate=-90.0, shift_y=2.0)[2:] - np.rot90(seen, -1)[:-2]).max() <= 1
    slanted = moved(shear=1.0)  # row 4 is 9.5 pixels above the centre
    assert np.abs(slanted[4, 10:] - (seen[4, :18] + seen[4, 1:19]) / 2).max() <= 1.5


def test_a_curve_is_one_transform_after_another(explorer):
    """The other images in a batch do not change a prediction."""
    image = random_pixels()
    curve = explorer.transform(TransformRequest(image=image, along="rotate", steps=11, shift_x=2.0)).curve
    assert curve.values == pytest.approx(np.linspace(-180, 180, 11).tolist())
    for value, lengths, probabilities in zip(curve.values, curve.lengths, curve.comparison):
        single = explorer.transform(TransformRequest(image=image, rotate=value, shift_x=2.0))
        assert lengths == pytest.approx(single.lengths, abs=3e-6)
        assert probabilities == pytest.approx(single.comparison.probabilities, abs=3e-6)
    assert len(curve.pictures) == len(curve.pictured) == 7
    third = explorer.transform(TransformRequest(image=image, rotate=curve.pictured[2], shift_x=2.0))
    assert pixels_of(curve.pictures[2]).tolist() == pixels_of(third.seen).tolist()
    scales = explorer.transform(TransformRequest(image=image, along="scale", steps=5)).curve
    assert scales.values == [0.25, 0.5, 1, 2, 4]


def test_models_of_another_size_are_not_compared(explorer):
    response = explorer.transform(TransformRequest(image=random_pixels(side=36), model="pairs", along="shear", steps=3))
    assert response.comparison is None
    assert response.curve.comparison is None


def test_concurrent_requests_give_the_same_responses(explorer):
    bodies = [PredictRequest(image=random_pixels(seed), top=1 + seed % 3) for seed in range(12)]
    alone = [explorer.predict(body) for body in bodies]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(explorer.predict, bodies * 2)) == alone * 2


@pytest.mark.parametrize(
    ("method", "body", "message"),
    [
        ("predict", PredictRequest(image=random_pixels(), decode=[10]), "10 classes"),
        ("predict", PredictRequest(image=random_pixels(side=36)), "28 rows of 28"),
        ("predict", PredictRequest(image=random_pixels(), model="cnm"), "did you mean 'cnn'"),
        ("predict", PredictRequest(image=random_pixels(), model="cnn", decode=[1]), "no routed capsules"),
        ("reconstruct", ReconstructRequest(**{"class": 1, "pose": [0.0] * 15}), "16 dimensions, got 15"),
        ("reconstruct", ReconstructRequest(**{"class": 10, "pose": [0.0] * 16}), "10 classes"),
        ("routing", RoutingRequest(image=random_pixels(), model="cnn"), "no routed capsules"),
        ("routing", RoutingRequest(image=random_pixels(), part={"type": 4, "row": 0, "column": 0}), "4 types"),
    ],
)
def test_requests_that_do_not_fit_the_model_are_rejected(explorer, method, body, message):
    with pytest.raises(UserError, match=message):
        getattr(explorer, method)(body)
