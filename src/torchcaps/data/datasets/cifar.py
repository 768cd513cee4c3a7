"""CIFAR-10 in its binary version: records of one label byte and 3×32×32 pixels; no pickle."""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath

import torch

from torchcaps.data.dataset import Dataset
from torchcaps.errors import UserError
from torchcaps.io.limits import Readable, open_untrusted, read_up_to, size_of

ARCHIVE = "cifar-10-binary.tar.gz"
FOLDER = "cifar-10-batches-bin"
TRAIN_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST_FILES = ("test_batch.bin",)
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
RECORD = 1 + 3 * 32 * 32
MAX_RECORDS = 10_000  # in a file
MAX_BYTES = 1 << 28  # of the unpacked archive; the original has 184 million


def find_cifar10(root: Path) -> Path | None:
    """Find the folder with the six files, or else the archive, at or in this path."""
    if root.is_file():
        return root
    folders = [folder for folder in (root, root / FOLDER) if (folder / TRAIN_FILES[0]).is_file()]
    archive = [root / ARCHIVE] if (root / ARCHIVE).is_file() else []
    return next(iter(folders + archive), None)


def read_cifar10(location: Path) -> tuple[Dataset, Dataset]:
    """Read the 50,000 training and 10,000 test images (N, 3, 32, 32), from the folder or from the archive."""
    contents = _read_folder(location) if location.is_dir() else _read_archive(location)
    return _parse(contents, TRAIN_FILES, location), _parse(contents, TEST_FILES, location)


def _read_folder(folder: Path) -> dict[str, bytes]:
    contents = {}
    for name in TRAIN_FILES + TEST_FILES:
        _check_size(name, folder, size_of(folder / name, f"fetch {ARCHIVE} again"))
        try:
            contents[name] = (folder / name).read_bytes()
        except OSError as error:
            raise UserError(f"cannot read {folder / name}: {error.strerror or error}") from error
    return contents


def _read_archive(archive: Path) -> dict[str, bytes]:
    # Only the six known files are read, into memory; nothing is extracted to the disk.
    wanted = {f"{FOLDER}/{name}": name for name in TRAIN_FILES + TEST_FILES}
    contents: dict[str, bytes] = {}
    with open_untrusted(archive, f"fetch {ARCHIVE} again") as (file, _):
        try:
            # As a stream: a member that points back is then an error, not an endless loop.
            with tarfile.open(fileobj=_Bounded(file), mode="r|") as tar:  # type: ignore[call-overload]
                for member in tar:
                    _check_member(member, archive)
                    name = wanted.get(str(PurePosixPath(member.name)))
                    if name and (content := tar.extractfile(member)):
                        _check_size(name, archive, member.size)
                        contents[name] = content.read()
                    if len(contents) == len(wanted):
                        break
        except (UserError, OSError):
            raise
        except Exception as error:
            # A damaged header can make the parser raise nearly anything (TarError, ValueError, OverflowError, ...).
            raise UserError(f"{archive} is a damaged archive ({error}): fetch {ARCHIVE} again") from error
    return contents


class _Bounded:
    """A file that raises an error after MAX_BYTES."""

    def __init__(self, file: Readable) -> None:
        self.file, self.left = file, MAX_BYTES

    def read(self, size: int) -> bytes:
        data = bytes(read_up_to(self.file, size))
        self.left -= len(data)
        if self.left < 0:
            raise tarfile.ReadError(f"more than {MAX_BYTES:,} bytes come out of it")
        return data


def _check_member(member: tarfile.TarInfo, archive: Path) -> None:
    """Refuse paths and types of member that the published archive does not have."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise UserError(f"{archive} has a file outside of its folder, {member.name}: fetch {ARCHIVE} again")
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
        raise UserError(f"{archive} has a link or a device in it, {member.name}: fetch {ARCHIVE} again")


def _check_size(name: str, location: Path, size: int) -> None:
    """Check, before reading, that a file has a whole number of records, and not too many."""
    if not 0 < size <= MAX_RECORDS * RECORD or size % RECORD:
        raise UserError(
            f"{name} in {location} has {size:,} bytes, which is not a whole number of {RECORD}-byte records, 1 to "
            f"{MAX_RECORDS:,}: fetch {ARCHIVE} again"
        )


def _parse(contents: dict[str, bytes], names: tuple[str, ...], location: Path) -> Dataset:
    records = []
    for name in names:
        if name not in contents:
            raise UserError(f"{location} does not contain {FOLDER}/{name}: fetch {ARCHIVE} again")
        records.append(torch.frombuffer(bytearray(contents[name]), dtype=torch.uint8).view(-1, RECORD))
        if int(records[-1][:, 0].max()) >= len(CLASS_NAMES):
            raise UserError(f"{name} in {location} has the label {int(records[-1][:, 0].max())}; CIFAR-10 has 0 to 9")
    table = torch.cat(records)
    return Dataset(table[:, 1:].reshape(-1, 3, 32, 32), table[:, 0].long(), CLASS_NAMES)
