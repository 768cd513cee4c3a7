"""Weights of other repositories to models that answer as those did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from torchcaps.errors import UserError, did_you_mean
from torchcaps.exchange import keras, ports
from torchcaps.exchange.foreign import Foreign, Parts
from torchcaps.models import CapsNet, save
from torchcaps.models.meta_init import build_on_meta, fill, match_tensors
from torchcaps.models.ported import PortedCapsNet

SOURCES = ("keras", "pytorch")


def convert_file(path: Path, source: str, out: Path | None = None, iterations: int = 3) -> tuple[Path, str, list[str]]:
    """Write a model to `out`; where it lies, whose layout it was, and for each tensor a line on what it became."""
    if source not in SOURCES:
        raise UserError(f"--from {source}: {did_you_mean(source, SOURCES)}")
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    model, foreign = convert(path, source, iterations)
    return save(model, Path(path.stem) if out is None else out), foreign.layout, foreign.lines


def convert(path: Path, source: str, iterations: int = 3) -> tuple[CapsNet, Foreign]:
    """The model, and what became of each tensor.

    iterations  as the other code was told; weights do not say
    """
    tensors = keras.read_h5(path) if source == "keras" else ports.read_state(path)
    try:
        return _convert(tensors, source, iterations)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _convert(tensors: dict[str, Tensor], source: str, iterations: int) -> tuple[CapsNet, Foreign]:
    if source == "keras":
        parts, foreign = keras.parts_of(tensors)
        return _made(CapsNet, parts, foreign, {"iterations": iterations}, {}), foreign
    tensors = {name.removeprefix("capsnet."): tensor for name, tensor in tensors.items()}
    port = ports.port_of(tensors)
    foreign = Foreign(tensors, port.name)
    parts, logits = port.parts(foreign)
    foreign.done()
    departs: dict[str, Any] = {**port.departs, "iterations": iterations + port.more}
    if logits is None or not logits.any():
        kind = PortedCapsNet if port.departs else CapsNet
        return _made(kind, parts, foreign, departs, {}), foreign
    return _made(PortedCapsNet, parts, foreign, {**departs, "logits": True}, {"classes.logits": logits}), foreign


def _made(
    kind: type[CapsNet], parts: Parts, foreign: Foreign, options: dict[str, Any], more: dict[str, Tensor]
) -> CapsNet:
    arguments, state = {**parts.options(foreign.layout), **options}, {**parts.state(), **more}
    try:
        model = build_on_meta(kind, arguments, len(state))
        state = match_tensors(model, state)
    except (ValueError, ArithmeticError, RuntimeError) as error:
        raise UserError(f"{foreign.layout}: the tensors do not fit one another: {error}") from error
    model = fill(model, state)
    model.trained_by = {"converted_from": foreign.layout}
    return model.eval()
