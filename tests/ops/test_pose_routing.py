"""Routing by poses: worked by hand, unchanged by moving the scene, and what explains a part takes it from others."""

import math

import pytest
import torch
from torch.nn import functional

from torchcaps.ops import Wholes, pose_routing
from torchcaps.similarity import Similarity

F64 = torch.float64
SYMMETRY = (2, 1, 0)  # a rectangle, a triangle and a disc


def table(members, tolerance=(0.5, 0.5, 0.05, 0.05), missing=-7.0):
    """Wholes as lists of (type, x, y, degrees, scale), in float64."""
    most = max(map(len, members))
    rows = torch.tensor([row + [row[0]] * (most - len(row)) for row in members], dtype=F64)
    present = torch.tensor([[m < len(row) for m in range(most)] for row in members])
    kind, x, y, angle, scale = rows.unbind(-1)
    types = functional.one_hot(kind.long(), 3) * present[..., None]
    layouts = Similarity.of(x=x, y=y, angle=angle, scale=scale).numbers
    sizes = kind.shape
    return {
        "layouts": layouts,
        "tolerance": torch.tensor(tolerance, dtype=F64).repeat(*sizes, 1),
        "member_types": types.to(F64),
        "prior": torch.zeros(sizes[0], dtype=F64),
        "missing": torch.full(sizes, missing, dtype=F64),
    }


def parts(rows):
    """Parts of one image, from a list of (type, x, y, degrees, scale)."""
    kind, x, y, angle, scale = torch.tensor(rows, dtype=F64).unbind(-1)
    pose = Similarity.of(x=x, y=y, angle=angle, scale=scale).numbers
    return pose[None], torch.ones(1, len(rows), dtype=F64), functional.one_hot(kind.long(), 3).to(F64)[None]


BOAT = [(0, 0, 2, 0, 1), (1, 1, -4, 135, 1)]
HOUSE = [(0, 0, 3, 0, 1), (1, 0, -3, 0, 1)]
TABLE = table([BOAT, HOUSE])


def scene(B=2, seed=0, noise=0.3):
    """Two boats and a house with parts that are a little off, and a part of no whole: (B, 7)."""
    g = torch.Generator().manual_seed(seed)
    draw = torch.rand(B, 3, 4, generator=g, dtype=F64)
    whole = Similarity.of(x=60 * draw[..., 0], y=60 * draw[..., 1], angle=360 * draw[..., 2], scale=0.7 + draw[..., 3])
    label = torch.tensor([0, 0, 1])
    poses = (whole[..., None] @ Similarity(TABLE["layouts"])[label]).numbers.flatten(1, 2)
    alone = Similarity.of(x=30 * draw[:, :1, 3], y=30.0, angle=70.0).numbers
    poses = Similarity(torch.cat([poses, alone], dim=1))
    off = torch.tensor([0.5, 0.5, 0.05, 0.05], dtype=F64) * torch.randn(B, 7, 4, generator=g, dtype=F64)
    types = functional.one_hot(torch.tensor([0, 1, 0, 1, 0, 1, 0]), 3).to(F64).expand(B, -1, -1)
    return (poses @ Similarity.exp(noise * off)).numbers, torch.ones(B, 7, dtype=F64), types, whole


def routed(pose, presence, types, known=TABLE, **options) -> Wholes:
    return pose_routing(pose, presence, types, **known, symmetry=SYMMETRY, **options)


def assert_same(found, expected, atol=1e-9):
    for name in Wholes._fields:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=atol, rtol=0)


def test_two_parts_and_one_whole_by_hand():
    """The triangle is 0.6 pixels too far right, so the votes are (10, 10) and (10.6, 10)."""
    known = table([[(0, -2, 0, 0, 1), (1, 2, 0, 0, 1)]], tolerance=(1.0, 1.0, 0.1, 0.1))
    pose, presence, types = parts([(0, 8, 10, 0, 1), (1, 12.6, 10, 0, 1)])
    whole = pose_routing(pose, presence, types, **known, symmetry=(1, 1, 1), iterations=1)
    exact = -2 * math.log(0.1) - 2 * math.log(2 * math.pi) + 8  # of a part where it should be, against clutter e⁻⁸
    log_odds = -exact + 2 * (exact - 0.5 * 0.3**2)  # both votes are 0.3 pixels from their mean
    assert whole.log_odds[0, 0].item() == pytest.approx(log_odds, abs=1e-4)
    assert whole.presence[0, 0].item() == pytest.approx(1 / (1 + math.exp(-log_odds)), abs=1e-6)
    torch.testing.assert_close(whole.pose[0, 0], torch.tensor([10.3, 10, 1, 0], dtype=F64), atol=1e-6, rtol=0)
    torch.testing.assert_close(whole.found[0, 0], torch.ones(2, dtype=F64), atol=1e-6, rtol=0)
    assert whole.presence[0, 1] == 0  # the second vote was for the same whole
    torch.testing.assert_close(whole.couplings[0, :, 0], whole.presence[:, 0].expand(2), atol=1e-6, rtol=0)
    one = pose_routing(pose[:, :1], presence[:, :1], types[:, :1], **known, symmetry=(1, 1, 1))
    # One part says where the whole would be, and nothing about its being there; the other is missing.
    assert one.log_odds.max().item() == pytest.approx(-7, abs=1e-4)


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize(("angle", "scale"), [(0.0, 1.0), (37.0, 0.4), (-120.0, 3.0), (180.0, 1.0)])
def test_moving_turning_and_scaling_the_scene_does_so_with_all_poses_and_nothing_else(iterations, angle, scale):
    pose, presence, types, _ = scene()
    change = Similarity.of(x=torch.tensor(40.0, dtype=F64), y=-7.0, angle=angle, scale=scale)
    before = routed(pose, presence, types, iterations=iterations)
    after = routed((change @ Similarity(pose)).numbers, presence, types, iterations=iterations)
    assert_same(after, before._replace(pose=(change @ Similarity(before.pose)).numbers))


def test_every_whole_is_found_where_it_is():
    pose, presence, types, whole = scene(noise=0)
    found = routed(pose, presence, types)
    assert (found.presence[:, :3] > 0.99).all()
    assert (found.presence[:, 3:] < 0.01).all()
    torch.testing.assert_close(found.couplings.sum(-1), torch.ones_like(presence))
    for b in range(2):
        nearest = (found.pose[b, :3, None] - whole.numbers[b]).abs().amax(-1)
        assert (nearest.amin(0) < 1e-9).all()
        assert found.label[b, nearest.argmin(0)].tolist() == [0, 0, 1]
    assert (found.couplings[:, 6, -1] > 0.99).all()  # the part of no whole


def test_permuting_the_parts_permutes_the_couplings():
    pose, presence, types, _ = scene()
    order = torch.tensor([3, 0, 6, 5, 1, 4, 2])
    before = routed(pose, presence, types)
    after = routed(pose[:, order], presence[:, order], types[:, order])
    assert_same(after, before._replace(couplings=before.couplings[:, order]))


def test_absent_parts_and_other_images_change_nothing():
    pose, presence, types, _ = scene()
    before = routed(pose, presence, types, hypotheses=7)
    nothing = torch.full((2, 3, 4), math.nan, dtype=F64)
    padded = torch.cat([nothing, pose], 1), functional.pad(presence, (3, 0)), torch.cat([types[:, :3], types], 1)
    after = routed(*padded, hypotheses=7)
    assert (after.couplings[:, :3, -1] == 1).all()
    assert_same(after._replace(couplings=after.couplings[:, 3:]), before)
    alone = routed(pose[1:], presence[1:], types[1:])
    assert_same(alone, Wholes(*(each[1:] for each in before)))


def test_padding_of_members_changes_nothing():
    pose, presence, types, _ = scene()
    padded = table([BOAT, HOUSE, [*BOAT, (2, 5, 5, 0, 1)]])
    padded = {name: tensor[:2] for name, tensor in padded.items()}
    found = routed(pose, presence, types, padded, hypotheses=7)
    assert not found.found[..., 2].any()
    assert_same(found._replace(found=found.found[..., :2]), routed(pose, presence, types, hypotheses=7))


def test_a_rectangle_turned_by_half_and_a_disc_turned_by_any_angle_are_the_same():
    known = table([[(0, 0, 2, 0, 1), (1, 1, -4, 135, 1), (2, 6, 1, 0, 0.5)]])
    pose, presence, types = parts([(0, 0, 2, 0, 1), (1, 1.2, -4, 130, 1), (2, 6, 1.1, 0, 0.5)])
    before = routed(pose, presence, types, known, hypotheses=1)
    assert before.presence[0, 0] > 0.99
    turns = Similarity.of(angle=torch.tensor([180.0, 0.0, 77.0], dtype=F64))
    assert_same(routed((Similarity(pose) @ turns).numbers, presence, types, known, hypotheses=1), before)
    without = routed(pose[:, :2], presence[:, :2], types[:, :2], known)
    assert without.presence[0, 0] < before.presence[0, 0]
    only = routed(pose[:, 2:], presence[:, 2:], types[:, 2:], known)
    assert not only.presence.any()  # a disc does not say how its whole is turned


def shared_rectangle():
    """A rectangle that is the hull of a boat and the wall of a house; the boat's sail is 0.7 pixels off."""
    house = Similarity.of(x=torch.tensor(20.0, dtype=F64), y=20.0, angle=30.0)
    boat = house @ Similarity(TABLE["layouts"])[1, 0] @ Similarity(TABLE["layouts"])[0, 0].inverse()
    roof, sail = house @ Similarity(TABLE["layouts"])[1, 1], boat @ Similarity(TABLE["layouts"])[0, 1]
    rectangle = house @ Similarity(TABLE["layouts"])[1, 0]
    pose = torch.stack([rectangle.numbers, roof.numbers, sail.numbers + torch.tensor([0.7, 0, 0, 0], dtype=F64)])
    types = functional.one_hot(torch.tensor([0, 1, 1]), 3).to(F64)
    return pose[None], torch.ones(1, 3, dtype=F64), types[None]


def test_a_part_of_two_possible_wholes_goes_to_the_better_one():
    once, routed_twice = (routed(*shared_rectangle(), iterations=each) for each in (1, 2))
    assert once.label[0, :2].tolist() == [1, 0]
    assert (once.presence[0, :2] > 0.99).all()  # the plain vote sees both
    assert routed_twice.presence[0, 0] == once.presence[0, 0]
    assert routed_twice.presence[0, 1:].max() < 0.01
    assert routed_twice.couplings[0, 0, 0] > 0.99
    assert routed_twice.couplings[0, 2, -1] > 0.99  # the sail is alone


def test_a_missing_part_lowers_presence():
    face = [(1, 0, -5, 0, 1), (1, 4, 0, 90, 1), (1, -4, 0, 45, 1), (0, 0, 5, 0, 1)]
    odds = [routed(*parts(face[:count]), table([face])).log_odds.max().item() for count in (4, 3, 2, 1)]
    assert odds == sorted(odds, reverse=True)
    assert odds[0] > 10
    assert odds[3] < -10


@pytest.mark.parametrize("iterations", [1, 3])
def test_gradients_agree_with_finite_differences(iterations):
    pose, _, types, _ = scene(B=1, noise=1.0)
    pose, types = pose[:, :4], types[:, :4]
    g = torch.Generator().manual_seed(1)
    presence = 0.5 + 0.5 * torch.rand(1, 4, generator=g, dtype=F64)
    soft = 0.8 * types + 0.2 / 3
    inputs = [pose, presence, soft, *TABLE.values()]
    inputs = [each.detach().clone().requires_grad_() for each in inputs]

    def outputs(*tensors):
        found = pose_routing(*tensors, iterations, symmetry=SYMMETRY, hypotheses=3)
        return found.pose, found.presence, found.couplings, found.found

    assert torch.autograd.gradcheck(outputs, inputs, fast_mode=True)


@pytest.mark.parametrize("I", [0, 1])
def test_no_part_or_one_is_no_whole(I):
    pose, presence, types, _ = scene()
    found = routed(pose[:, :I], presence[:, :I], types[:, :I])
    assert found.pose.shape == (2, I, 4)
    assert found.couplings.shape == (2, I, I + 1)
    assert (found.presence < 0.01).all()
    assert routed(pose[:0], presence[:0], types[:0]).couplings.shape == (0, 7, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_at_one_place_give_no_nan(dtype):
    pose, presence, types, _ = (each.numbers if isinstance(each, Similarity) else each for each in scene())
    pose = pose[:, :1].expand(-1, 7, -1).to(dtype).clone().requires_grad_()
    found = pose_routing(pose, presence, types, **TABLE, symmetry=SYMMETRY)
    assert found.pose.dtype == dtype
    for each in (found.pose, found.presence, found.couplings, found.found):
        assert each.isfinite().all()
    (found.pose.sum() + found.presence.sum() + found.couplings[..., 0].sum()).backward()
    assert pose.grad.isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"symmetry": (1, 1)}, "give symmetry for each of the 3 types, got 2 numbers"),
        ({"prior": torch.zeros(3)}, r"prior must be \(2,\), got \(3,\)"),
        ({"pose": torch.zeros(2, 7, 3)}, r"pose must be \(2, 7, 4\), got \(2, 7, 3\)"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    pose, presence, types, _ = scene()
    given = {"pose": pose, "presence": presence, "types": types, "symmetry": SYMMETRY, **TABLE, **change}
    with pytest.raises(ValueError, match=message):
        pose_routing(**given)
