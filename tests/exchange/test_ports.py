"""Weights of PyTorch ports: the converted model answers as a forward pass written from each port's code does."""

import os
import pickle
import zipfile

import pytest
import torch
from torch.nn import functional

import torchcaps
from torchcaps.errors import UserError
from torchcaps.exchange.convert import convert
from torchcaps.models import CapsNet
from torchcaps.models.ported import PortedCapsNet

J, D, K, T, CHANNELS = 5, 6, 4, 3, 7  # and images of 20×20, which make 2×2 places of primary capsules
I = T * 2 * 2
DENSE = [(11, J * D), (13, 11), (400, 13)]


def draw(*shape, scale=0.1):
    return scale * torch.randn(shape)


def pairs(names_and_shapes, scale=0.1):
    """weight and bias of each"""
    state = {}
    for name, shape in names_and_shapes:
        state |= {f"{name}.weight": draw(*shape, scale=scale), f"{name}.bias": draw(shape[0])}
    return state


def convolutions(first, primary):
    return pairs([(first, (CHANNELS, 1, 9, 9)), (primary, (T * K, CHANNELS, 9, 9))])


def bielski(logits=0.5):
    return {
        **convolutions("conv1", "primaryCaps.conv"),
        "digitCaps.weights": draw(I, K, J * D, scale=0.8),
        "digitCaps.routing_module.b": draw(I, J, scale=logits),
    }


def bielski_drawing():
    state = {f"capsnet.{name}": tensor for name, tensor in bielski().items()}
    return state | pairs([(f"reconstruction_net.fc{n}", shape) for n, shape in enumerate(DENSE, 1)], 0.3)


def guo():
    state = convolutions("conv1", "primarycaps.conv2d") | {"digitcaps.weight": draw(J, I, D, K, scale=0.8)}
    return state | pairs([(f"decoder.{2 * n}", shape) for n, shape in enumerate(DENSE)], 0.3)


def gram(old=False):
    state = pairs([("conv1", (CHANNELS, 1, 9, 9))])
    state |= pairs([(f"primary_capsules.capsules.{k}", (T, CHANNELS, 9, 9)) for k in range(K)])
    state["digit_capsules.route_weights"] = draw(J, I, K, D, scale=1)
    shapes = [(11, D if old else J * D), *DENSE[1:]]
    if old:
        state["digit_capsules.route_logits"] = draw(J, 1, I, 1, 1, scale=0.5)
    return state | pairs([(f"decoder.{2 * n}", shape) for n, shape in enumerate(shapes)], 0.3)


def squash(x):
    squares = x.square().sum(-1, keepdim=True)
    return squares / (1 + squares) * x / squares.sqrt()


def convolved(state, name, x, stride=1):
    return functional.conv2d(x, state[f"{name}.weight"], state[f"{name}.bias"], stride)


def decoded(state, names, values):
    for name in names[:-1]:
        values = functional.linear(values, state[f"{name}.weight"], state[f"{name}.bias"]).relu()
    return functional.linear(values, state[f"{names[-1]}.weight"], state[f"{names[-1]}.bias"]).sigmoid()


def masked(parents):
    return (parents * functional.one_hot(parents.norm(dim=-1).argmax(1), J)[..., None]).flatten(1)


def answer_bielski(state, images, iterations=3):
    """Votes (B, I, J, D); a first sum by the learned logits, and then as many iterations more as were asked for."""
    state = {name.removeprefix("capsnet."): tensor for name, tensor in state.items()}
    maps = convolved(state, "primaryCaps.conv", convolved(state, "conv1", images).relu(), 2)
    children = squash(maps.unflatten(1, (T, K)).permute(0, 1, 3, 4, 2).reshape(len(images), -1, K))
    votes = (children[:, :, None] @ state["digitCaps.weights"]).view(len(images), I, J, D)
    logits = state["digitCaps.routing_module.b"].expand(len(images), I, J)
    parents = squash((logits.softmax(-1)[..., None] * votes).sum(1))
    for _ in range(iterations):
        logits = logits + (votes * parents[:, None]).sum(-1)
        parents = squash((logits.softmax(-1)[..., None] * votes).sum(1))
    fc = [f"reconstruction_net.fc{n}" for n in (1, 2, 3)]
    return parents, decoded(state, fc, masked(parents)) if f"{fc[0]}.weight" in state else None


def answer_guo(state, images, iterations=3):
    """Primary capsules by a view of the maps as they lie in memory; votes (B, J, I, D), softmax over J."""
    maps = convolved(state, "primarycaps.conv2d", convolved(state, "conv1", images).relu(), 2)
    children = squash(maps.reshape(len(images), -1, K))
    votes = (state["digitcaps.weight"] @ children[:, None, :, :, None])[..., 0]
    logits = torch.zeros_like(votes[..., 0])
    for _ in range(iterations):
        parents = squash((logits.softmax(1)[..., None] * votes).sum(2))
        logits = logits + (parents[:, :, None] * votes).sum(-1)
    return parents, decoded(state, ["decoder.0", "decoder.2", "decoder.4"], masked(parents))


def answer_gram(state, images, iterations=3):
    """A convolution for each dimension; votes (J, B, I, 1, D), softmax over I; of old versions one pose is decoded."""
    features = convolved(state, "conv1", images).relu()
    maps = [convolved(state, f"primary_capsules.capsules.{k}", features, 2) for k in range(K)]
    children = squash(torch.stack([each.flatten(1) for each in maps], dim=-1))
    votes = children[None, :, :, None] @ state["digit_capsules.route_weights"][:, None]
    logits = state.get("digit_capsules.route_logits", torch.zeros(J, 1, I, 1, 1))
    for _ in range(iterations):
        sums = squash((logits.softmax(2) * votes).sum(2, keepdim=True))
        logits = logits + (votes * sums).sum(-1, keepdim=True)
    parents = sums[:, :, 0, 0].transpose(0, 1)
    seen = masked(parents)
    if state["decoder.0.weight"].shape[1] == D:
        seen = parents[torch.arange(len(parents)), parents.norm(dim=-1).argmax(1)]
    return parents, decoded(state, ["decoder.0", "decoder.2", "decoder.4"], seen)


PORTS = {
    "bielski": (bielski, answer_bielski),
    "bielski drawing": (bielski_drawing, answer_bielski),
    "guo": (guo, answer_guo),
    "gram": (gram, answer_gram),
    "gram, old": (lambda: gram(old=True), answer_gram),
}


@pytest.mark.parametrize("name", PORTS)
def test_converted_weights_answer_as_they_did(name, tmp_path):
    make, answer = PORTS[name]
    state = make()
    torch.save(state, tmp_path / "w.pt")
    model, _ = convert(tmp_path / "w.pt", "pytorch")
    model = torchcaps.load(torchcaps.save(model, tmp_path / "model"))
    images = torch.rand(4, 1, 20, 20)
    parents, drawn = answer(state, images)
    assert parents.norm(dim=-1).std() > 0.02
    with torch.no_grad():
        out = model(images)
    torch.testing.assert_close(out.poses, parents, atol=1e-5, rtol=0)
    if drawn is None:
        assert out.reconstruction is None
    else:
        torch.testing.assert_close(out.reconstruction.flatten(1), drawn, atol=1e-5, rtol=0)


def test_where_a_port_does_not_depart_from_the_paper_it_is_a_plain_capsnet(tmp_path):
    state = bielski(logits=0.0)
    torch.save(state, tmp_path / "w.pt")
    model, _ = convert(tmp_path / "w.pt", "pytorch", iterations=1)
    assert type(model) is CapsNet
    images = torch.rand(3, 1, 20, 20)
    torch.testing.assert_close(model(images).poses, answer_bielski(state, images, 1)[0], atol=1e-5, rtol=0)
    torch.save(guo(), tmp_path / "w.pt")
    assert type(convert(tmp_path / "w.pt", "pytorch")[0]) is PortedCapsNet


def test_what_training_scripts_wrap_around_a_state_dict(tmp_path):
    state = guo()
    torch.save({"epoch": 3, "state_dict": {f"module.{name}": each for name, each in state.items()}}, tmp_path / "w.pt")
    model, _ = convert(tmp_path / "w.pt", "pytorch")
    assert torch.equal(model.conv.weight, state["conv1.weight"])


def test_couplings_of_a_port(tmp_path):
    torch.save(gram(), tmp_path / "w.pt")
    model, _ = convert(tmp_path / "w.pt", "pytorch")
    children = model.children_of(torch.rand(2, 1, 20, 20))
    couplings = model.classes(children, return_couplings=True)[1]
    torch.testing.assert_close(couplings.sum(1), torch.ones(2, J))


NO_WEIGHTS = "w.pt: .*: weights must be dense floating-point tensors with all values in the file"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("conv1.bias"), "have no conv1.bias; they have decoder.0.bias"),
        (lambda state: state.update(extra=torch.ones(1)), "these tensors are unknown: extra"),
        (lambda state: state.update({"conv1.bias": torch.ones(2)}), r"conv1.bias is \(2,\); it should be \(7\)"),
        (lambda state: state.update({"conv1.bias": torch.ones(7).long()}), "of torch.int64: weights must be dense"),
        (lambda state: state.update({"conv1.weight": torch.ones(1, 1, 1, 1).expand(7, 1, 9, 9)}), NO_WEIGHTS),
        (lambda state: state.update({"conv1.weight": torch.ones(7, 1, 9, 9).to_sparse()}), NO_WEIGHTS),
        (lambda state: state.update({"conv1.weight": torch.ones(7, 1, 9, 9, device="meta")}), NO_WEIGHTS),
        (lambda state: state.update({"digitcaps.weight": torch.ones(5, 12, 6, 0)}), NO_WEIGHTS),
        (lambda state: state["conv1.bias"].fill_(float("nan")), "w.pt: .*conv.bias has values that are NaN"),
        (lambda state: state.update({"conv1.weight": torch.ones(7, 1, 3, 9)}), "w.pt: .*do not fit one another"),
        (lambda state: state.update({"primarycaps.conv2d.weight": torch.ones(12, 6, 9, 9)}), "do not fit one another"),
        (lambda state: state.pop("digitcaps.weight"), "not the weights of a known port"),
    ],
    ids=[
        "missing",
        "too much",
        "shape",
        "integers",
        "repeated",
        "sparse",
        "nowhere",
        "empty",
        "not numbers",
        "oblong",
        "unfitting",
        "unknown",
    ],
)
def test_what_does_not_fit_is_named(change, message, tmp_path):
    state = guo()
    change(state)
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(UserError, match=message):
        convert(tmp_path / "w.pt", "pytorch")


def test_routing_over_the_batch_is_refused(tmp_path):
    torch.save({"digit_capsules.W": torch.ones(1, I, J, D, K)}, tmp_path / "w.pt")
    with pytest.raises(UserError, match="averages routing logits over a batch"):
        convert(tmp_path / "w.pt", "pytorch")


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("by", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_no_pickle_is_executed(by, call, tmp_path):
    by({**guo(), "harm": Malicious(tmp_path / "harmed")}, tmp_path / "w.pt")
    code, printed, complaint = call("convert", tmp_path / "w.pt", "--from", "pytorch", "--out", tmp_path / "model")
    assert (code, printed) == (2, "")
    assert "is not a file of tensors: " in complaint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.pt"]


def test_files_of_other_things_are_told_in_words(call, tmp_path):
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "model.pt")
    whole = (tmp_path / "model.pt").read_bytes()
    (tmp_path / "half.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps({"weights": 1}, protocol=4))
    (tmp_path / "empty.pt").touch()
    (tmp_path / "text.pt").write_text("hello world")
    (tmp_path / "words.pt").write_text("the weights of my model")
    foreign = "not a file of tensors: it does not begin like a file of torch.save. Save a state_dict() with that\n"
    for name, message in {
        "list": "holds no state dict, which maps names to tensors\n",
        "model": "it holds torch.nn.modules.linear.Linear. If it is a whole model, load it with its own code and save",
        "half": "not a file of tensors: it is damaged, or holds other objects. Copy it again, or save a state_dict()",
        "pickle": foreign,
        "empty": "not a file of tensors: it is empty\n",
        "text": foreign,
        "words": foreign,
    }.items():
        code, printed, complaint = call(
            "convert", tmp_path / f"{name}.pt", "--from", "pytorch", "--out", tmp_path / "x"
        )
        assert (code, printed, complaint.count("\n")) == (2, "", 1)
        assert f"{name}.pt" in complaint
        assert message in complaint


def test_a_file_that_unpacks_to_much_more_is_not_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("bomb/data.pkl", bytes(1 << 27))
    with pytest.raises(UserError, match=r"bomb\.pt would unpack to 134,217,728 bytes"):
        convert(tmp_path / "bomb.pt", "pytorch")
