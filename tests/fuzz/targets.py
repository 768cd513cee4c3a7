"""One target for each parser: a file goes in, and out comes a UserError that names it or something that holds."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import seeds
import torch
from safetensors import safe_open
from safetensors.torch import load as load_bytes
from safetensors.torch import save
from torch import Tensor

from torchcaps.data import read_idx, read_label
from torchcaps.data.datasets.affnist import read_affnist
from torchcaps.data.datasets.cifar import RECORD, TEST_FILES, TRAIN_FILES, read_cifar10
from torchcaps.data.datasets.smallnorb import read_matrix
from torchcaps.data.images import decode, load_image
from torchcaps.data.listing import list_folder
from torchcaps.data.mask_folder import read_picture
from torchcaps.data.tar_shards import list_shards
from torchcaps.errors import UnreadableImage, UserError
from torchcaps.exchange.convert import convert
from torchcaps.io.npy import read_npy
from torchcaps.models import load
from torchcaps.train.checkpoint import LAST, load_checkpoint, save_checkpoint
from torchcaps.train.recipe import load_recipe
from torchcaps.train.state import State


class Target(NamedTuple):
    """What is fuzzed.

    file    the name that the parser sees
    check   reads the file at a path and asserts what is true of anything it can return
    tokens  words of the format, to be put where they may not belong
    """

    name: str
    file: str
    seeds: Callable[[], list[bytes]]
    check: Callable[[Path], None]
    tokens: tuple[bytes, ...] = ()

    def run(self, data: bytes, folder: Path) -> bool:
        """Whether the file was taken for good; anything but that or a proper refusal is raised."""
        path = folder / self.file
        path.write_bytes(seeds.unwrapped(self.name, data))
        try:
            self.check(path)
        except UserError as error:
            message = str(error)
            assert message.isprintable(), message
            assert path.stem in message, f"the file is not named: {message}"
            return False
        return True


def _idx(path: Path) -> None:
    _numbers(read_idx(path), path, torch.uint8)


def _norb(path: Path) -> None:
    _numbers(read_matrix(path), path, None)


def _numbers(tensor: Tensor, path: Path, dtype: torch.dtype | None) -> None:
    assert dtype in (None, tensor.dtype)
    assert tensor.numel() * tensor.element_size() <= max(100 * path.stat().st_size, 1 << 26)
    tensor.sum()  # every value can be read


def _archive(path: Path) -> None:
    train, test = read_cifar10(path)
    assert len(train) >= len(TRAIN_FILES)
    assert len(test) >= 1
    assert train.image_shape == (3, 32, 32)
    assert 0 <= int(train.targets.min()) <= int(train.targets.max()) < 10
    assert os.listdir(path.parent) == [path.name]


def _records(path: Path) -> None:
    for name in TRAIN_FILES + TEST_FILES[:0]:
        if not (path.parent / name).exists():
            (path.parent / name).write_bytes(bytes(RECORD))
    _, test = read_cifar10(path.parent)
    assert len(test) * RECORD == path.stat().st_size


def _mat(path: Path) -> None:
    data = read_affnist(path)
    assert data.image_shape == (1, 40, 40)
    assert data.num_classes == 10


def _recipe(path: Path) -> None:
    recipe = load_recipe(str(path))
    again = path.with_name("again.yaml")
    again.write_text(recipe.to_yaml(), encoding="utf-8")
    assert load_recipe(str(again)) == recipe


def _image(path: Path) -> None:
    for shape in ((1, 5, 4), (3, 8, 8)):
        image = load_image(path, shape)
        assert (tuple(image.shape), image.dtype) == (shape, torch.uint8)


def _mask(path: Path) -> None:
    assert int(read_label(path, 2, positive=1).max()) <= 1
    assert read_picture(path, 1).shape[0] == 1


def _array(path: Path) -> None:
    array = read_npy(path)
    assert array.nbytes < path.stat().st_size
    assert array.dtype.isnative
    _mask(path)


def _table(path: Path) -> None:
    for name in ("a.png", "b.png"):
        (path.parent / name).touch()
    (listing,) = list_folder(path).values()
    assert len(listing.paths) == len(listing.targets) > 0
    assert all(each.exists() for each in listing.paths)
    assert len(set(listing.class_names)) == len(listing.class_names) > 1


def _shard(path: Path) -> None:
    parts, contents = list_shards(str(path))
    (listing,) = parts.values()
    assert len(listing.paths) == len(listing.targets) > 0
    assert 0 <= int(listing.targets.min()) <= int(listing.targets.max()) < len(listing.class_names)
    for image in listing.paths:
        content = contents.read(image)
        assert len(content) <= path.stat().st_size
        with suppress(UnreadableImage):
            assert decode(image, (5, 4), 3, content).shape[1:] == (5, 4)


def _model(path: Path) -> None:
    model = load(path)
    saved = load_bytes(path.read_bytes())
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == {k: v.shape for k, v in saved.items()}
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
    assert len(model.class_names) == model.num_classes


def _port(path: Path) -> None:
    model, foreign = convert(path, "pytorch")
    assert foreign.lines
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
    assert model.parameter_count() * 4 < max(100 * path.stat().st_size, 1 << 26)


def _state() -> State:
    model = seeds.small_models()[0]
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return State(model, optimizer, torch.Generator(), epoch=1, step=3, totals={"loss": 1.5}, history=[{"loss": 2.0}])


def _checkpoint_seeds() -> list[bytes]:
    """As it is, and in the format before, which had no checksum: what is behind that is to be reached as well."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / LAST
        save_checkpoint(_state(), path.parent)
        file = path.read_bytes()
        with safe_open(path, framework="pt") as opened:
            metadata, tensors = opened.metadata(), {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    old = save(tensors, {"format": "1", "state": metadata["state"]})
    return [seeds.PLAIN + file, seeds.PLAIN + old, seeds.PACKED + seeds.in_two(old)]


def _checkpoint(path: Path) -> None:
    state, before = _state(), torch.get_rng_state()
    try:
        load_checkpoint(state, path.parent)
    finally:
        torch.set_rng_state(before)
    assert isinstance(state.epoch, int)
    json.dumps([state.totals, state.history, state.best])


_YAML = b"&a *a << ? : - [ ] { } !!int !!binary !!set ~ .inf .nan 0x 1e999 2001-99-99 --- ... | > name train data model"
_JSON = (
    b'[ ] { } " \\\\ null NaN 1e999 99999999999999999999 arguments architecture CNN UNet CapsNet depth channels format'
)
_NPY = b"descr fortran_order shape True False ( ) , '|O' '<f8' '>i4' -1 99999999999 1e3 {} None"
_PICKLE = b"state_dict conv1.weight digitcaps.weight torch._utils _rebuild_tensor_v2 os system R . t ( K PK"

_TAR = b"ustar 0001.jpg 0001.cls 0002.json .cls .png ../ / label 7777777777 SCHILY.realsize GNU.sparse.size=9 size=99"

TARGETS = {
    target.name: target
    for target in (
        Target("idx", "images.idx", seeds.idx, _idx),
        Target("cifar archive", "cifar.tar.gz", seeds.cifar_archive, _archive, (b"../", b"/", b"ustar", b"\0" * 512)),
        Target("cifar records", "test_batch.bin", seeds.cifar_records, _records),
        Target("smallnorb", "dat.mat", seeds.norb, _norb),
        Target("affnist", "test.mat", seeds.mat, _mat, (b"affNISTdata", b"image", b"label_int")),
        Target("recipe", "odd.yaml", seeds.recipe, _recipe, tuple(_YAML.split())),
        Target("image", "photo.png", seeds.picture, _image),
        Target("mask", "mask.png", seeds.picture, _mask),
        Target("array", "array.npy", seeds.array, _array, tuple(_NPY.split())),
        Target(
            "table", "labels.csv", seeds.table, _table, (b"file", b"label", b";", b'"', b"\r", b"\n", b"a.png", b"../")
        ),
        Target("shard", "shard.tar", seeds.shard, _shard, tuple(_TAR.split())),
        Target("model", "weights.safetensors", seeds.model, _model, tuple(_JSON.split())),
        Target("port", "foreign-weights.pt", seeds.port, _port, tuple(_PICKLE.split())),
        Target("checkpoint", LAST, _checkpoint_seeds, _checkpoint, tuple(_JSON.split())),
    )
}
