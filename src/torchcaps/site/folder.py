"""`torchcaps serve --static`: write the explorer as a folder that any static host can serve."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torchcaps._version import __version__
from torchcaps.errors import UserError
from torchcaps.explain.placement import POSE_SWEEP
from torchcaps.explain.receptive_field import receptive_field
from torchcaps.explain.require import has_placement
from torchcaps.explain.sweep import SWEEP
from torchcaps.io.atomic import flush
from torchcaps.models import CapsuleModel
from torchcaps.serve import requests
from torchcaps.serve.explorer import Explorer
from torchcaps.serve.served_models import ServedModel, load_models
from torchcaps.serve.shapes import describe_layer
from torchcaps.site.programs import EncodePoses, Program, programs_of, write_program
from torchcaps.site.runtime import write_runtime

BROWSER = Path(__file__).parent / "browser"
PAGE = Path(requests.__file__).parent / "static"
TRANSPORT = "transport.js"  # the one module of the page that is another one in a folder
MARK = "explorer.json"  # lists the files that this command wrote
API_LINK = '    <p><a href="docs">API documentation</a></p>\n'  # there is no API without a server
HEAD = '  <meta charset="utf-8">\n'
POLICY = (  # WebAssembly is compiled, so scripts may do that, but not evaluate text
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'"
)


class Site(NamedTuple):
    """A folder with the explorer.

    Attributes:
        path: of the folder.
        models: names of the models in it.
        megabytes: of all its files.
        difference: the largest between what its programs and the models return.
    """

    path: Path
    models: list[str]
    megabytes: float
    difference: float


def write_site(
    name: str, folder: Path, runtime: Path | None = None, announce: Callable[[str], None] = lambda text: None
) -> Site:
    """Write the explorer with a model, and those that are served with it, to a folder.

    Args:
        name: a shipped model, or the path of a saved one.
        folder: is made, or replaced if an explorer was written there before; another folder must be empty.
        runtime: the package onnxruntime-web, as an archive or a folder; by default npm fetches it.
        announce: is told what is done next, as it may take a minute for each model.
    """
    check_folder(folder)
    models = load_models(name)
    with replacing(folder) as temporary:
        (temporary / "runtime").mkdir()
        write_runtime(temporary / "runtime", runtime)  # first, because exports take minutes
        _write_page(temporary)
        difference = _write_models(temporary / "models", models, announce)
        write_json(temporary / MARK, {"torchcaps": __version__, "files": files_in(temporary)})
    size = sum((folder / name).stat().st_size for name in files_in(folder))
    return Site(folder, [served.name for served in models], size / 1e6, difference)


def check_folder(folder: Path) -> None:
    """Raise a UserError unless a folder is missing, empty, or has only what this command wrote."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"--static {folder}: that is a file; give a folder")
    try:
        known = {MARK, *json.loads((folder / MARK).read_text(encoding="utf-8"))["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        known = set()
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    other = next((name for name in found if name not in known), None)
    if other is not None:
        raise UserError(
            f"--static {folder}: it has other files, such as {other}, which would be lost; give a new or empty folder"
        )


def files_in(folder: Path) -> list[str]:
    """Paths of all files below a folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder` that takes its place if the block ends well, and is removed if it does not."""
    folder = folder.absolute()
    temporary, old = (folder.with_name(f".{folder.name}.{os.getpid()}{end}") for end in ("", ".old"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
        for name in files_in(temporary):
            flush(temporary / name)
        if folder.exists():
            os.replace(folder, old)
        os.replace(temporary, folder)
    except OSError as error:
        raise UserError(f"--static {folder}: it cannot be written: {error.strerror or error}") from error
    finally:
        if old.exists() and not folder.exists():
            os.replace(old, folder)
        for each in (temporary, old):
            shutil.rmtree(each, ignore_errors=True)


def _write_page(folder: Path) -> None:
    shutil.copytree(PAGE, folder / "static", ignore=shutil.ignore_patterns("index.html"))
    shutil.copytree(BROWSER, folder / "answers", ignore=shutil.ignore_patterns(TRANSPORT))
    shutil.copyfile(BROWSER / TRANSPORT, folder / "static" / TRANSPORT)
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    policy = f'  <meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    page = page.replace(HEAD, HEAD + policy).replace(API_LINK, "")
    (folder / "index.html").write_text(page, encoding="utf-8")


def _write_models(folder: Path, models: Sequence[ServedModel], announce: Callable[[str], None]) -> float:
    described, differences = {}, []
    for index, served in enumerate(models):
        announce(f"exporting {served.name}")
        own = folder / str(index)  # a name of a user's run may hold letters that a host does not accept
        own.mkdir(parents=True)
        try:
            programs = programs_of(served.model)
            differences += [write_program(each, own / f"{name}.onnx") for name, each in programs.items()]
        except UserError as error:
            raise UserError(f"{served.name} cannot be written for a static host: {error}") from error
        (own / "examples.bin").write_bytes(served.examples.images.contiguous().float().numpy().tobytes())
        sizes = {name: (own / f"{name}.onnx").stat().st_size for name in programs}
        described[served.name] = {"folder": str(index), "sizes": sizes, **_describe(served, programs["encode"])}
    (folder / "models.json").write_text(Explorer(models).models().model_dump_json(by_alias=True), encoding="utf-8")
    write_json(folder / "programs.json", {"programs": described, **_constants()})
    write_json(folder / "shapes.json", describe_layer())
    return max(differences)


def _describe(served: ServedModel, encode: Program) -> dict[str, Any]:
    """What the browser needs to prepare images for a model and to read its outputs, beside `/api/model`."""
    model, trained_by = served.model, served.model.trained_by
    box, _, original_side = served.style
    found: dict[str, Any] = {
        "outputs": list(encode.outputs),
        "style": {"box": box, "original_side": original_side},
        "resize_to": list(model.resize_to),
        "multi_label": bool(trained_by.get("multi_label")),
        "labels_each": trained_by.get("labels_each"),
    }
    if isinstance(encode, EncodePoses) and has_placement(model):
        views = model.lattice.poses().linear.float()
        found["views"] = model.search_linear.tolist()
        found["lattice_views"] = {"poses": views.tolist(), "shape": list(model.lattice.shape)}
    elif isinstance(model, CapsuleModel):
        found["fields"] = [receptive_field(model, axis)._asdict() for axis in (0, 1)]
    return found


def _constants() -> dict[str, Any]:
    return {"sweep": list(SWEEP), "pose_sweep": POSE_SWEEP, "transform_ranges": requests.TRANSFORM_RANGES}


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file for the browser."""
    path.write_text(json.dumps(value, allow_nan=False), encoding="utf-8")
