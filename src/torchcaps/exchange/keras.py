"""Weights of CapsNet-Keras (Xifeng Guo), as Keras 2 writes them to HDF5."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.exchange.source_tensors import CapsNetTensors, SourceTensors
from torchcaps.extras import import_extra

LAYOUT = "CapsNet-Keras"
MAX_TENSOR_VALUES = 2**28  # a file of a few bytes may declare any shape


def read_h5(path: Path) -> dict[str, Tensor]:
    """Read the weights, in order, by names such as layer/kernel; from a file of `save_weights` or of `save`."""
    (h5py,) = import_extra("convert", "h5py")
    try:
        if not h5py.is_hdf5(path):
            raise UserError(f"{path} cannot be read as a weights file of Keras 2: it is not an HDF5 file")
        with h5py.File(path, "r") as file:
            root = file.get("model_weights", file)
            if "layer_names" not in root.attrs:
                raise UserError(f"{path} is not a weights file of Keras 2: it names no layers")
            found = {}
            for layer in _names(root, "layer_names"):
                inside = root.get(layer) if isinstance(root, h5py.Group) else None
                if not isinstance(inside, h5py.Group):
                    raise UserError(
                        f"{path} is not a weights file of Keras 2: it names a layer {layer} that is missing"
                    )
                for name in _names(inside, "weight_names"):
                    found[_short_name(name)] = _tensor(h5py, inside.get(name), name, file.filename)
            return found
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be read as a weights file of Keras 2: {error}") from error


def read_parts(tensors: dict[str, Tensor]) -> tuple[CapsNetTensors, SourceTensors]:
    """Convert the weights of a CapsNet.

    Channels come last in Keras: kernels are (rows, columns, in, out), and children are ordered by row, column, type.
    """
    source = SourceTensors(tensors, LAYOUT)
    convolution = "axes to out, in, rows, columns"
    conv = source.take("conv1/kernel", "conv.weight", (None,) * 4, convolution).permute(3, 2, 0, 1)
    conv_bias = source.take("conv1/bias", "conv.bias", (len(conv),))
    primary = source.take("primarycap_conv2d/kernel", "primary.conv.weight", (None, None, len(conv), None), convolution)
    primary = primary.permute(3, 2, 0, 1)
    primary_bias = source.take("primarycap_conv2d/bias", "primary.conv.bias", (len(primary),))
    votes = source.take("digitcaps/W", "classes.weight", (None,) * 4, "children from row, column, type to type first")
    J, I, D, K = votes.shape
    types = len(primary) // K
    grid = math.isqrt(I // types) if types else 0
    if grid * grid * types != I or types * K != len(primary):
        raise UserError(
            f"{LAYOUT}: digitcaps/W is for {I} capsules of {K}; {len(primary)} channels do not make that number"
        )
    votes = votes.unflatten(1, (grid, grid, types)).permute(3, 1, 2, 0, 4, 5).flatten(0, 2)
    decoder = _decoder(source, J * D, conv.shape[1])
    source.check_all_used()
    return CapsNetTensors((conv, conv_bias), (primary, primary_bias), votes, decoder), source


def _decoder(source: SourceTensors, inputs: int, colours: int) -> list[tuple[Tensor, Tensor]]:
    """The decoder's dense layers in the order of the file; the first number in their names varies."""
    kernels = [name for name in source.names() if name.startswith("dense") and name.endswith("/kernel")]
    layers = []
    for index, name in enumerate(name.removesuffix("/kernel") for name in kernels):
        last, to = index == len(kernels) - 1, f"decoder.layers.{2 * index}"
        how = "pixels from row, column, channel to channel first" if last and colours > 1 else "transposed"
        weight = source.take(f"{name}/kernel", f"{to}.weight", (inputs, None), how).T
        bias = source.take(f"{name}/bias", f"{to}.bias", (len(weight),))
        if last:
            weight, bias = (_channels_first(each, colours) for each in (weight, bias))
        layers.append((weight, bias))
        inputs = len(weight)
    return layers


def _channels_first(pixels: Tensor, colours: int) -> Tensor:
    """(H·W·C, …) → (C·H·W, …)"""
    if len(pixels) % colours:
        raise UserError(f"{LAYOUT}: the decoder draws {len(pixels)} values, not a multiple of {colours} channels")
    return pixels.unflatten(0, (-1, colours)).transpose(0, 1).flatten(0, 1)


def _tensor(h5py: Any, found: Any, name: str, home: str) -> Tensor:
    if not isinstance(found, h5py.Dataset):
        raise UserError(f"{home}: {name} is listed in the file, but missing")
    if found.external or found.is_virtual or found.file.filename != home:
        raise UserError(f"{home}: {name} is stored in another file, which is not read")
    if found.size > MAX_TENSOR_VALUES or found.dtype.kind != "f":
        raise UserError(f"{home}: {name} is {found.shape} of {found.dtype}, which cannot be a weight")
    return torch.from_numpy(found[()].astype("float32"))


def _names(group: Any, attribute: str) -> list[str]:
    """The names in an attribute; an empty list may have any type."""
    values = group.attrs.get(attribute)
    if (
        not isinstance(values, np.ndarray)
        or values.ndim != 1
        or not all(isinstance(each, bytes | str) for each in values)
    ):
        what = attribute if group.name == "/" else f"{attribute} of {group.name}"
        raise UserError(f"{group.file.filename} is not a weights file of Keras 2: {what} is not a list of names")
    return [_to_text(each) for each in values]


def _to_text(value: bytes | str) -> str:
    """Decode a name; bytes that are not UTF-8 become question marks, which no valid name has."""
    return (value if isinstance(value, bytes) else value.encode("utf-8", "replace")).decode("utf-8", "replace")


def _short_name(name: str) -> str:
    """Shorten layer/kernel:0 and model/layer/kernel:0 to layer/kernel."""
    return "/".join(name.split(":")[0].split("/")[-2:])
