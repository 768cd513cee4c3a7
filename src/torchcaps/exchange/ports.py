"""Weights of PyTorch ports of CapsNet, each by the names that it gives its tensors."""

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
from torchcaps.exchange.foreign import Foreign, Parts
from torchcaps.io.limits import max_unpacked_bytes

WRAPPERS = ("state_dict", "model_state_dict", "model")  # where a training script may have put the tensors


class Port(NamedTuple):
    """A layout, and how the network that it is of departs from the paper.

    sign    a tensor that no other layout has
    parts   its tensors in our orders
    departs arguments of PortedCapsNet
    more    iterations beyond the number that its code is given
    """

    name: str
    sign: str
    parts: Callable[[Foreign], tuple[Parts, Tensor | None]]
    departs: dict[str, Any]
    more: int = 0


def read_state(path: Path) -> dict[str, Tensor]:
    """A state dict, read without running what a pickle may hold."""
    try:
        if zipfile.is_zipfile(path):
            _check_unpacked(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles that torch has not written: they are refused anyway
            found = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # of damaged files and refused pickles alike: any kind, by the torch at hand
        raise UserError(f"{path} is not a file of tensors, and nothing else is read: {_why(path, error)}") from error
    for wrapper in WRAPPERS:
        if isinstance(found, dict) and isinstance(found.get(wrapper), dict):
            found = found[wrapper]
    if not isinstance(found, dict) or not found or not all(isinstance(each, Tensor) for each in found.values()):
        raise UserError(f"{path} holds no state dict: names with a tensor each")
    return {str(name).removeprefix("module."): tensor.detach() for name, tensor in found.items()}


def _check_unpacked(path: Path) -> None:
    """torch.save packs nothing: a file whose parts become much more than itself is none of its own."""
    with zipfile.ZipFile(path) as packed:
        size = sum(part.file_size for part in packed.infolist())
    if size > max_unpacked_bytes(path.stat().st_size):
        raise UserError(
            f"{path} would unpack to {size:,} bytes, which no weights do: save a state_dict() by torch.save"
        )


def _why(path: Path, error: Exception) -> str:
    """In words: what torch says is about a byte, or about how to read what should not be read."""
    if refused := re.search(r"GLOBAL (\S+)", str(error)):
        return f"it holds {refused[1]}. If it is a whole model, load it where its code is and save its state_dict()"
    with open(path, "rb") as file:
        start = file.read(4)
    if not start:
        return "it is empty"
    if not start.startswith((b"PK\x03\x04", b"\x80\x02")):
        return "it does not begin as what torch.save writes. Save a state_dict() with that"
    return "it is damaged, or holds other things. Copy it once more, or save a state_dict() where it can be loaded"


def port_of(tensors: dict[str, Tensor]) -> Port:
    """The port whose names these are."""
    if "digit_capsules.W" in tensors:
        raise UserError(
            "these are weights of higgsfield's tutorial, which routes by the mean over a batch: what it answers for an "
            "image depends on those beside it, and no model here does that. Train again: torchcaps train mnist-paper"
        )
    for port in PORTS:
        if port.sign in tensors:
            return port
    known = ", ".join(f"{port.name} ({port.sign})" for port in PORTS)
    near = did_you_mean(PORTS[0].sign, tensors) if tensors else ""
    raise UserError(f"these are weights of no port that is known: {known}; {near}")


def _bielski(foreign: Foreign) -> tuple[Parts, Tensor | None]:
    """Weights (I, K, J·D), learned logits (I, J), the decoder in a network of its own."""
    conv, primary = _convolution(foreign, "conv1", "conv"), _convolution(foreign, "primaryCaps.conv", "primary.conv")
    logits = foreign.take("digitCaps.routing_module.b", "classes.logits", (None, None))
    I, J = logits.shape
    votes = foreign.take("digitCaps.weights", "classes.weight", (I, None, None), "axes to I, J, D, K")
    if votes.shape[2] % J:
        raise UserError(f"{foreign.layout}: digitCaps.weights make {votes.shape[2]} numbers for {J} classes")
    decoder = _dense(foreign, [f"reconstruction_net.fc{index}" for index in (1, 2, 3)])
    return Parts(conv, primary, votes.unflatten(2, (J, -1)).permute(0, 2, 3, 1), decoder), logits


def _guo(foreign: Foreign) -> tuple[Parts, Tensor | None]:
    """Weights (J, I, D, K)."""
    conv, primary = _convolution(foreign, "conv1", "conv"), _convolution(foreign, "primarycaps.conv2d", "primary.conv")
    votes = foreign.take("digitcaps.weight", "classes.weight", (None,) * 4, "axes to I, J, D, K").transpose(0, 1)
    return Parts(conv, primary, votes, _dense(foreign, [f"decoder.{index}" for index in (0, 2, 4)])), None


def _gram(foreign: Foreign) -> tuple[Parts, Tensor | None]:
    """Weights (J, I, K, D); a convolution for each dimension of the primary capsules; of old versions learned logits,
    and a decoder that is given the one pose alone."""
    conv = _convolution(foreign, "conv1", "conv")
    votes = foreign.take("digit_capsules.route_weights", "classes.weight", (None,) * 4, "axes to I, J, D, K")
    votes = votes.permute(1, 0, 3, 2)
    I, J, D, K = votes.shape
    each = [_convolution(foreign, f"primary_capsules.capsules.{k}", "primary.conv", f"dimension {k}") for k in range(K)]
    if len({weight.shape for weight, _ in each}) > 1:
        raise UserError(f"{foreign.layout}: the convolutions of the primary capsules differ in shape")
    primary = tuple(torch.stack(some, dim=1).flatten(0, 1) for some in zip(*each))
    logits = None
    if "digit_capsules.route_logits" in foreign:
        logits = foreign.take("digit_capsules.route_logits", "classes.logits", (J, 1, I, 1, 1))[:, 0, :, 0, 0].T
    decoder = _dense(foreign, [f"decoder.{index}" for index in (0, 2, 4)])
    if decoder and decoder[0][0].shape[1] == D:  # what is masked is zero, so that all classes may share the weights
        decoder[0] = decoder[0][0].repeat(1, J), decoder[0][1]
    return Parts(conv, primary, votes, decoder), logits  # type: ignore[arg-type]


PORTS = (
    Port("adambielski/CapsNet-pytorch", "digitCaps.weights", _bielski, {}, more=1),
    Port("XifengGuo/CapsNet-Pytorch", "digitcaps.weight", _guo, {"order": "memory"}),
    Port("gram-ai/capsule-networks", "digit_capsules.route_weights", _gram, {"compete": "children"}),
)


def _convolution(foreign: Foreign, name: str, to: str, how: str = "") -> tuple[Tensor, Tensor]:
    weight = foreign.take(f"{name}.weight", f"{to}.weight", (None,) * 4, how)
    return weight, foreign.take(f"{name}.bias", f"{to}.bias", (len(weight),), how)


def _dense(foreign: Foreign, names: list[str]) -> list[tuple[Tensor, Tensor]]:
    """Layers one above the other; none if the first is not there."""
    layers: list[tuple[Tensor, Tensor]] = []
    if f"{names[0]}.weight" not in foreign:
        return layers
    for index, name in enumerate(names):
        to, inputs = f"decoder.layers.{2 * index}", len(layers[-1][1]) if layers else None
        weight = foreign.take(f"{name}.weight", f"{to}.weight", (None, inputs))
        layers.append((weight, foreign.take(f"{name}.bias", f"{to}.bias", (len(weight),))))
    return layers
