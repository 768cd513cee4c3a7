"""WholeCaps: true parts of shapes become boats, houses, faces and harbours; layouts are learned from random ones."""

import math

import pytest
import torch
from torch.nn import functional

from torchcaps.data import draw_shapes, frozen_set
from torchcaps.data.datasets.shapes.parts import PART_KINDS, PARTS
from torchcaps.data.datasets.shapes.wholes import member_table
from torchcaps.errors import UserError
from torchcaps.layers import WholeCaps
from torchcaps.layers.whole import TOLERANCE_UNIT, UNIT
from torchcaps.similarity import Similarity

F64 = torch.float64
SYMMETRY = tuple(PART_KINDS[name].symmetry for name in PARTS)


def layer_of(names, **options):
    """A layer that knows the layouts of the tables."""
    table = member_table(names)
    members = [row[here].tolist() for row, here in zip(table.label, table.present)]
    symmetry = [PART_KINDS[name].symmetry if name in PART_KINDS else 1 for name in table.names]
    options = {"tolerance": (0.5, 3.0, 0.05), **options}
    layer = WholeCaps(len(table.names), len(names), members, symmetry=symmetry, **options).double()
    layer.set_layouts(Similarity.of_affine(table.poses))
    return layer


def given(objects):
    """Poses, presence and types of objects, in float64."""
    x, y, angle, scale = (each.to(F64) for each in (objects.x, objects.y, objects.angle, objects.scale))
    pose = Similarity.of(x=x, y=y, angle=angle, scale=scale).numbers
    return pose, objects.present.to(F64), functional.one_hot(objects.label, len(objects.names)).to(F64)


def apart(found, truth):
    """(B, K, N) pixels and degrees between wholes and the true ones; infinite for other classes."""
    pose, true = Similarity(found.pose)[:, :, None], Similarity(given(truth)[0])[:, None]
    other = (found.label[:, :, None] != truth.label[:, None]) | ~truth.present[:, None]
    degrees = ((pose.angle - true.angle + 180) % 360 - 180).abs()
    return torch.hypot(pose.x - true.x, pose.y - true.y).masked_fill(other, math.inf), degrees


def f1(found, truth, pixels=1.5, degrees=5.0):
    """Of wholes with a presence above 1/2; each true one is found once."""
    far, turned = apart(found, truth)
    matches = (far <= pixels) & (turned <= degrees) & (found.presence > 0.5)[..., None]
    right = 0
    for image in matches:
        taken = set()
        for row in image:
            free = [n for n in row.nonzero()[:, 0].tolist() if n not in taken]
            taken |= set(free[:1])
        right += len(taken)
    return 2 * right / int((found.presence > 0.5).sum() + truth.present.sum())


def auroc(present, absent):
    return ((present[:, None] > absent).double() + 0.5 * (present[:, None] == absent).double()).mean().item()


@pytest.fixture(scope="module")
def boats_and_houses():
    return layer_of(("boat", "house"))


@pytest.mark.parametrize("name", ["upright", "turned"])
def test_boats_and_houses_are_found_at_all_orientations(boats_and_houses, name):
    scenes = frozen_set(name)
    found = boats_and_houses(*given(scenes.parts))
    assert torch.equal(found.label[:, 0], scenes.wholes.label[:, 0])
    assert (found.presence[:, 0] > 0.99).all()
    assert (found.presence[:, 1] < 0.01).all()
    far, turned = apart(found, scenes.wholes)
    assert far[:, 0, 0].max() < 1e-4
    assert turned[:, 0, 0].max() < 1e-3


def test_scrambled_parts_are_no_wholes(boats_and_houses):
    turned, scrambled = (boats_and_houses(*given(frozen_set(name).parts)) for name in ("turned", "scrambled"))
    assert auroc(turned.log_odds[:, 0], scrambled.log_odds[:, 0]) >= 0.98
    assert (scrambled.presence < 0.5).all()


def test_crowded_scenes_are_parsed(boats_and_houses):
    scenes = frozen_set("crowded")
    once, thrice = (f1(boats_and_houses(*given(scenes.parts), iterations=each), scenes.wholes) for each in (1, 3))
    assert thrice == 1
    assert thrice >= once > 0.99
    scenes = frozen_set("scenes")
    assert f1(boats_and_houses(*given(scenes.parts)), scenes.wholes) == 1


@pytest.mark.parametrize("distance", [12, 6, 3])
def test_identical_neighbours_are_two(boats_and_houses, distance):
    scenes = draw_shapes(50, 7, size=64, turn=180.0, shift=None, twin=distance, dtype=F64)
    assert f1(boats_and_houses(*given(scenes.parts)), scenes.wholes) == 1


def test_the_tree_of_a_harbour_is_recovered():
    scenes = frozen_set("harbours")
    strokes, houses, harbours = scenes.levels
    lower, upper = layer_of(("house", "boat")), layer_of(("harbour",))
    middle = lower(*given(strokes))
    top = upper(*middle[:3])
    assert f1(middle, houses) == f1(top, harbours) == 1
    assert (top.presence[:, 0] > 0.99).all()
    assert (top.found[:, 0] > 0.99).all()
    # From each stroke to its house, and on to the harbour: the owners of the ground truth.
    owner = middle.couplings.argmax(-1)
    near, _ = apart(middle, houses)
    assert torch.equal(near.argmin(-1).gather(1, owner), strokes.owner)
    assert (top.couplings[..., 0].gather(1, owner) > 0.99).all()


def test_faces_are_found_and_picassos_are_not():
    def parsed(name):
        scenes = frozen_set(name)
        middle = layer_of(scenes.levels[1].names)(*given(scenes.parts))
        return layer_of(scenes.wholes.names)(*middle[:3]), scenes.wholes

    (faces, truth), (picassos, _) = parsed("faces-turned"), parsed("picassos")
    assert f1(faces, truth) == 1
    assert auroc(faces.log_odds[:, 0], picassos.log_odds[:, 0]) >= 0.98
    assert (picassos.presence < 0.5).all()


@pytest.mark.parametrize("members", [[[0, 1], [0, 1]], 2], ids=["known-types", "learned-types"])
def test_layouts_are_learned_from_classes_and_poses(members):
    scenes = draw_shapes(256, 3, dtype=F64)
    parts, (whole, _, _), label = given(scenes.parts), given(scenes.wholes), scenes.wholes.label
    layer = WholeCaps(5, 2, members, symmetry=SYMMETRY, tolerance=(8.0, 90.0, 0.5)).double()
    rates = {"layout": 0.1 / UNIT, "type_logits": 0.1, "log_tolerance": 0.02 / TOLERANCE_UNIT}
    groups = [{"params": [each], "lr": rates.get(name, 0.02)} for name, each in layer.named_parameters()]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    for _ in range(300):
        optimizer.zero_grad()
        layer.log_likelihood(*parts, whole, label).sum(-1).mean().neg().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        learned = layer.layouts(whole)
        table = member_table(("boat", "house"))
        kind = learned.types.argmax(-1)
        assert kind.sort().values.tolist() == [[0, 1], [0, 1]]
        known = Similarity.of_affine(table.poses).numbers.take_along_dim(kind[..., None], 1)
        step = (Similarity(known).inverse() @ learned.pose).log()
        turns = 2 * math.pi / torch.tensor(SYMMETRY)[kind]
        step[..., 2] = (step[..., 2] + turns / 2) % turns - turns / 2
        assert step.abs().max() < 0.01
        turned = frozen_set("turned")
        found = layer(*given(turned.parts))
    assert torch.equal(found.label[:, 0], turned.wholes.label[:, 0])
    assert (found.presence[:, 0] > 0.9).all()


def test_every_parameter_gets_a_gradient_from_what_is_found():
    layer = WholeCaps(5, 2, 2, symmetry=SYMMETRY, tolerance=(3.0, 30.0, 0.3)).double()
    with torch.no_grad():
        layer.set_layouts(Similarity.of_affine(member_table(("boat", "house")).poses))
    found = layer(*given(draw_shapes(4, 1, number=(2, 2), size=48, shift=None, dtype=F64).parts))
    (found.presence.square().sum() + found.pose.square().sum()).backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_votes_for_the_true_whole_agree():
    scenes = draw_shapes(3, 1, dtype=F64)
    votes, weights = layer_of(("boat", "house")).votes(*given(scenes.parts))
    assert votes.shape == (3, 2, 2, 2, 2, 4)
    assert weights.sum().item() == 3 * 2 * (2 + 1)  # two classes; the rectangle votes twice, the triangle once
    true = given(scenes.wholes)[0]
    for b, label in enumerate(scenes.wholes.label[:, 0]):
        near = (votes[b, :, label] - true[b, 0]).abs().amax(-1) < 1e-6
        assert (near & (weights[b, :, label] == 1)).sum().item() == 2  # one of each part


def test_a_saved_layer_answers_the_same(tmp_path):
    layer = WholeCaps(5, 2, [[0, 1], [0]], symmetry=SYMMETRY)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other = WholeCaps(5, 2, [[0, 1], [1]], symmetry=SYMMETRY)
    other.load_state_dict(torch.load(tmp_path / "layer.pt"))
    parts = given(draw_shapes(2, 1).parts)
    assert torch.equal(layer(*parts).log_odds, other(*parts).log_odds)
    assert "5 types → 2×2 members" in repr(layer)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((5, 2, [[0, 1]]), {}, "at least one member for each of the 2 classes"),
        ((5, 2, 0), {}, "at least one member"),
        ((5, 1, [[0, 5]]), {}, "types of members are 0 to 4"),
        ((5, 1, 2), {"symmetry": (1, 1)}, "symmetry for each of the 5 types"),
        ((5, 1, 2), {"tolerance": (1.0, 0.0, 0.1)}, "tolerance is"),
        ((5, 1, 2), {"missing": 0.0}, "missing must lie between 0 and 1"),
    ],
)
def test_wrong_arguments_are_named(arguments, options, message):
    with pytest.raises(UserError, match=message):
        WholeCaps(*arguments, **options)
