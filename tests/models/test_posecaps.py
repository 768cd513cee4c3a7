"""PoseCaps against its equations, written as loops; and what must hold when an image is turned, alone or black."""

from __future__ import annotations

import functools
import math
from itertools import product

import pytest
import torch

from torchcaps.errors import UserError
from torchcaps.geometry import pixel_places
from torchcaps.losses import margin_loss, reconstruction_loss
from torchcaps.models import Output, Placement, PoseCaps, create_model, load, save
from torchcaps.models._posecaps_views import EPS, FIRST_VIEW_RANGE, UNITS
from torchcaps.models.posecaps import GAUGE_WEIGHT
from torchcaps.robustness import perturb

SMALL = {"width": 2, "types": 2, "dim": 3, "class_dim": 4, "padding": 2, "hidden": 5}
SMALL |= {"turn": 15, "scales": (0.8, 1.0), "search": "plane"}
SHEAR = {"stretches": (0.8, 1.0, 1.25), "shears": (-0.3, 0.0, 0.3)}
CIRCLE = {"turn": 180, "turn_step": 90, "scales": (1.0,)}


def made(image_shape=(3, 9, 11), **options) -> PoseCaps:
    """In float64, with statistics and offsets as if it had been trained."""
    model = PoseCaps(image_shape, 3, **{**SMALL, **options}).double().eval()
    if model.arguments["search"] != "coarse":
        model.search_linear.copy_(model.lattice.poses().linear)  # not rounded to float32
    for norm in (module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)):
        torch.nn.init.normal_(norm.running_mean, std=0.3)
        torch.nn.init.uniform_(norm.running_var, 0.02, 0.1)
    torch.nn.init.normal_(model.weight)
    torch.nn.init.normal_(model.offset.weight)
    return model


def photographs(model: PoseCaps, count: int = 4) -> torch.Tensor:
    return torch.rand(count, *model.image_shape, dtype=torch.float64)


assert_close = functools.partial(torch.testing.assert_close, atol=1e-10, rtol=0)


def squashed(v):
    return v * v.norm() / (1 + v.square().sum())


def seen_through(pose, image, size):
    """(C, h, w): of every pixel of the view, what is at its place in the image (C, H, W), by bilinear interpolation."""
    (_, H, W), (h, w) = image.shape, size
    seen = image.new_zeros(len(image), h, w)
    for r, c in product(range(h), range(w)):
        x, y = (pose @ image.new_tensor([c - (w - 1) / 2, r - (h - 1) / 2])).tolist()
        column, row = x + (W - 1) / 2, y + (H - 1) / 2
        for i, j in product((math.floor(row), math.floor(row) + 1), (math.floor(column), math.floor(column) + 1)):
            if 0 <= i < H and 0 <= j < W:
                seen[:, r, c] += (1 - abs(row - i)) * (1 - abs(column - j)) * image[:, i, j]
    return seen


def reference(model, image):
    """What is answered for one image (C, H, W): lengths (J,), poses (J, D), and the rest each (J,)."""
    (_, H, W), (h, w) = image.shape, model.view_size
    J, T, K = model.num_classes, model.types, model.dim
    clean = model.normalise(model.denoise(image[None]))[0]
    capsules, votes, centres = [], [], []  # of every view, of every class
    for angle, scale, stretch, shear in product(*model.lattice._axes()):
        cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        turn, slant = image.new_tensor([[cos, sin], [-sin, cos]]), image.new_tensor([[1, -shear], [0, 1]])
        pose = scale * turn @ slant @ image.new_tensor([stretch, 1 / stretch]).sqrt().diag()
        own = {"angle": angle, "scale": math.log(scale), "stretch": math.log(stretch), "shear": shear}
        maps = model.primary(model.stem(seen_through(pose, clean, model.view_size)[None]))[0]
        places = list(product(range(maps.shape[1]), range(maps.shape[2])))
        u = {(t, r, c): squashed(maps[K * t : K * t + K, r, c]) for t in range(T) for r, c in places}
        mean = [sum(u[t, r, c] for r, c in places) / len(places) for t in range(T)]
        further = model.offset(torch.cat(mean)).view(J, -1)
        for j in range(J):
            v = squashed(model.bias[j] + sum(model.weight[t, j] @ mean[t] for t in range(T)))
            along = [v / v.norm() @ sum(model.weight[t, j] @ u[t, r, c] for t in range(T)) for r, c in places]
            share = torch.stack(along).relu() / (torch.stack(along).relu().sum() + EPS)
            centre = image.new_tensor([[4 * c - (w - 1) / 2, 4 * r - (h - 1) / 2] for r, c in places])
            capsules.append(v)
            votes.append(
                torch.stack([own[name] + UNITS[name] * further[j, i] for i, name in enumerate(model.pose_parts)])
            )
            centres.append(pose @ (share @ centre))
    capsules, votes, centres = (torch.stack(each).unflatten(0, (-1, J)) for each in (capsules, votes, centres))
    lengths = capsules.norm(dim=-1, keepdim=True)
    weights = (model.sharpness * lengths).softmax(0)
    presence, mean = (model.sharpness * lengths).exp().mean(0).log() / model.sharpness, (weights * capsules).sum(0)
    found = dict(zip(model.pose_parts, (weights * votes).sum(0).unbind(-1)))
    found = {name: value.exp() if name in ("scale", "stretch") else value for name, value in found.items()}
    found["angle"] = (weights[..., 0] * torch.exp(1j * votes[..., 0].deg2rad())).sum(0).angle().rad2deg()
    found["x"], found["y"] = ((weights * centres).sum(0) + image.new_tensor([W - 1, H - 1]) / 2).unbind(-1)
    turned = (votes[..., 0] - found["angle"] + 180) % 360 - 180
    found["spread"] = ((weights[..., 0] * turned.square()).sum(0) + EPS).sqrt()
    units, even = image.new_tensor([UNITS[name] for name in model.pose_parts]), votes.mean(0)
    even[:, 0] = torch.exp(1j * votes[..., 0].deg2rad()).mean(0).angle().rad2deg()
    apart = votes - even
    apart[..., 0] = (apart[..., 0] + 180) % 360 - 180
    found["disagreement"] = ((apart / units).square().mean(0) + GAUGE_WEIGHT * (even / units).square()).sum(-1)
    return {"lengths": presence[:, 0], "poses": presence * mean / mean.norm(dim=-1, keepdim=True), **found}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"denoise": False, "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4)},
        {**SHEAR, "scales": (1.0,), "search": "full"},
        {**SHEAR, "scales": (1.0,)},
        CIRCLE,
        {"padding": 0, "image_shape": (1, 4, 6)},
    ],
    ids=["plane", "normalised", "full", "shear-read", "circle", "tiny"],
)
@torch.no_grad()
def test_answers_are_those_of_the_equations(options):
    model = made(**options)
    images, targets = photographs(model, 2), torch.tensor([0, 2])
    out = model(images, targets)
    for index, (image, target) in enumerate(zip(images, targets)):
        expected = reference(model, image)
        found = {name: part[index] for name, part in out.placement._asdict().items() if part is not None}
        found |= {"lengths": out.lengths[index], "poses": out.poses[index]}
        assert_close(out.disagreement[index], expected.pop("disagreement")[target])
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("side", [8, 9])
@torch.no_grad()
def test_a_quarter_turn_of_the_image_turns_the_answer(side):
    model = made((3, side, side), **CIRCLE)
    images = photographs(model)
    turned = images.rot90(1, (2, 3))
    lengths, shifted = (model.encode(each).capsules.norm(dim=-1) for each in (images, turned))
    assert_close(shifted, lengths.roll(1, 1))
    assert lengths.std(1).min() > 1e-5  # views differ
    before, after = model(images), model(turned)
    assert_close(after.lengths, before.lengths)
    assert_close(after.poses, before.poses)
    assert_close(after.reconstruction, before.reconstruction.rot90(1, (2, 3)))
    was, now = before.placement, after.placement
    assert_close((now.angle - was.angle) % 360, torch.full_like(was.angle, 90))
    assert_close((now.scale, now.spread), (was.scale, was.spread))
    assert_close((now.x, now.y), (was.y, side - 1 - was.x))


def losses(model, images, targets):
    """(B,): all that training minimises; in eval mode also a little of the placement."""
    out = model(images, targets)
    total = margin_loss(out.lengths, targets) + out.disagreement + reconstruction_loss(out.reconstruction, images)
    return total + sum(part.sum(-1) / 100 for part in out.placement or () if part is not None)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_gradients_are_those_of_finite_differences(training):
    model = made((1, 5, 6), **SHEAR).train(training)
    images, targets = photographs(model), torch.arange(4) % 3

    def loss():
        torch.manual_seed(1)  # the same views
        return losses(model, images, targets).sum()

    loss().backward()
    for name, parameter in model.named_parameters():
        direction, step = torch.randn_like(parameter), 1e-6
        values = []
        for way in (step, -2 * step, step):
            with torch.no_grad():
                parameter += way * direction
                values.append(loss())
        slope = (values[0] - values[1]) / (2 * step)
        found = (parameter.grad * direction).sum()
        assert found.item() == pytest.approx(slope.item(), rel=1e-4, abs=1e-6), name


@torch.no_grad()
def test_the_rest_of_a_batch_changes_nothing():
    model = made()
    images = photographs(model)
    whole, alone = model(images), model(images[2:3])
    for name in ("lengths", "poses", "reconstruction"):
        torch.testing.assert_close(getattr(alone, name)[0], getattr(whole, name)[2])
    for one, all in zip(alone.placement[:5], whole.placement[:5]):
        torch.testing.assert_close(one[0], all[2])


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("denoise", [False, True], ids=["plain", "denoise"])
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0], ids=["black", "grey", "white"])
def test_flat_images_give_numbers_and_finite_gradients(value, denoise, training):
    model = PoseCaps((1, 7, 8), 3, **SMALL, denoise=denoise).train(training)
    loss = losses(model, torch.full((3, 1, 7, 8), value), torch.arange(3))
    assert loss.isfinite().all()
    loss.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name


def test_one_of_everything():
    ones = dict.fromkeys(("types", "dim", "class_dim", "hidden", "views"), 1)
    model = PoseCaps((1, 1, 1), 1, **{**SMALL, **ones, "turn": 0, "scales": (1.0,)})
    for mode in (model.train(), model.eval()):
        loss = losses(mode, torch.rand(2, 1, 1, 1), torch.zeros(2, dtype=torch.long)).sum()
        loss.backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.bool], ids=str)
@torch.no_grad()
def test_several_classes_at_once(dtype):
    model = made()
    images, both = photographs(model, 2), torch.tensor([[1, 0, 1], [0, 1, 1]])
    ids = torch.tensor([[0, 2], [1, 2]])
    out, each = model(images, both.to(dtype)), model(images, each=ids)
    singles = [model(images, ids[:, m]) for m in range(2)]
    assert each.reconstruction.shape == (2, 2, *model.image_shape)
    for m, single in enumerate(singles):
        torch.testing.assert_close(each.reconstruction[:, m], single.reconstruction)
    torch.testing.assert_close(out.reconstruction, each.reconstruction.sum(1).clamp(max=1))
    torch.testing.assert_close(out.disagreement, singles[0].disagreement + singles[1].disagreement)
    assert each.disagreement is None
    most = model(images).lengths.argmax(-1)
    torch.testing.assert_close(model(images).reconstruction, model(images, most).reconstruction)


@pytest.mark.parametrize("training", [False, True], ids=["lattice", "random-views"])
@torch.no_grad()
def test_the_placement_of_some_classes_is_that_of_all(training):
    model = made(**SHEAR, thickness=True).train(training)
    model.thickness_weight.uniform_(0, 1)
    seen, ids = model.encode(photographs(model, 2)), torch.tensor([[2, 0], [1, 1]])
    weights = model.aggregate(seen)[0]
    for some, all in zip(model.read_placement(seen, weights, ids), model.read_placement(seen, weights)):
        assert_close(some, all.gather(1, ids))


def test_in_training_only_what_is_drawn_is_placed():
    model = made(views=0)  # the same views in both modes
    images, targets = photographs(model, 3), torch.tensor([2, 0, 1])
    expected = model(images, targets)
    model.training = True  # of the model alone: batch normalisation stays as it is
    out = model(images, targets)
    assert out.placement is None
    assert_close((out.lengths, out.reconstruction), (expected.lengths, expected.reconstruction))
    assert_close(out.disagreement, expected.disagreement)


def artist(size: int = 41) -> PoseCaps:
    """A model whose decoder draws the same blob whatever it is asked for."""
    model = PoseCaps((1, size, size), 3, **SMALL).double()
    right, down = pixel_places((size, size), model.bias).unbind(-1)
    blob = torch.exp(-(right - 5).square() / 40 - (down + 4).square() / 20).clamp(1e-4, 1 - 1e-4)
    torch.nn.init.zeros_(model.decoder[-1].weight)
    model.decoder[-1].bias.data = blob.logit().flatten()
    return model


@pytest.mark.parametrize(
    ("more", "change"),
    [
        ({"angle": 10.0}, lambda x: perturb.rotate(x, 10)),
        ({"angle": -100.0}, lambda x: perturb.rotate(x, -100)),
        ({"x": 2.0}, lambda x: perturb.translate(x, 2)),
        ({"y": -2.0}, lambda x: perturb.translate(x, 0, -2)),
        ({"scale": 0.3}, lambda x: perturb.scale(x, 1.3)),
    ],
    ids=["turned", "turned-right", "moved-right", "moved-up", "enlarged"],
)
@pytest.mark.parametrize(("angle", "tolerance"), [(0.0, 1e-4), (35.0, 0.03)])  # a turned drawing is interpolated twice
@torch.no_grad()
def test_drawings_stand_as_placed(angle, tolerance, more, change):
    model, classes = artist(), torch.tensor([[1]])
    capsules = torch.rand(1, 3, 4, dtype=torch.float64)
    values = {"x": 20.0, "y": 20.0, "angle": angle, "scale": 1.0, "spread": 0.0}

    def drawn(**more):
        parts = {name: torch.full((1, 1), value + more.get(name, 0)).double() for name, value in values.items()}
        return model.reconstruct(capsules, Placement(**parts), classes)[:, 0]

    if not angle:
        torch.testing.assert_close(drawn(), model.draw_upright(capsules[:, 1], classes[0]))
    assert (drawn(**more) - drawn()).abs().max() > 0.2
    # Away from the border, where what was outside comes in.
    inside = (..., slice(5, -5), slice(5, -5))
    torch.testing.assert_close(drawn(**more)[inside], change(drawn())[inside], atol=tolerance, rtol=0)


def test_training_draws_other_views_each_step_from_the_seed():
    model, images = made(**SHEAR, views=4).train(), torch.rand(50, 3, 9, 11, dtype=torch.float64)
    torch.manual_seed(3)
    first, second = model.encode(images[:2]), model.encode(images[:2])
    assert not torch.equal(first.poses.linear, second.poses.linear)
    assert not torch.equal(first.poses.linear[0], first.poses.linear[1])
    torch.manual_seed(3)
    again = model.encode(images[:2])
    assert torch.equal(again.poses.linear, first.poses.linear)
    assert torch.equal(again.capsules, first.capsules)
    parts = model._random_poses(images).parts()
    assert parts.x.shape == (50, 4)
    assert parts.x.abs().max() <= 0.5
    assert parts.angle[:, 0].abs().max() <= FIRST_VIEW_RANGE * 15 + 1e-3
    for part, low, high in ((parts.angle, -15, 15), (parts.scale, 0.8, 1), (parts.stretch, 0.8, 1.25)):
        assert low - 1e-3 <= part[:, 1:].min() < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < part[:, 1:].max() <= high + 1e-3


def test_without_random_views_training_looks_through_the_lattice():
    model = made(views=0).train()
    assert torch.equal(model.encode(photographs(model)).poses.linear, model.lattice.poses().linear)


def test_training_views_go_all_round_a_full_circle():
    angles = made(**CIRCLE, views=3)._random_poses(torch.zeros(200, 1, 1, 1)).parts().angle[:, 1:]
    assert angles.histc(4, -180, 180).min() > 50


@pytest.mark.parametrize(
    ("options", "poses", "read"),
    [
        ({}, 6, []),
        (SHEAR, 6, ["stretch", "shear"]),
        ({**SHEAR, "search": "full"}, 54, ["stretch", "shear"]),
        ({"stretches": SHEAR["stretches"], "search": "full"}, 18, ["stretch"]),
        ({"shears": SHEAR["shears"]}, 6, ["shear"]),
    ],
    ids=["neither", "read", "searched", "stretch", "shear"],
)
@torch.no_grad()
def test_stretch_and_shear_are_told_if_the_model_reads_them(options, poses, read):
    model = made(**options)
    placement = model(photographs(model)).placement
    assert [name for name in ("stretch", "shear") if getattr(placement, name) is not None] == read
    assert len(model.lattice) == poses


def test_places_keep_their_digits_under_autocast():
    model, views = PoseCaps((1, 28, 28), 3, **SMALL).eval(), []
    model.stem.register_forward_pre_hook(lambda module, inputs: views.append(inputs[0]))
    images = torch.rand(2, 1, 28, 28)
    model(images)
    with torch.autocast("cpu", torch.bfloat16):
        model(images)
    assert torch.equal(*views)


@pytest.mark.parametrize(
    "options",
    [{}, {**SHEAR, "search": "full"}, {**CIRCLE, "decoder": "none"}],
    ids=["plane", "full", "circle-no-decoder"],
)
def test_saved_and_loaded_is_the_same(options, tmp_path):
    model = PoseCaps((3, 9, 11), 3, **{**SMALL, **options})
    images = torch.rand(3, 3, 9, 11)
    model(images)  # batch normalisation has seen images
    loaded = load(save(model, tmp_path))
    before, after = model.eval()(images, torch.arange(3)), loaded(images, torch.arange(3))
    assert (before.reconstruction is None) == ("decoder" in options)
    for a, b in zip(
        (*before[:3], *before.placement, before.disagreement), (*after[:3], *after.placement, after.disagreement)
    ):
        assert torch.equal(a, b) if a is not None else b is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 1}, "width must be a whole number, at least 2, got 1"),
        *(({name: 0}, f"{name}.* at least 1") for name in ("types", "dim", "class_dim", "hidden")),
        ({"views": -1}, "views must be a whole number, at least 0, got -1"),
        ({"padding": -1}, "padding must be a whole number, at least 0, got -1"),
        ({"sharpness": 0.0}, "sharpness must be more than 0, got 0.0"),
        ({"decoder": "conv"}, "decoder must be 'dense' or 'none', got 'conv'"),
        ({"search": "all"}, "search must be 'coarse', 'plane' or 'full', got 'all'"),
        ({"turn": 200}, "turn must lie in 0 to 180"),
        ({"turn_step": 7}, "60.0 degrees are not a whole number of steps of 7"),
        ({"turn_step": 1e-9}, "give a larger turn_step"),
        ({"scales": (1.25, 0.8)}, "lattice scales: give one or more increasing numbers"),
        ({"stretches": (0.0, 1.0)}, "lattice stretches: factors must be greater than 0"),
        ({"shears": ()}, "lattice shears: give one or more increasing numbers"),
        ({"routing": "em"}, "model posecaps has no option 'routing': "),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(UserError, match=message):
        create_model("posecaps", **options)


@pytest.mark.parametrize(
    ("turn", "angles"),
    [
        (0, [0]),
        (15, [0]),
        (30, [-20, 0, 20]),
        (60, [-40, 0, 40]),
        (90, [-72, -36, 0, 36, 72]),
        (180, [-135, -90, -45, 0, 45, 90, 135, 180]),
    ],
)
def test_coarse_search(turn, angles):
    model = made(search="coarse", turn=turn, turn_step=15)
    poses = model.encode(photographs(model)).poses.parts()
    torch.testing.assert_close(poses.angle, torch.tensor(angles).double(), atol=1e-4, rtol=0)
    assert_close(poses.scale, torch.ones(len(angles)).double(), atol=1e-6)


def test_groups_of_views_are_those_of_all_at_once():
    model = made(turn=60)
    images, poses = photographs(model, 2), model.lattice.poses()
    with torch.no_grad():  # in groups
        parts = model.encode_views(images, poses)
    for part, whole in zip(parts[1:], model.encode_views(images, poses)[1:]):
        assert part.shape[1] == len(model.lattice) == 18
        assert_close(part, whole)


def test_familiarity_by_hand():
    model = made((1, 9, 9), denoise=False)
    lengths = torch.tensor([[0.2, 0.9, 0.6], [0.1, 0.1, 0.1]]).double()
    images = photographs(model, 2)
    found = model.familiarity(images, Output(lengths, reconstruction=torch.stack([images[0], 1 - images[1]])))
    torch.testing.assert_close(
        found, torch.tensor([1.8 - 0.4**0.5 + 0.5, 0.2 - 0.02**0.5 - 0.5]).double(), atol=1e-4, rtol=0
    )


def test_nothing_matches_a_constant_image():
    model = made((1, 9, 9))
    for level in (0.0, 0.5, 1.0):
        images = torch.full((1, 1, 9, 9), level).double()
        first, *others = model(images).lengths[0].sort(descending=True).values
        expected = 2 * first - torch.stack(others).norm()
        assert_close(model.familiarity(images, model(images)), expected[None], atol=1e-3)
