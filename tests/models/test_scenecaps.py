"""SceneCaps: training views move objects with images; parts become wholes; each object is drawn by itself."""

import pytest
import torch

from torchcaps.data import annotate, draw_shapes
from torchcaps.data.datasets.shapes.render import render
from torchcaps.data.datasets.shapes.wholes import member_table
from torchcaps.errors import UserError
from torchcaps.layers import PickedParts
from torchcaps.models import SceneCaps, create_model
from torchcaps.similarity import Similarity

PARTS = ("rectangle", "triangle")


def small(data, **options):
    torch.manual_seed(0)
    options = {"levels": data.levels, "members": data.members, "symmetry": data.symmetry, "width": 4, **options}
    return create_model(
        "scenecaps_small", image_shape=data.image_shape, num_classes=2, class_names=data.class_names, **options
    )


@pytest.fixture(scope="module")
def data():
    return annotate(draw_shapes(8, 3), PARTS)


def knowing(data, **options):
    """A model that knows how parts stand in boats and houses, and how exactly."""
    model = small(data, **options).eval()
    table = member_table(("boat", "house"))
    layer = model.wholes[0]
    layer.set_layouts(Similarity.of_affine(table.poses))
    with torch.no_grad():
        layer.log_tolerance.copy_(torch.tensor([0.5, 0.5, 0.05, 0.05]).log() / 5)
    return model


def true_parts(data):
    parts = data.objects[data.objects[..., 0] == 0].view(len(data), 2, 8)
    types = torch.nn.functional.one_hot(parts[..., 1].long(), 2).float()
    return PickedParts(parts[..., 2:6], torch.ones(len(data), 2), types, parts[..., 6:], torch.zeros(len(data), 2, 2))


def test_training_views_move_objects_with_the_image():
    scenes = draw_shapes(16, 4, light=(1.0, 1.0))
    data = annotate(scenes, PARTS)
    model = small(data)
    seen, moved = model._turned(data.images.float() / 255, data.objects)
    rows = moved[moved[..., 0] == 0].view(16, 2, 8)
    placed = Similarity(rows[..., 2:6])
    turned = scenes.parts.with_tensors(
        {**scenes.parts.tensors(), "x": placed.x, "y": placed.y, "angle": placed.angle, "scale": placed.scale}
    )
    drawn = render(turned, 1.0, (32, 32))
    assert (drawn - seen).abs().mean() < 0.01
    assert (drawn - data.images.float() / 255).abs().mean() > 0.03  # it did move
    wholes = moved[moved[..., 0] == 1]
    before = data.objects[data.objects[..., 0] == 1]
    # How the first part stands in its whole is the same as before.
    step, known = (
        (Similarity(whole[:, 2:6]).inverse() @ Similarity(part[:, 0, 2:6])).numbers
        for whole, part in ((wholes, rows), (before, data.objects[data.objects[..., 0] == 0].view(16, 2, 8)))
    )
    torch.testing.assert_close(step, known, atol=1e-3, rtol=1e-3)


def test_without_turns_training_images_stay_as_they_are(data):
    model = small(data, turn=0.0).train()
    images = data.images.float() / 255
    torch.manual_seed(1)
    first = model(images, data.objects).losses
    torch.manual_seed(1)
    model.eval().train()
    assert torch.equal(first["pose"], model(images, data.objects).losses["pose"])


def test_true_parts_are_parsed(data):
    model = knowing(data)
    pose, presence, types = true_parts(data)[:3]
    wholes = model.wholes[0](pose, presence, types)
    truth = data.objects[data.objects[..., 0] == 1]
    assert torch.equal(wholes.label[:, 0], truth[:, 1].long())
    torch.testing.assert_close(wholes.pose[:, 0], truth[:, 2:6], atol=1e-3, rtol=1e-3)


def test_the_layout_loss_is_least_for_the_true_layouts(data):
    model = knowing(data)
    images = data.images.float() / 255
    losses = []
    for shift in (0.0, 1.0):
        with torch.no_grad():
            model.wholes[0].layout[..., 0] += shift / 25
            objects = data.objects
            level, label = objects[..., 0].long(), objects[..., 1].long()
            losses.append(model._layout_loss(level, label, objects[..., 2:6], objects[..., 2:6]).mean().item())
    assert losses[0] < losses[1] - 1
    assert set(model(images, data.objects).losses) == {"presence", "pose", "layout", "reconstruction"}


def test_three_levels(data):
    scenes = draw_shapes(2, 1, wholes=("harbour",), size=64)
    harbours = annotate(scenes, PARTS)
    model = SceneCaps(
        (1, 64, 64),
        1,
        class_names=("harbour",),
        levels=harbours.levels,
        members=harbours.members,
        symmetry=harbours.symmetry,
        width=4,
    )
    output = model.eval()(harbours.images.float() / 255)
    assert len(output.levels) == 2
    assert output.types.shape[-1] == 1
    losses = model.train()(harbours.images.float() / 255, harbours.objects).losses
    sum(losses.values()).mean().backward()
    assert all(layer.layout.grad.abs().max() > 0 for layer in model.wholes)


def test_other_sizes_and_single_pixels(data):
    model = small(data).eval()
    for size in ((50, 31), (1, 1), (2, 70)):
        output = model(torch.rand(1, 1, *size))
        assert output.presence.isfinite().all()
        assert output.poses.isfinite().all()


def test_each_object_is_drawn_by_itself(data):
    model = knowing(data)
    output = model._parse(model.encode(data.images.float() / 255), None)
    pose, presence, types = true_parts(data)[:3]
    wholes = model.wholes[0](pose, presence, types)
    parts = true_parts(data)
    output = output._replace(parts=parts, levels=(wholes,), poses=wholes.pose)
    drawn = model.reconstruct(output, (32, 32))
    assert drawn.shape == (8, wholes.pose.shape[1], 1, 32, 32)
    both = model._draw(parts.pose, parts.types.argmax(-1), parts.appearance, (32, 32)).amax(1)
    torch.testing.assert_close(drawn[:, 0], both, atol=2e-3, rtol=0)  # the first whole has both parts
    assert drawn[:, 1].max() < 0.01  # and the second none
    with pytest.raises(UserError, match="has no decoder"):
        small(data, decoder="none").reconstruct(output, (32, 32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": [("a", "b")]}, "the last level must be the classes"),
        ({"members": ()}, "need members for 1 of them"),
        ({"turn": 200.0}, "turn must lie in"),
        ({"decoder": "conv"}, "decoder must be"),
        ({"max_parts": 0}, "max_parts"),
    ],
)
def test_wrong_options_are_named(data, options, message):
    with pytest.raises(UserError, match=message):
        small(data, **options)
