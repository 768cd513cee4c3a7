"""Weights of CapsNet-Keras: the converted model answers as a forward pass in Keras's own orders does."""

import h5py
import numpy as np
import pytest
import torch

import torchcaps
from torchcaps.errors import UserError
from torchcaps.exchange.convert import convert
from torchcaps.exchange.keras import read_h5

J, D, K, T, CHANNELS = 5, 6, 4, 3, 7  # and images of 20×20, which make 2×2 places of primary capsules


def weights(colours=2, seed=0):
    """By layer, in the file's order, with Keras's axes: rows, columns, in, out; W (J, I, D, K)."""
    draw = np.random.default_rng(seed).standard_normal
    sizes = [(J * D, 11), (11, 13), (13, 20 * 20 * colours)]
    dense = {
        f"dense_{8 + n}": {"kernel": 0.3 * draw(size), "bias": 0.1 * draw(size[1])} for n, size in enumerate(sizes, 1)
    }
    return {
        "conv1": {"kernel": 0.1 * draw((9, 9, colours, CHANNELS)), "bias": 0.1 * draw(CHANNELS)},
        "primarycap_conv2d": {"kernel": 0.1 * draw((9, 9, CHANNELS, T * K)), "bias": 0.1 * draw(T * K)},
        "digitcaps": {"W": 0.8 * draw((J, 2 * 2 * T, D, K))},
        **dense,
    }


def write(path, layers, whole_model=False, nested=True):
    """As `save_weights`, or `save`, writes it; the decoder a model in the model, or three layers of the whole."""
    with h5py.File(path, "w") as file:
        root = file.create_group("model_weights") if whole_model else file
        groups = {name: [name] for name in layers if not name.startswith("dense")}
        dense = [name for name in layers if name.startswith("dense")]
        groups |= {"decoder": dense} if nested and dense else {name: [name] for name in dense}
        groups["input_1"] = []
        root.attrs["layer_names"] = [name.encode() for name in groups]
        for group, members in groups.items():
            names = [f"{layer}/{part}:0" for layer in members for part in layers[layer]]
            root.create_group(group).attrs["weight_names"] = [name.encode() for name in names]
            for layer in members:
                for part, values in layers[layer].items():
                    root[group][f"{layer}/{part}:0"] = values.astype(np.float32)
    return path


def convolve(images_BHWC, kernel, bias, stride=1):
    windows = np.lib.stride_tricks.sliding_window_view(images_BHWC, kernel.shape[:2], axis=(1, 2))
    return np.einsum("bhwcxy,xyco->bhwo", windows[:, ::stride, ::stride], kernel) + bias


def squash(vectors):
    squares = np.square(vectors).sum(-1, keepdims=True)
    return squares / (1 + squares) / np.sqrt(squares + 1e-7) * vectors


def answer(layers, images_BHWC, iterations=3):
    """Lengths and reconstruction, as CapsNet-Keras computes them."""
    features = np.maximum(convolve(images_BHWC, **layers["conv1"]), 0)
    maps = convolve(features, **layers["primarycap_conv2d"], stride=2)
    children = squash(maps.reshape(len(images_BHWC), -1, K))
    votes = np.einsum("jidk,bik->bjid", layers["digitcaps"]["W"], children)
    logits = np.zeros(votes.shape[:3])
    for iteration in range(iterations):
        couplings = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        parents = squash(np.einsum("bji,bjid->bjd", couplings, votes))
        if iteration < iterations - 1:
            logits = logits + np.einsum("bjd,bjid->bji", parents, votes)
    lengths = np.sqrt(np.square(parents).sum(-1))
    values = (parents * np.eye(J)[lengths.argmax(1)][..., None]).reshape(len(parents), -1)
    dense = [layers[name] for name in layers if name.startswith("dense")]
    for layer in dense[:-1]:
        values = np.maximum(values @ layer["kernel"] + layer["bias"], 0)
    values = values @ dense[-1]["kernel"] + dense[-1]["bias"]
    return lengths, (1 / (1 + np.exp(-values))).reshape(images_BHWC.shape)


@pytest.mark.parametrize(("whole_model", "nested"), [(False, True), (True, True), (False, False), (True, False)])
def test_converted_weights_answer_as_they_did(whole_model, nested, tmp_path):
    layers = weights()
    model, _ = convert(write(tmp_path / "w.h5", layers, whole_model, nested), "keras")
    images = np.random.default_rng(1).random((4, 20, 20, 2))
    lengths, drawn = answer(layers, images)
    assert lengths.std() > 0.02
    with torch.no_grad():
        out = model(torch.from_numpy(images).float().permute(0, 3, 1, 2))
    np.testing.assert_allclose(out.lengths, lengths, atol=1e-5, rtol=0)
    np.testing.assert_allclose(out.reconstruction.permute(0, 2, 3, 1), drawn, atol=1e-5, rtol=0)


def test_the_number_of_iterations_is_what_was_asked_for(tmp_path):
    layers = weights(colours=1)
    path, images = write(tmp_path / "w.h5", layers), np.random.default_rng(1).random((2, 20, 20, 1))
    for iterations in (1, 2):
        found = convert(path, "keras", iterations)[0](torch.from_numpy(images).float().permute(0, 3, 1, 2))
        np.testing.assert_allclose(found.lengths.detach(), answer(layers, images, iterations)[0], atol=1e-5, rtol=0)
    assert abs(answer(layers, images, 1)[0] - answer(layers, images, 2)[0]).max() > 1e-3


def test_the_command_says_what_it_mapped_and_writes_a_model(call, tmp_path):
    path = write(tmp_path / "w.h5", weights(colours=1))
    code, printed, _ = call("convert", path, "--from", "keras", "--out", tmp_path / "model")
    assert code == 0
    assert "digitcaps/W (5, 12, 6, 4) → classes.weight: children from row, column, type to type first" in printed
    assert "dense_11/bias (400,) → decoder.layers.4.bias" in printed
    model = torchcaps.load(tmp_path / "model")
    assert model.image_shape == (1, 20, 20)
    assert model.trained_by == {"converted_from": "CapsNet-Keras"}
    images = torch.rand(2, 1, 20, 20)
    assert torch.equal(model(images).lengths, convert(path, "keras")[0](images).lengths)


def test_weights_without_a_decoder(tmp_path):
    layers = {name: each for name, each in weights(colours=1).items() if not name.startswith("dense")}
    model, _ = convert(write(tmp_path / "w.h5", layers), "keras")
    assert model.decoder is None
    assert model.image_shape == (1, 20, 20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda layers: layers.pop("digitcaps"), "have no digitcaps/W"),
        (lambda layers: layers["conv1"].pop("bias"), "have no conv1/bias"),
        (lambda layers: layers.update(attention={"kernel": np.ones(3)}), "these tensors are unknown: attention/kernel"),
        (lambda layers: layers["conv1"].update(bias=np.ones(3)), r"conv1/bias is \(3,\); it should be \(7\)"),
        (
            lambda layers: layers["digitcaps"].update(W=np.ones((J, 13, D, K))),
            "for 13 capsules of 4; 12 channels do not make",
        ),
        (
            lambda layers: layers["dense_11"].update(kernel=np.ones((13, 9)), bias=np.ones(9)),
            "images of 3×3 .* do not give",
        ),
        (lambda layers: layers["dense_11"].update(kernel=np.ones((13, 7)), bias=np.ones(7)), "7 values, which are not"),
    ],
    ids=["no W", "no bias", "too much", "shape", "capsules", "pixels", "not square"],
)
def test_what_does_not_fit_is_named(change, message, tmp_path):
    layers = weights(colours=1)
    change(layers)
    with pytest.raises(UserError, match=message):
        convert(write(tmp_path / "w.h5", layers), "keras")


def test_other_files_are_told(call, tmp_path):
    (tmp_path / "text.h5").write_text("no weights")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["data"] = np.ones(3)
    with h5py.File(tmp_path / "gone.h5", "w") as file:
        file.attrs["layer_names"] = [b"conv1"]
        file.create_group("conv1").attrs["weight_names"] = [b"conv1/kernel:0"]
    messages = {
        "text": "cannot be read as a weights file of Keras 2: it is not an HDF5 file\n",
        "other": "names no layers",
        "gone": "listed in the file, but",
    }
    for name, message in messages.items():
        code, printed, complaint = call("convert", tmp_path / f"{name}.h5", "--from", "keras", "--out", tmp_path / "x")
        assert (code, printed) == (2, "")
        assert message in complaint
    assert "there is no file" in call("convert", tmp_path / "no.h5", "--from", "keras")[2]
    assert "did you mean 'keras'" in call("convert", tmp_path / "text.h5", "--from", "kears")[2]
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("names", [3, "conv1", [1, 2], [[b"conv1"]], h5py.Empty("f")])
def test_what_is_no_list_of_names_is_told_in_words(names, tmp_path):
    path = tmp_path / "w.h5"
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = names
    with pytest.raises(
        UserError, match=f"^{path} is not a weights file of Keras 2: layer_names is not a list of names$"
    ):
        read_h5(path)
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [b"conv1"]
        file.create_group("conv1").attrs["weight_names"] = names
    with pytest.raises(UserError, match="weight_names of /conv1 is not a list of names$"):
        read_h5(path)


@pytest.mark.parametrize("name", [b"conv2", b"numbers", b"\xff", b""])
def test_a_layer_that_is_not_there_is_told_in_words(name, tmp_path):
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.attrs["layer_names"] = [name]
        file["numbers"] = np.ones(3)
    with pytest.raises(UserError, match="w.h5 is not a weights file of Keras 2: it names a layer .*that is missing$"):
        read_h5(tmp_path / "w.h5")


def test_a_file_cannot_borrow_from_others_or_claim_any_size(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(400))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["kernel"] = np.ones(100, np.float32)
    elsewhere = "is stored in another file, which is not read"
    for name, message in (("external", elsewhere), ("linked", elsewhere), ("huge", "which cannot be a weight")):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.attrs["layer_names"] = [b"conv1"]
            group = file.create_group("conv1")
            group.attrs["weight_names"] = [b"kernel:0"]
            if name == "external":
                group.create_dataset("kernel:0", (100,), "f4", external=[(str(tmp_path / "secret"), 0, 400)])
            elif name == "linked":
                group["kernel:0"] = h5py.ExternalLink("other.h5", "kernel")
            else:
                group.create_dataset("kernel:0", (2**20, 2**20), "f4", chunks=True)
        with pytest.raises(UserError, match=message):
            read_h5(tmp_path / f"{name}.h5")
