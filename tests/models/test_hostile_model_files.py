"""Model files that are made to do harm: refused by name, before what they ask for is allocated."""

from __future__ import annotations

import json
import os
import struct

import pytest
import torch
from safetensors.torch import save, save_file

from torchcaps.errors import UserError
from torchcaps.io.tensors import MAX_CHARACTERS, MAX_DEPTH, Unreadable, read_json
from torchcaps.models import create_model, files, load, shipped_models
from torchcaps.models.files import make_config, write_model


@pytest.fixture
def write(small, tmp_path):
    """write(config) saves a good model's weights with the text that describes them changed."""

    def saved(text=None, tensors=None, **changes):
        text = json.dumps(make_config(small) | changes) if text is None else text
        path = tmp_path / "odd.safetensors"
        save_file(small.state_dict() if tensors is None else tensors, path, {"torchcaps": text})
        return path

    return saved


def refused(path, message):
    with pytest.raises(UserError, match=f"odd.safetensors.*{message}") as caught:
        load(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "not JSON"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), f"nested more than {MAX_DEPTH} deep"),
        ("9" * 5000, "not JSON"),
        ('{"architecture": NaN}', "NaN is not a number"),
        (" " * (MAX_CHARACTERS + 1), "characters of JSON"),
        ("{", "not JSON"),
    ],
)
def test_text_that_is_not_a_description_is_refused(write, text, message):
    refused(write(text), f"cannot be read as a model: .*{message}")


def test_what_is_nested_as_deep_as_allowed_is_read():
    text = "[" * (MAX_DEPTH - 1) + "1" + "]" * (MAX_DEPTH - 1)
    assert json.dumps(read_json(text)) == text
    with pytest.raises(Unreadable):
        read_json(f"[[{text}]]")


@pytest.mark.parametrize("architecture", [["CapsNet"], {}, None, 1, "CapsNet\n\x1b[2J"])
def test_an_architecture_that_is_no_name_is_refused(write, architecture):
    refused(write(architecture=architecture), "holds a .* no such model")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": 10**15}, "channels is 1000000000000000"),
        ({"channels": 1 << 20}, "size mismatch"),
        ({"num_classes": 10**15, "class_names": None}, "num_classes is"),
        ({"image_shape": [1, 1 << 20, 1 << 20]}, "does not fit|cannot be built"),
        ({"image_shape": [1, -5, 14]}, "image_shape"),
        ({"image_shape": []}, "image_shape"),
        ({"image_shape": "no"}, "cannot be built"),
        ({"mean": [1e308]}, "mean is 1e.308"),
        ({"kernel": 0}, "cannot be built|size mismatch"),
        ({"stride": 0}, "cannot be built"),
        ({"types": 3.5}, "cannot be built|does not fit"),
        ({"routing": {"a": [1]}}, "cannot be built"),
        ({"class_names": 5}, "cannot be built"),
        ({"self": 5}, "cannot be built"),
    ],
)
def test_a_description_of_what_is_not_in_the_file_is_not_followed(small, write, change, message):
    refused(write(arguments={**make_config(small)["arguments"], **change}), message)


def test_a_model_is_only_made_once_the_weights_are_known_to_fit(small, write, monkeypatch):
    class Watched(type(small)):
        def __init__(self, *args, **kwargs):
            assert torch.empty(0).is_meta
            super().__init__(*args, **kwargs)

    monkeypatch.setitem(files.CLASSES, "CapsNet", Watched)
    refused(write(arguments={**make_config(small)["arguments"], "channels": 50_000}), "size mismatch")


def test_a_million_layers_are_not_built(small, write):
    arguments = {"image_shape": [1, 14, 14], "num_classes": 3, "channels": [1] * 1_000_000}
    refused(write(architecture="CNN", arguments=arguments), "twice as many as the file")
    refused(write(architecture="UNet", arguments={"depth": 1 << 20, "channels": 1}), "depth must be at most 12")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(small, write, value):
    tensors = {name: tensor.clone() for name, tensor in small.state_dict().items()}
    tensors["classes.weight"].view(-1)[3] = value
    refused(
        write(tensors=tensors),
        "classes.weight has values that are NaN or infinite, so the run that saved it had diverged",
    )


def test_counts_of_batches_survive_half_precision(tmp_path):
    model = create_model("efficient_capsnet", image_shape=(1, 28, 28), num_classes=3)
    counts = {name: each for name, each in model.state_dict().items() if "num_batches" in name}
    for count in counts.values():
        count.fill_(100_001)
    write_model(model, tmp_path, torch.float16)
    assert {name: int(load(tmp_path).state_dict()[name]) for name in counts} == dict.fromkeys(counts, 100_001)
    for name in shipped_models():  # of which some were written when such counts became infinite
        assert all(tensor.isfinite().all() for tensor in load(name).state_dict().values())


def header(text: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        header(b"{}", 2**63),
        header(b"{}", 2**64 - 1),
        header(b"[" * 10_000),
        header(b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}') + b"1234",
        header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}') + b"1234",
        header(b'{"a":{"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]}}'),
        header(b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}') + b"1234",
        save({"a": torch.zeros(3)})[:-1],
    ],
)
def test_a_damaged_file_is_refused(tmp_path, content):
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    refused(path, "cannot be read as a model")


def test_names_that_no_file_has_are_refused(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    for name in ("x" * 5000, "a\0b", tmp_path / "model.safetensors"):
        with pytest.raises(UserError):
            load(name)
