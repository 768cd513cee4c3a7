"""EM routing: worked by hand, against loops, at its edges, and without keeping votes."""

import math

import pytest
import torch

from torchcaps.layers.annealing import EPSILON
from torchcaps.ops import em_routing, em_routing_conv
from torchcaps.ops.em import chunked
from torchcaps.ops.em.reference import FLOOR, LEAST, Reach, fit, log_density, route_votes, share_out

F64 = torch.float64


def made(B=2, I=6, J=3, P=2, dtype=F64, seed=0):
    g = torch.Generator().manual_seed(seed)
    pose = torch.randn(B, I, P * P, generator=g, dtype=dtype)
    weight = torch.randn(I, J, P, P, generator=g, dtype=dtype)
    activation = torch.rand(B, I, generator=g, dtype=dtype)
    return pose, activation, weight, torch.randn(J, generator=g, dtype=dtype), torch.randn(J, generator=g, dtype=dtype)


def by_loops(votes, activation, beta_u, beta_a, iterations, temperature, in_reach):
    """Procedure 1 with plain numbers: votes[p][i] is a list of D numbers, or missing where child i cannot reach p."""
    parents, children = sorted(votes), sorted({i for p in votes for i in votes[p]})
    share = {(p, i): 1 / sum(i in votes[q] for q in parents) for p in parents for i in votes[p]}
    for t in range(1, iterations + 1):
        mean, variance, active = {}, {}, {}
        for p in parents:
            counts = {i: share[p, i] * activation[i] for i in votes[p]}
            total = sum(counts.values())
            D = len(next(iter(votes[p].values())))
            mean[p] = [sum(counts[i] * votes[p][i][d] for i in votes[p]) / (total + LEAST) for d in range(D)]
            variance[p] = [
                sum(counts[i] * (votes[p][i][d] - mean[p][d]) ** 2 for i in votes[p]) / (total + LEAST) + FLOOR
                for d in range(D)
            ]
            cost = sum((beta_u[in_reach(p)] + math.log(math.sqrt(v))) * total for v in variance[p])
            active[p] = 1 / (1 + math.exp(-temperature * (1 - 0.95**t) * (beta_a[in_reach(p)] - cost)))
        if t == iterations:
            return mean, active, share
        for i in children:
            density = {}
            for p in parents:
                if i in votes[p]:
                    e = sum((votes[p][i][d] - m) ** 2 / (2 * v) for d, (m, v) in enumerate(zip(mean[p], variance[p])))
                    density[p] = active[p] * math.exp(-e) / math.sqrt(math.prod(2 * math.pi * v for v in variance[p]))
            for p, value in density.items():
                share[p, i] = value / sum(density.values())
    raise AssertionError


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_dense_routing_is_procedure_1(iterations):
    pose, activation, weight, beta_u, beta_a = made(B=1)
    votes = torch.einsum("ipq,ijqr->ijpr", pose[0].view(6, 2, 2), weight).flatten(2)
    listed = {j: {i: votes[i, j].tolist() for i in range(6)} for j in range(3)}
    mean, active, share = by_loops(
        listed, activation[0].tolist(), beta_u.tolist(), beta_a.tolist(), iterations, 0.7, lambda j: j
    )
    poses, activations, couplings = em_routing(
        pose, activation, weight, beta_u, beta_a, iterations, inverse_temperature=0.7, return_couplings=True
    )
    torch.testing.assert_close(poses[0], torch.tensor([mean[j] for j in range(3)], dtype=F64))
    torch.testing.assert_close(activations[0], torch.tensor([active[j] for j in range(3)], dtype=F64))
    expected = torch.tensor([[share[j, i] for j in range(3)] for i in range(6)], dtype=F64)
    torch.testing.assert_close(couplings[0], expected)


def test_windows_that_overlap_share_their_children():
    """A 3×3 map of one type under 2×2 windows: the middle is in four windows, edges in two, corners in one."""
    reach = Reach.windows(3, 3, 1, 2, 1, torch.device("cpu"))
    assert reach.child.tolist() == [[0, 1, 3, 4], [1, 2, 4, 5], [3, 4, 6, 7], [4, 5, 7, 8]]
    J, D = 2, 1
    g = torch.Generator().manual_seed(1)
    votes = torch.randn(1, 4, 4, J, D, generator=g, dtype=F64)
    activation = torch.rand(1, 9, generator=g, dtype=F64)
    beta_u, beta_a = torch.tensor([0.1, 0.3], dtype=F64), torch.tensor([0.2, -0.1], dtype=F64)
    listed = {
        (place, j): {int(reach.child[place, n]): votes[0, place, n, j].tolist() for n in range(4)}
        for place in range(4)
        for j in range(J)
    }
    for iterations in (1, 2, 3):
        mean, active, share = by_loops(
            listed, activation[0].tolist(), beta_u.tolist(), beta_a.tolist(), iterations, 1.0, lambda p: p[1]
        )
        got_mean, got_active, got_share = route_votes(votes, activation, reach, beta_u, beta_a, iterations, 1.0)
        for place in range(4):
            for j in range(J):
                assert got_mean[0, place, j].tolist() == pytest.approx(mean[place, j])
                assert float(got_active[0, place, j]) == pytest.approx(active[place, j])
                for n, child in enumerate(reach.child[place].tolist()):
                    assert float(got_share[0, place, n, j]) == pytest.approx(share[(place, j), child])
    totals = torch.zeros(9, dtype=F64).scatter_add(0, reach.child.flatten(), got_share.sum(3).flatten())
    torch.testing.assert_close(totals, torch.ones(9, dtype=F64))
    assert float(got_share[0, 0, 3].sum()) < 0.9  # the middle child gives to other places as well


def test_two_children_one_parent_by_hand():
    # Votes 1 and 3, activations 0.5 and 1: mean 7/3, variance 8/9, all of it in the first M-step.
    mean, variance, total = fit(torch.tensor([1.0, 3.0]).view(1, 1, 2, 1, 1), torch.tensor([0.5, 1.0]).view(1, 1, 2, 1))
    assert float(mean) == pytest.approx(7 / 3, rel=1e-3)
    assert float(variance) == pytest.approx(8 / 9, rel=1e-3)
    assert float(total) == pytest.approx(1.5)
    density = log_density(
        torch.tensor(3.0).view(1, 1, 1, 1, 1), torch.full((1, 1, 1, 1), 1.0), torch.full((1, 1, 1, 1), 4.0)
    )
    assert float(density) == pytest.approx(-0.5 - 0.5 * math.log(8 * math.pi))


def test_a_child_that_is_not_active_does_not_count():
    pose, activation, weight, beta_u, beta_a = made()
    silent = activation.clone()
    silent[:, 2] = 0
    before = em_routing(pose, activation, weight, beta_u, beta_a)[:2]
    after = em_routing(pose, silent, weight, beta_u, beta_a)[:2]
    assert all((a - b).abs().max() > 1e-4 for a, b in zip(before, after))
    moved = pose.clone()
    moved[:, 2] += 5
    torch.testing.assert_close(em_routing(moved, silent, weight, beta_u, beta_a)[:2], after)


def test_votes_that_agree_win():
    """Of two parents the one whose votes agree becomes more active and takes the children's shares."""
    agree, differ = torch.ones(8, 4, dtype=F64), torch.linspace(-3, 3, 32, dtype=F64).view(8, 4)
    votes = torch.stack([agree, differ], dim=1).view(1, 1, 8, 2, 4)
    zero = torch.zeros(2, dtype=F64)
    _, active, share = route_votes(
        votes, torch.ones(1, 8, dtype=F64), Reach.everything(8, torch.device("cpu")), zero, zero, 3, 1.0
    )
    assert active[0, 0, 0] > 0.9 > active[0, 0, 1]
    assert share[0, 0, :, 0].min() > 0.9


def test_logits_far_apart_share_without_overflow():
    logits = torch.tensor([[1e5, -1e5], [-1e5, 1e5], [0.0, 0.0]]).view(1, 1, 3, 2)
    shares = share_out(logits, Reach.everything(3, torch.device("cpu")))
    assert shares[0, 0].tolist() == [[1, 0], [0, 1], [0.5, 0.5]]


@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_is_dense_routing_where_one_window_covers_all(stride):
    g = torch.Generator().manual_seed(0)
    pose, activation = (
        torch.randn(2, 2, 4, 3, 3, generator=g, dtype=F64),
        torch.rand(2, 2, 3, 3, generator=g, dtype=F64),
    )
    weight = torch.randn(18, 3, 2, 2, generator=g, dtype=F64)
    betas = torch.randn(2, 3, generator=g, dtype=F64)
    poses, activations, _ = em_routing_conv(pose, activation, weight, *betas, 3, stride=stride)
    flat = pose.permute(0, 3, 4, 1, 2).reshape(2, 18, 4), activation.permute(0, 2, 3, 1).reshape(2, 18)
    expected = em_routing(*flat, weight, *betas, 3)
    assert poses.shape == (2, 3, 4, 1, 1)
    torch.testing.assert_close((poses[..., 0, 0], activations[..., 0, 0]), expected[:2])


def test_convolution_uses_one_weight_at_all_places():
    g = torch.Generator().manual_seed(0)
    pose, activation = torch.randn(1, 1, 4, 2, 2, generator=g), torch.rand(1, 1, 2, 2, generator=g)
    weight, beta = torch.randn(1, 2, 2, 2, generator=g), torch.zeros(2)
    poses = em_routing_conv(pose, activation, weight, beta, beta, 1).poses
    for y in range(2):
        for x in range(2):  # a 1×1 window has one child, so its vote is the mean
            vote = pose[0, 0, :, y, x].view(2, 2) @ weight[0, 1]
            torch.testing.assert_close(poses[0, 1, :, y, x], vote.flatten(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("scratch", [1, 100, 10**9])
def test_parts_of_a_batch_give_what_the_whole_does_and_its_gradients(scratch, iterations):
    inputs = [x.requires_grad_() for x in made(B=5)]
    reach, offset = Reach.everything(6, torch.device("cpu")), torch.randn(6, 4, dtype=F64)
    temperature = torch.tensor(0.5)
    pose, activation, weight, beta_u, beta_a = inputs
    votes = chunked.votes_of(pose[:, reach.child].unflatten(-1, (2, 2)), weight, offset)
    small = {"epsilon": 1e-2, "floor": 0.1}
    whole = route_votes(votes, activation, reach, beta_u, beta_a, iterations, temperature, **small)
    used = 3 if iterations > 1 else 2  # the first shares are constants
    probes = [torch.randn_like(x) for x in whole]
    expected = torch.autograd.grad(whole[:used], inputs, probes[:used])
    rest = pose, activation, weight, reach, beta_u, beta_a, iterations, temperature, offset
    with torch.no_grad():
        torch.testing.assert_close(chunked.forward(*rest, scratch=scratch, **small), whole)
        given = *probes[:2], probes[2] if used == 3 else None
        torch.testing.assert_close(tuple(chunked.backward(*given, *rest, scratch=scratch, **small)), expected)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (3, 1), (2, 1), (1, 1)])
def test_gradients_of_overlapping_windows_are_those_of_the_reference(kernel, stride, monkeypatch):
    """On a map of 6×5 some children are in one window, some in many, and with a stride of 2 some in none."""
    g = torch.Generator().manual_seed(2)
    pose = torch.randn(2, 2, 4, 6, 5, generator=g, dtype=F64)
    activation = torch.rand(2, 2, 6, 5, generator=g, dtype=F64)
    weight = torch.randn(kernel * kernel * 2, 3, 2, 2, generator=g, dtype=F64)
    betas = torch.randn(2, 3, generator=g, dtype=F64)
    inputs = [x.requires_grad_() for x in (pose, activation, weight, *betas)]
    found = {}
    for backend in ("reference", "chunked"):
        monkeypatch.setenv("TORCHCAPS_BACKEND", backend)
        outputs = em_routing_conv(*inputs, 3, stride=stride, inverse_temperature=0.7)[:2]
        probes = [torch.linspace(-1, 1, x.numel(), dtype=F64).view_as(x) for x in outputs]
        found[backend] = *outputs, *torch.autograd.grad(outputs, inputs, probes)
    torch.testing.assert_close(found["chunked"], found["reference"])


def test_every_spot_of_a_child_is_known():
    for kernel, stride in ((3, 1), (3, 2), (2, 3), (4, 2)):
        reach = Reach.windows(7, 9, 2, kernel, stride, torch.device("cpu"))
        flat = reach.child.flatten().tolist()
        for child, spots in enumerate(reach.spots.tolist()):
            assert sorted(s for s in spots if s >= 0) == [s for s, each in enumerate(flat) if each == child]


def test_no_votes_are_kept_for_the_backward():
    kept = []
    pose, activation, weight, beta_u, beta_a = (x.requires_grad_() for x in made(B=4, I=50, J=10))
    votes = 4 * 50 * 10 * 4
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x.numel()), x)[1], lambda x: x):
        em_routing(pose, activation, weight, beta_u, beta_a, 3)
    assert 0 < max(kept) < votes


def test_gradients_agree_with_finite_differences():
    dense = [x.requires_grad_() for x in made(B=1, I=4, J=2)]
    assert torch.autograd.gradcheck(lambda *x: em_routing(*x, 3, inverse_temperature=0.5, return_couplings=True), dense)
    pose = torch.randn(1, 1, 4, 3, 3, dtype=F64, requires_grad=True)
    activation = torch.rand(1, 1, 3, 3, dtype=F64, requires_grad=True)
    others = [torch.randn(shape, dtype=F64, requires_grad=True) for shape in ((4, 2, 2, 2), (2,), (2,))]
    route = lambda *x: em_routing_conv(*x, 2, inverse_temperature=0.5)[:2]  # noqa: E731
    assert torch.autograd.gradcheck(route, (pose, activation, *others), fast_mode=True)


CASES = ["zero", "equal", "huge", "silent", "one child", "tiny"]


@pytest.mark.parametrize("epsilon", [LEAST, EPSILON])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_nothing_becomes_nan(case, dtype, epsilon):
    pose, activation, weight, beta_u, beta_a = made(I=1 if case == "one child" else 6, P=4, dtype=torch.float32)
    scale = {"zero": 0.0, "huge": 1e4, "tiny": 1e-20}.get(case, 1.0)
    pose = torch.ones_like(pose) if case == "equal" else pose * scale
    weight = weight[:1].expand_as(weight).clone() if case == "equal" else weight
    activation = activation * (case != "silent")
    inputs = [x.to(dtype).requires_grad_() for x in (pose, activation, weight, beta_u, beta_a)]
    outputs = em_routing(*inputs, 3, epsilon=epsilon, return_couplings=True)
    assert [x.dtype for x in outputs] == [dtype, torch.float32, torch.float32]  # activations keep their digits
    assert all(x.isfinite().all() for x in outputs)
    sum((x.float() * torch.linspace(-1, 1, x.numel()).view_as(x)).sum() for x in outputs).backward()
    assert all(x.grad.isfinite().all() for x in inputs)
    assert inputs[1].grad.abs().max() < 100 / epsilon * max(1.0, scale)


@pytest.mark.parametrize("wide", range(5))
def test_one_input_in_double_precision_makes_all_of_it_so(wide):
    inputs = [x.to(F64 if place == wide else torch.float32) for place, x in enumerate(made(dtype=F64))]
    poses, activations, _ = em_routing(*inputs)
    exact = em_routing(*(x.double() for x in inputs))
    assert activations.dtype == F64
    torch.testing.assert_close(poses.double(), exact[0], rtol=1e-6, atol=1e-6)


def test_properties_of_every_routing():
    pose, activation, weight, beta_u, beta_a = made(B=3)
    poses, activations, couplings = em_routing(pose, activation, weight, beta_u, beta_a, return_couplings=True)
    torch.testing.assert_close(couplings.sum(2), torch.ones(3, 6, dtype=F64))
    order = torch.tensor([3, 5, 0, 1, 4, 2])
    again = em_routing(pose[:, order], activation[:, order], weight[order], beta_u, beta_a, return_couplings=True)
    torch.testing.assert_close(tuple(again), (poses, activations, couplings[:, order]))
    for b in range(3):
        alone = em_routing(pose[b : b + 1], activation[b : b + 1], weight, beta_u, beta_a)[:2]
        torch.testing.assert_close(alone, (poses[b : b + 1], activations[b : b + 1]))
    empty = em_routing(pose[:0], activation[:0], weight, beta_u, beta_a)[:2]
    assert [x.shape for x in empty] == [(0, 3, 4), (0, 3)]


def test_few_children_that_share_many_parents_follow_the_formulas_with_a_small_epsilon():
    pose, activation, weight, beta_u, beta_a = made(I=8, J=100, P=4)
    exact = em_routing(pose, activation, weight, beta_u, beta_a, epsilon=1e-20).poses.norm(dim=-1).mean()
    small = em_routing(pose, activation, weight, beta_u, beta_a, epsilon=1e-12).poses.norm(dim=-1).mean()
    assert (1 - small / exact).abs() < 0.05
    assert em_routing(pose, activation, weight, beta_u, beta_a).poses.norm(dim=-1).mean() < 0.5 * exact


def test_an_offset_moves_every_vote_of_its_child():
    pose, activation, weight, beta_u, beta_a = made()
    offset = torch.randn(6, 4, dtype=F64)
    moved = em_routing(pose, activation, weight, beta_u, beta_a, 1, offset=offset)
    plain = em_routing(pose, activation, weight, beta_u, beta_a, 1)
    shares = activation / 3
    counts = shares / (shares.sum(1, keepdim=True) + LEAST)
    torch.testing.assert_close(moved[0], plain[0] + (counts @ offset)[:, None])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iterations": 0}, "iterations must be a whole number, at least 1"),
        ({"weight": torch.zeros(6, 3, 3, 3)}, r"P·P = 4"),
        ({"weight": torch.zeros(6, 3, 2, 3)}, r"P·P = 4"),
        ({"weight": torch.zeros(5, 3, 2, 2)}, "weight is for 5 children, but pose has 6"),
        ({"activation": torch.zeros(2, 5)}, r"activation \(B, I\)"),
        ({"beta_u": torch.zeros(2)}, r"beta_u must be \(J,\)"),
        ({"epsilon": 0.0}, "epsilon must be at least 1e-20, got 0.0"),
        ({"floor": float("nan")}, "floor must be at least 1e-20, got nan"),
        ({"offset": torch.zeros(6, 3)}, "offset must be"),
        ({"offset": torch.zeros(6, 4, requires_grad=True)}, "offset is a constant"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    names = ("pose", "activation", "weight", "beta_u", "beta_a")
    with pytest.raises(ValueError, match=message):
        em_routing(**{**dict(zip(names, made(dtype=torch.float32))), **change})


def test_a_window_that_does_not_fit_is_named():
    pose, activation, beta = torch.zeros(1, 2, 4, 3, 3), torch.zeros(1, 2, 3, 3), torch.zeros(2)
    for spots in (7, 32):
        with pytest.raises(ValueError, match="fits no window"):
            em_routing_conv(pose, activation, torch.zeros(spots, 2, 2, 2), beta, beta)
    with pytest.raises(ValueError, match="pose must be"):
        em_routing_conv(pose, activation[:, :1], torch.zeros(8, 2, 2, 2), beta, beta)
