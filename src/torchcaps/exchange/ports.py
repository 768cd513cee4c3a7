"""Weights of PyTorch ports of CapsNet, which are recognised by the names of their tensors."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.errors import UserError, did_you_mean
from torchcaps.exchange.source_tensors import CapsNetTensors, SourceTensors
from torchcaps.io.limits import max_unpacked_bytes

WRAPPERS = ("state_dict", "model_state_dict", "model")  # where a training script may have put the tensors


class Port(NamedTuple):
    """A port of CapsNet.

    Attributes:
        name: of the repository.
        marker: name of a tensor that only this port has.
        parts: converts its tensors to this package's axes; also returns learned logits, if any.
        options: arguments of PortedCapsNet, where the port departs from the paper.
        extra_iterations: iterations of routing beyond the number that its code is given.
    """

    name: str
    marker: str
    parts: Callable[[SourceTensors], tuple[CapsNetTensors, Tensor | None]]
    options: dict[str, Any]
    extra_iterations: int = 0


def read_state(path: Path) -> dict[str, Tensor]:
    """Read a state dict without running code in the pickle."""
    try:
        if zipfile.is_zipfile(path):
            _check_unpacked(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles that torch has not written: they are refused anyway
            found = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # for damaged files and refused pickles, torch raises errors of many kinds
        raise UserError(f"{path} is not a file of tensors: {_reason(path, error)}") from error
    for wrapper in WRAPPERS:
        if isinstance(found, dict) and isinstance(found.get(wrapper), dict):
            found = found[wrapper]
    if not isinstance(found, dict) or not found or not all(isinstance(each, Tensor) for each in found.values()):
        raise UserError(f"{path} holds no state dict, which maps names to tensors")
    return {str(name).removeprefix("module."): tensor.detach() for name, tensor in found.items()}


def _check_unpacked(path: Path) -> None:
    """Refuse compressed archives that unpack to much more than their size; torch.save does not compress."""
    with zipfile.ZipFile(path) as packed:
        size = sum(part.file_size for part in packed.infolist())
    if size > max_unpacked_bytes(path.stat().st_size):
        raise UserError(
            f"{path} would unpack to {size:,} bytes: torch.save does not compress; save a state_dict() with it"
        )


def _reason(path: Path, error: Exception) -> str:
    """Explain an error of torch.load, whose messages are about bytes, or about how to run the code in a pickle."""
    if refused := re.search(r"GLOBAL (\S+)", str(error)):
        return f"it holds {refused[1]}. If it is a whole model, load it with its own code and save its state_dict()"
    with open(path, "rb") as file:
        start = file.read(4)
    if not start:
        return "it is empty"
    if not start.startswith((b"PK\x03\x04", b"\x80\x02")):
        return "it does not begin like a file of torch.save. Save a state_dict() with that"
    return "it is damaged, or holds other objects. Copy it again, or save a state_dict() where it can be loaded"


def find_port(tensors: dict[str, Tensor]) -> Port:
    """Find the port by the names of its tensors."""
    if "digit_capsules.W" in tensors:
        raise UserError(
            "these are weights of higgsfield's tutorial, which averages routing logits over a batch: its output for an "
            "image depends on the others in the batch, and no model here does that. Train again: torchcaps train "
            "mnist-paper"
        )
    for port in PORTS:
        if port.marker in tensors:
            return port
    known = ", ".join(f"{port.name} ({port.marker})" for port in PORTS)
    near = did_you_mean(PORTS[0].marker, tensors) if tensors else ""
    raise UserError(f"these are not the weights of a known port: {known}; {near}")


def _bielski(source: SourceTensors) -> tuple[CapsNetTensors, Tensor | None]:
    """Weights (I, K, J·D), learned logits (I, J), a separate network for the decoder."""
    conv, primary = _convolution(source, "conv1", "conv"), _convolution(source, "primaryCaps.conv", "primary.conv")
    logits = source.take("digitCaps.routing_module.b", "classes.logits", (None, None))
    I, J = logits.shape
    votes = source.take("digitCaps.weights", "classes.weight", (I, None, None), "axes to I, J, D, K")
    if votes.shape[2] % J:
        raise UserError(
            f"{source.layout}: digitCaps.weights have {votes.shape[2]} columns, not a multiple of {J} classes"
        )
    decoder = _dense(source, [f"reconstruction_net.fc{index}" for index in (1, 2, 3)])
    return CapsNetTensors(conv, primary, votes.unflatten(2, (J, -1)).permute(0, 2, 3, 1), decoder), logits


def _guo(source: SourceTensors) -> tuple[CapsNetTensors, Tensor | None]:
    """Weights (J, I, D, K)."""
    conv, primary = _convolution(source, "conv1", "conv"), _convolution(source, "primarycaps.conv2d", "primary.conv")
    votes = source.take("digitcaps.weight", "classes.weight", (None,) * 4, "axes to I, J, D, K").transpose(0, 1)
    return CapsNetTensors(conv, primary, votes, _dense(source, [f"decoder.{index}" for index in (0, 2, 4)])), None


def _gram(source: SourceTensors) -> tuple[CapsNetTensors, Tensor | None]:
    """Weights (J, I, K, D), and a convolution for each dimension of the primary capsules.

    Old versions have learned logits, and a decoder whose input is the pose of the chosen class alone.
    """
    conv = _convolution(source, "conv1", "conv")
    votes = source.take("digit_capsules.route_weights", "classes.weight", (None,) * 4, "axes to I, J, D, K")
    votes = votes.permute(1, 0, 3, 2)
    I, J, D, K = votes.shape
    each = [_convolution(source, f"primary_capsules.capsules.{k}", "primary.conv", f"dimension {k}") for k in range(K)]
    if len({weight.shape for weight, _ in each}) > 1:
        raise UserError(f"{source.layout}: the convolutions of the primary capsules differ in shape")
    primary = tuple(torch.stack(some, dim=1).flatten(0, 1) for some in zip(*each))
    logits = None
    if "digit_capsules.route_logits" in source:
        logits = source.take("digit_capsules.route_logits", "classes.logits", (J, 1, I, 1, 1))[:, 0, :, 0, 0].T
    decoder = _dense(source, [f"decoder.{index}" for index in (0, 2, 4)])
    if decoder and decoder[0][0].shape[1] == D:  # masked capsules are zero, so that all classes can share the weights
        decoder[0] = decoder[0][0].repeat(1, J), decoder[0][1]
    return CapsNetTensors(conv, primary, votes, decoder), logits  # type: ignore[arg-type]


PORTS = (
    Port("adambielski/CapsNet-pytorch", "digitCaps.weights", _bielski, {}, extra_iterations=1),
    Port("XifengGuo/CapsNet-Pytorch", "digitcaps.weight", _guo, {"order": "memory"}),
    Port("gram-ai/capsule-networks", "digit_capsules.route_weights", _gram, {"compete": "children"}),
)


def _convolution(source: SourceTensors, name: str, to: str, how: str = "") -> tuple[Tensor, Tensor]:
    weight = source.take(f"{name}.weight", f"{to}.weight", (None,) * 4, how)
    return weight, source.take(f"{name}.bias", f"{to}.bias", (len(weight),), how)


def _dense(source: SourceTensors, names: list[str]) -> list[tuple[Tensor, Tensor]]:
    """The layers of a decoder; none if the first is missing."""
    layers: list[tuple[Tensor, Tensor]] = []
    if f"{names[0]}.weight" not in source:
        return layers
    for index, name in enumerate(names):
        to, inputs = f"decoder.layers.{2 * index}", len(layers[-1][1]) if layers else None
        weight = source.take(f"{name}.weight", f"{to}.weight", (None, inputs))
        layers.append((weight, source.take(f"{name}.bias", f"{to}.bias", (len(weight),))))
    return layers
