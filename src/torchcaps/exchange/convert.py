"""Convert weights of other repositories to models that give the same output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from torchcaps.errors import UserError, did_you_mean
from torchcaps.exchange import keras, ports
from torchcaps.exchange.source_tensors import CapsNetTensors, SourceTensors
from torchcaps.models import CapsNet, save
from torchcaps.models.meta_init import build_on_meta, fill, match_tensors
from torchcaps.models.ported import PortedCapsNet

SOURCES = ("keras", "pytorch")


def convert_file(path: Path, source: str, out: Path | None = None, iterations: int = 3) -> tuple[Path, str, list[str]]:
    """Convert a weights file and save the model.

    Args:
        path: the weights file.
        source: "keras" or "pytorch".
        out: folder to save to; by default named after the file.
        iterations: of routing in the other code, since weights do not contain it.

    Returns:
        The folder, the name of the layout, and one line for each tensor that says what it became.
    """
    if source not in SOURCES:
        raise UserError(f"--from {source}: {did_you_mean(source, SOURCES)}")
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    model, found = convert(path, source, iterations)
    return save(model, Path(path.stem) if out is None else out), found.layout, found.lines


def convert(path: Path, source: str, iterations: int = 3) -> tuple[CapsNet, SourceTensors]:
    """Convert a weights file; returns the model and its source tensors. See `convert_file`."""
    tensors = keras.read_h5(path) if source == "keras" else ports.read_state(path)
    try:
        return _convert(tensors, source, iterations)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _convert(tensors: dict[str, Tensor], source: str, iterations: int) -> tuple[CapsNet, SourceTensors]:
    if source == "keras":
        parts, found = keras.read_parts(tensors)
        return _build(CapsNet, parts, found, {"iterations": iterations}, {}), found
    tensors = {name.removeprefix("capsnet."): tensor for name, tensor in tensors.items()}
    port = ports.find_port(tensors)
    found = SourceTensors(tensors, port.name)
    parts, logits = port.parts(found)
    found.check_all_used()
    options: dict[str, Any] = {**port.options, "iterations": iterations + port.extra_iterations}
    if logits is None or not logits.any():
        kind = PortedCapsNet if port.options else CapsNet
        return _build(kind, parts, found, options, {}), found
    return _build(PortedCapsNet, parts, found, {**options, "logits": True}, {"classes.logits": logits}), found


def _build(
    kind: type[CapsNet], parts: CapsNetTensors, found: SourceTensors, options: dict[str, Any], more: dict[str, Tensor]
) -> CapsNet:
    arguments, state = {**parts.options(found.layout), **options}, {**parts.state(), **more}
    try:
        model = build_on_meta(kind, arguments, len(state))
        state = match_tensors(model, state)
    except (ValueError, ArithmeticError, RuntimeError) as error:
        raise UserError(f"{found.layout}: the tensors do not fit one another: {error}") from error
    model = fill(model, state)
    model.trained_by = {"converted_from": found.layout}
    return model.eval()
