"""Every answer is what the network itself, or the reference of its routing, says."""

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


def close(answered, expected, atol=2e-6):
    torch.testing.assert_close(torch.tensor(answered).float(), expected.detach().float(), atol=atol, rtol=0)


def same_picture(data_url, expected_CHW):
    """To a level of grey: what lies between two of them is rounded."""
    levels = (expected_CHW.detach().clamp(0, 1) * 255).permute(1, 2, 0).squeeze(-1).numpy()
    assert np.abs(pixels_of(data_url) - levels).max() <= 0.5 + 1e-3


def difference(drawn, redrawn):
    """A light red where only drawn, a light blue where only reconstructed."""
    red, blue = np.array([0xFF, 0x6B, 0x6B]), np.array([0x4D, 0xAB, 0xF7])
    lacking, made_up = np.maximum(0, drawn - redrawn), np.maximum(0, redrawn - drawn)
    return (lacking[..., None] * red + made_up[..., None] * blue) / 255


@pytest.mark.parametrize(("name", "side", "index"), [("capsules", 28, 0), ("pairs", 36, 1)])
def test_predict_is_the_models_own_forward(explorer, served_models, name, side, index):
    image, model = random_pixels(side=side), served_models[index].model
    answer = explorer.predict(PredictRequest(image=image, model=name, top=2))
    output = model(tensor(image))
    order = output.lengths[0].argsort(descending=True)[:2]
    close(answer.lengths, output.lengths[0])
    assert answer.winners == order.tolist()
    assert [each.class_ for each in answer.decoded] == order.tolist()
    both = model(tensor(image), each=order[None]).reconstruction[0]
    for each, picture in zip(answer.decoded, both):
        close(each.pose, output.poses[0, each.class_])
        close(each.length, output.lengths[0, each.class_])
        same_picture(each.reconstruction, picture)
    close(answer.error, (tensor(image)[0] - both.sum(0).clamp(max=1)).square().mean())
    same_picture(answer.seen, tensor(image)[0])


def test_colours_add_up_and_show_what_is_missing(explorer):
    image = random_pixels()
    answer = explorer.predict(PredictRequest(image=image, decode=[2, 7]))
    first, second = (pixels_of(each.reconstruction) for each in answer.decoded)
    orange, blue = np.array([0xE8, 0x59, 0x0C]), np.array([0x1C, 0x7E, 0xD6])
    expected = np.minimum(255, (first[..., None] * orange + second[..., None] * blue) / 255)
    assert np.abs(pixels_of(answer.together) - expected).max() <= 2
    assert np.abs(pixels_of(answer.decoded[1].coloured) - second[..., None] * blue / 255).max() <= 1
    drawn, redrawn = pixels_of(answer.seen), np.minimum(255, first + second)
    assert np.abs(pixels_of(answer.missing) - difference(drawn, redrawn)).max() <= 2
    assert (drawn > redrawn + 10).any()
    assert (redrawn > drawn + 10).any()


def test_predict_with_other_classes_and_iterations(explorer, served_models):
    image, model = random_pixels(), served_models[0].model
    answer = explorer.predict(PredictRequest(image=image, decode=[9, 0], iterations=1))
    parents = model.classes(model.children_of(tensor(image)), iterations=1)
    assert [each.class_ for each in answer.decoded] == [9, 0]
    close(answer.lengths, parents.activation[0])
    assert answer.lengths != explorer.predict(PredictRequest(image=image)).lengths


def test_a_network_without_capsules_has_probabilities(explorer, served_models):
    image = random_pixels()
    answer = explorer.predict(PredictRequest(image=image, model="cnn", top=3))
    close(answer.lengths, served_models[2].model(tensor(image)).logits[0].softmax(0))
    assert len(answer.winners) == 3
    assert (answer.decoded, answer.together, answer.missing, answer.error) == ([], None, None, None)


def test_reconstruct_is_the_decoder(explorer, served_models):
    pose = torch.linspace(-1, 1, 16)
    answer = explorer.reconstruct(
        ReconstructRequest(**{"class": 4, "pose": pose.tolist(), "sweep": True, "compare": random_pixels()})
    )
    masked = torch.zeros(1, 10, 16)
    masked[0, 4] = pose
    same_picture(answer.reconstruction, served_models[0].model.decoder(masked)[0])
    assert answer.sweep.values == list(SWEEP)
    strip = pixels_of(answer.sweep.picture).reshape(16, 28, 11, 28)
    for dimension, step in ((0, 0), (3, 10), (15, 7)):
        moved = masked.clone()
        moved[0, 4, dimension] += SWEEP[step]
        expected = served_models[0].model.decoder(moved)[0, 0] * 255
        assert np.abs(strip[dimension, :, step] - expected.detach().numpy()).max() <= 0.501
    assert (strip[:, :, 5] == pixels_of(answer.reconstruction)).all()
    drawn = np.array(random_pixels()["pixels"]) * 255
    assert np.abs(pixels_of(answer.difference) - difference(drawn, pixels_of(answer.reconstruction))).max() <= 2


@pytest.mark.parametrize(("name", "side", "index"), [("capsules", 28, 0), ("pairs", 36, 1)])
@torch.no_grad()
def test_routing_is_the_references_at_each_iteration(explorer, served_models, name, side, index):
    image, model = random_pixels(side=side), served_models[index].model
    part = {"type": 2, "row": 1, "column": 3}
    answer = explorer.routing(RoutingRequest(image=image, model=name, iterations=4, part=part))
    children = model.children_of(tensor(image))
    u, weight = children.pose.double(), model.classes.weight.double()
    bias = None if model.classes.bias is None else model.classes.bias.double()
    types, rows, columns = 4, *model.grid
    part = (2 * rows + 1) * columns + 3
    votes = torch.einsum("ijdk,ik->ijd", weight, u[0])
    lengths = u[0].norm(dim=-1)
    grid = lengths.view(types, rows, columns)
    assert len(answer.steps) == len(answer.part.steps) == 4
    close(answer.lengths_of_parts, grid)
    for iteration, (step, of_part) in enumerate(zip(answer.steps, answer.part.steps), start=1):
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
    assert answer.steps[0].entropy == 1
    assert answer.steps[3].entropy < answer.steps[1].entropy < 1


def test_transform_at_identity_is_predict(explorer):
    image = random_pixels()
    answer = explorer.transform(TransformRequest(image=image))
    assert answer.lengths == explorer.predict(PredictRequest(image=image)).lengths
    assert answer.comparison.name == "cnn"
    assert answer.comparison.probabilities == explorer.predict(PredictRequest(image=image, model="cnn")).lengths
    assert answer.curve is None


def test_transform_moves_as_it_says(explorer):
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
    """So neither the batch it goes through in, nor its neighbours in it, change an answer."""
    image = random_pixels()
    curve = explorer.transform(TransformRequest(image=image, along="rotate", steps=11, shift_x=2.0)).curve
    assert curve.values == pytest.approx(np.linspace(-180, 180, 11).tolist())
    for value, lengths, rivals in zip(curve.values, curve.lengths, curve.comparison):
        single = explorer.transform(TransformRequest(image=image, rotate=value, shift_x=2.0))
        assert lengths == pytest.approx(single.lengths, abs=3e-6)
        assert rivals == pytest.approx(single.comparison.probabilities, abs=3e-6)
    assert len(curve.pictures) == len(curve.pictured) == 7
    third = explorer.transform(TransformRequest(image=image, rotate=curve.pictured[2], shift_x=2.0))
    assert pixels_of(curve.pictures[2]).tolist() == pixels_of(third.seen).tolist()
    scales = explorer.transform(TransformRequest(image=image, along="scale", steps=5)).curve
    assert scales.values == [0.25, 0.5, 1, 2, 4]


def test_models_of_another_size_are_not_compared(explorer):
    answer = explorer.transform(TransformRequest(image=random_pixels(side=36), model="pairs", along="shear", steps=3))
    assert answer.comparison is None
    assert answer.curve.comparison is None


def test_questions_asked_at_once_are_answered_as_if_alone(explorer):
    questions = [PredictRequest(image=random_pixels(seed), top=1 + seed % 3) for seed in range(12)]
    alone = [explorer.predict(question) for question in questions]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(explorer.predict, questions * 2)) == alone * 2


@pytest.mark.parametrize(
    ("ask", "question", "told"),
    [
        ("predict", PredictRequest(image=random_pixels(), decode=[10]), "10 classes"),
        ("predict", PredictRequest(image=random_pixels(side=36)), "28 rows of 28"),
        ("predict", PredictRequest(image=random_pixels(), model="cnm"), "did you mean 'cnn'"),
        ("predict", PredictRequest(image=random_pixels(), model="cnn", decode=[1]), "no capsules"),
        ("reconstruct", ReconstructRequest(**{"class": 1, "pose": [0.0] * 15}), "16 dimensions, got 15"),
        ("reconstruct", ReconstructRequest(**{"class": 10, "pose": [0.0] * 16}), "10 classes"),
        ("routing", RoutingRequest(image=random_pixels(), model="cnn"), "no capsules"),
        ("routing", RoutingRequest(image=random_pixels(), part={"type": 4, "row": 0, "column": 0}), "4 types"),
    ],
)
def test_what_does_not_fit_the_model_is_told(explorer, ask, question, told):
    with pytest.raises(UserError, match=told):
        getattr(explorer, ask)(question)
