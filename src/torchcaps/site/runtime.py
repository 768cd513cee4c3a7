"""ONNX Runtime for browsers: fetched by npm once, checked, and kept in the user's cache folder."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from torchcaps.errors import UserError
from torchcaps.exchange.extras import import_extra
from torchcaps.io.atomic import atomic_write

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
INTEGRITY = "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
ARCHIVE = f"{PACKAGE}-{VERSION}.tgz"  # as npm calls it
TIMEOUT_SECONDS = 600
BY_HAND = f"run npm pack {PACKAGE}@{VERSION} on another machine and give --runtime the file"
# Where each file lies in the package, and its name in the folder: some hosts do not know that .mjs is JavaScript.
FILES = {
    "dist/ort.wasm.bundle.min.mjs": "ort.wasm.bundle.min.js",
    "dist/ort-wasm-simd-threaded.wasm": "ort-wasm-simd-threaded.wasm",
}
LICENSES = ("LICENSE", "ThirdPartyNotices.txt")  # of ONNX Runtime; only its package for Python has them


def write_runtime(folder: Path, package: Path | None = None) -> None:
    """Write the files of the runtime, and its licences.

    Args:
        folder: where to write; it exists.
        package: a folder with the unpacked package, or its archive; by default npm fetches the archive once.
    """
    if package is not None and package.is_dir():
        contents = {name: _read(package / inside) for inside, name in FILES.items()}
    else:
        contents = _unpack(fetch_package() if package is None else package)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (onnxruntime,) = import_extra("export", "onnxruntime")
    for name in LICENSES:
        shutil.copyfile(Path(onnxruntime.__path__[0]) / name, folder / name)


def kept_package() -> Path:
    """Where the archive of the package is kept, in the user's cache folder."""
    import platformdirs

    return platformdirs.user_cache_path("torchcaps", appauthor=False) / PACKAGE / ARCHIVE


def fetch_package() -> Path:
    """The archive of the package; npm fetches it if it is not in the cache."""
    kept = kept_package()
    if kept.is_file():
        return kept
    npm = shutil.which("npm")
    if npm is None:
        raise UserError(
            f"the runtime for browsers is fetched by npm, which is not installed; install Node.js, or {BY_HAND}"
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as work:
        command = [npm, "pack", f"{PACKAGE}@{VERSION}", "--silent", "--pack-destination", work]
        try:
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            raise UserError(f"npm took more than {TIMEOUT_SECONDS} seconds to fetch {PACKAGE}; {BY_HAND}") from None
        got = Path(work) / ARCHIVE
        if done.returncode or not got.is_file():
            reason = (done.stderr.strip().splitlines() or ["it gives no reason"])[-1]
            raise UserError(f"npm could not fetch {PACKAGE} {VERSION} ({reason}): check the network, or {BY_HAND}")
        check_integrity(got)
        with atomic_write(kept) as temporary:
            shutil.copyfile(got, temporary)
    return kept


def check_integrity(archive: Path) -> None:
    """Raise a UserError unless the archive is the published one."""
    digest = hashlib.sha512(_read(archive)).digest()
    if f"sha512-{base64.b64encode(digest).decode()}" != INTEGRITY:
        raise UserError(
            f"{archive} is not {PACKAGE} {VERSION} as published: its checksum differs; delete it and try again"
        )


def _unpack(archive: Path) -> dict[str, bytes]:
    """The files of a package's archive, by their new names."""
    check_integrity(archive)
    contents = {}
    with tarfile.open(archive, "r:gz") as packed:
        for inside, name in FILES.items():
            content = packed.extractfile(f"package/{inside}")
            assert content is not None  # the checksum is that of an archive which has it
            contents[name] = content.read()
    return contents


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"--runtime: cannot read {path}: {error.strerror}; give the package {PACKAGE} {VERSION}, packed or unpacked"
        ) from error
