"""CIFAR-10 in its binary version: records of one label byte and 3×32×32 pixels, no pickle."""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path

import torch

from torchcaps.data.dataset import Dataset
from torchcaps.errors import UserError

ARCHIVE = "cifar-10-binary.tar.gz"
FOLDER = "cifar-10-batches-bin"
TRAIN_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST_FILES = ("test_batch.bin",)
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
RECORD = 1 + 3 * 32 * 32


def find_cifar10(root: Path) -> Path | None:
    """The folder with the six files, or else the archive, in or at this path."""
    if root.is_file():
        return root
    folders = [folder for folder in (root, root / FOLDER) if (folder / TRAIN_FILES[0]).is_file()]
    archive = [root / ARCHIVE] if (root / ARCHIVE).is_file() else []
    return next(iter(folders + archive), None)


def read_cifar10(location: Path) -> tuple[Dataset, Dataset]:
    """Training and test images from the folder or straight from the archive.

    returns  50,000 and 10,000 images (N, 3, 32, 32)
    """
    contents = _read_folder(location) if location.is_dir() else _read_archive(location)
    return _parse(contents, TRAIN_FILES, location), _parse(contents, TEST_FILES, location)


def _read_folder(folder: Path) -> dict[str, bytes]:
    contents = {}
    for name in TRAIN_FILES + TEST_FILES:
        try:
            contents[name] = (folder / name).read_bytes()
        except OSError as error:
            raise UserError(f"cannot read {folder / name}: {error.strerror or error}") from error
    return contents


def _read_archive(archive: Path) -> dict[str, bytes]:
    # Only the six known names are read, into memory: nothing in the archive can be written anywhere.
    wanted = {f"{FOLDER}/{name}": name for name in TRAIN_FILES + TEST_FILES}
    contents = {}
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                name = wanted.get(member.name.removeprefix("./"))
                file = tar.extractfile(member) if name and member.isfile() else None
                if name and file:
                    contents[name] = file.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise UserError(f"{archive} is a damaged archive ({error}): delete it and fetch it again") from error
    return contents


def _parse(contents: dict[str, bytes], names: tuple[str, ...], location: Path) -> Dataset:
    records = []
    for name in names:
        if name not in contents:
            raise UserError(f"{location} does not contain {FOLDER}/{name}: fetch {ARCHIVE} again")
        data = contents[name]
        if not data or len(data) % RECORD:
            raise UserError(
                f"{name} in {location} has {len(data):,} bytes, which is not a whole number of {RECORD}-byte records: "
                f"fetch {ARCHIVE} again"
            )
        records.append(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, RECORD))
        if int(records[-1][:, 0].max()) >= len(CLASS_NAMES):
            raise UserError(f"{name} in {location} has the label {int(records[-1][:, 0].max())}; CIFAR-10 has 0 to 9")
    table = torch.cat(records)
    return Dataset(table[:, 1:].reshape(-1, 3, 32, 32), table[:, 0].long(), CLASS_NAMES)
