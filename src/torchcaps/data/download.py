"""The folder of data sets on this machine, and the download of missing files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from torchcaps.errors import UserError

TIMEOUT_SECONDS = 30
_offline = ContextVar("offline", default=False)


@contextmanager
def no_downloads() -> Iterator[None]:
    """Inside the block, a missing file raises a UserError instead of being downloaded."""
    token = _offline.set(True)
    try:
        yield
    finally:
        _offline.reset(token)


@dataclass(frozen=True)
class Remote:
    """A published file: its name, its checksum and the URLs of folders that have it, best first."""

    name: str
    md5: str
    mirrors: tuple[str, ...]


_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FASHION = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
)
_CIFAR10 = (
    "https://www.cs.toronto.edu/~kriz/",
    "https://cave.cs.toronto.edu/kriz/",
    "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/",
)
_SMALLNORB = ("https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/",)  # no other host of the original files is known

REMOTES: dict[str, tuple[Remote, ...]] = {
    "mnist": (
        Remote("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", _MNIST),
        Remote("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", _MNIST),
        Remote("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", _MNIST),
        Remote("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", _MNIST),
    ),
    "fashion-mnist": (
        Remote("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", _FASHION),
        Remote("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", _FASHION),
        Remote("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", _FASHION),
        Remote("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", _FASHION),
    ),
    "cifar10": (Remote("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", _CIFAR10),),
    "smallnorb": (  # in the order of smallnorb.FILES
        Remote("smallnorb-5x46789x9x18x6x2x96x96-training-dat.mat.gz", "66054832f9accfe74a0f4c36a75bc0a2", _SMALLNORB),
        Remote("smallnorb-5x46789x9x18x6x2x96x96-training-cat.mat.gz", "23c8b86101fbf0904a000b43d3ed2fd9", _SMALLNORB),
        Remote("smallnorb-5x46789x9x18x6x2x96x96-training-info.mat.gz", "51dee1210a742582ff607dfd94e332e3", _SMALLNORB),
        Remote("smallnorb-5x01235x9x18x6x2x96x96-testing-dat.mat.gz", "e4ad715691ed5a3a5f138751a4ceb071", _SMALLNORB),
        Remote("smallnorb-5x01235x9x18x6x2x96x96-testing-cat.mat.gz", "5aa791cd7e6016cf957ce9bdb93b8603", _SMALLNORB),
        Remote("smallnorb-5x01235x9x18x6x2x96x96-testing-info.mat.gz", "a9454f3864d7fd4bb3ea7fc3eb84924e", _SMALLNORB),
    ),
}


def dataset_folder(name: str) -> Path:
    """Return the folder of a data set: $TORCHCAPS_DATA/<name>, or one in the user's cache folder."""
    if chosen := os.environ.get("TORCHCAPS_DATA"):
        return Path(chosen).expanduser() / name
    import platformdirs

    return platformdirs.user_cache_path("torchcaps", appauthor=False) / name


def fetch(remote: Remote, folder: Path) -> Path:
    """Download a file into the folder, from the first mirror that delivers the right checksum."""
    if _offline.get():
        raise UserError(f"{remote.name} is not in {folder}")
    import pooch

    _make_writable(folder)
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=TIMEOUT_SECONDS)
    failures = []
    for mirror in remote.mirrors:
        try:
            # pooch writes to a temporary file beside the target and moves it only once the checksum is right
            got = pooch.retrieve(
                mirror + remote.name,
                known_hash=f"md5:{remote.md5}",
                fname=remote.name,
                path=folder,
                downloader=downloader,
            )
            return Path(got)
        except OSError as error:  # requests' exceptions are OSErrors too
            failures.append(f"{mirror} failed ({_brief(error)})")
        except ValueError:
            failures.append(f"{mirror} delivered a file with the wrong checksum")
    raise UserError(
        f"cannot download {remote.name}: {'; '.join(failures)}. Check the network, or put the file into {folder} "
        "by hand (or set TORCHCAPS_DATA to a folder that holds the data sets)"
    )


def _make_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # os.access is not reliable on Windows and network drives, so try
        probe = folder / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"cannot write to the data folder {folder} ({error.strerror or error}): "
            "set TORCHCAPS_DATA to a folder you may write to"
        ) from error


def _brief(error: Exception) -> str:
    """Return the type and first line of an error: connection errors have pages of nested text."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
