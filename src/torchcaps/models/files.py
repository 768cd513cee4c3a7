"""Models on disk: a folder with config.json and model.safetensors, or the latter alone, which holds the config too."""

from __future__ import annotations

import json
import os
import re
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcaps._version import __version__
from torchcaps.devices import parse_device
from torchcaps.errors import UserError, did_you_mean
from torchcaps.io.atomic import write_text
from torchcaps.io.tensors import Unreadable, checksum, read_json, read_tensors, write_tensors
from torchcaps.models.base import ImageModel
from torchcaps.models.meta_init import build_on_meta, check_arguments, fill, match_tensors
from torchcaps.models.registry import CLASSES
from torchcaps.models.savable import savable_tensors, unwrapped
from torchcaps.registry import plugins_of

WEIGHTS = "model.safetensors"
FORMAT = "1"
FOREIGN = (".pt", ".pth", ".ckpt", ".bin", ".h5", ".hdf5")  # endings of weights of other code
WEIGHTS_DIR = Path(str(resources.files("torchcaps"))) / "weights"


def save(model: ImageModel, folder: str | os.PathLike[str]) -> Path:
    """Write a model to a folder, with everything that `load` needs.

    What `load` could not build again is refused, and nothing is written: a class that is not registered; attributes,
    and tensors that are not saved, changed after the model was built; replaced layers or methods; forward hooks.
    Wrappers of `torch.compile` are left out; parametrised, normalised and pruned weights are saved as the layers use
    them.

    Args:
        model: any model; the class of a model of your own must be registered, see `register_model`.
        folder: is created; files of an earlier model in it are replaced.

    Returns:
        The folder.
    """
    model = unwrapped(model)
    tensors = savable_tensors(model, _config_text(model))
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise UserError(f"cannot save a model to {path}: that is a file, give a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
        return write_model(model, path, tensors=tensors)
    except OSError as error:
        raise UserError(f"cannot save a model to {path}: {error.strerror or error}") from error


def check_savable(model: ImageModel) -> None:
    """Raise the UserError of `save` without writing anything, for use before training."""
    savable_tensors(unwrapped(model), _config_text(model))


def load(
    name_or_path: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    *,
    hub: dict[str, Any] | None = None,
) -> ImageModel:
    """Load a saved model in evaluation mode.

    Args:
        name_or_path: a name of `shipped_models()`, a run folder, a model folder, a .safetensors file, or the id of a
            repository on the Hugging Face Hub.
        device: to load it to.
        hub: options of `hf_hub_download`, such as revision.
    """
    place = parse_device(device)
    model = _read(_find(os.fspath(name_or_path), hub or {}))
    return model.to(place).eval()


def weights_folder(name_or_path: str | os.PathLike[str]) -> Path:
    """The folder of the weights that `load` would read; other files about the model are beside them."""
    return _find(os.fspath(name_or_path), {}).parent


def shipped_models() -> list[str]:
    """List the trained models that come with the package."""
    return sorted(entry.name for entry in WEIGHTS_DIR.iterdir() if (entry / WEIGHTS).is_file())


def file_beside(name_or_path: str | os.PathLike[str], file: str) -> Path | None:
    """A file in the folder of a saved model's weights, such as card.json; None if there is none."""
    path = _find(os.fspath(name_or_path), {}).parent / file
    return path if path.is_file() else None


def write_model(
    model: ImageModel,
    folder: Path,
    dtype: torch.dtype | None = None,
    tensors: dict[str, Tensor] | None = None,
) -> Path:
    """Write config.json and model.safetensors, each atomically; the weights carry a checksum. `save` also checks them.

    Args:
        model: to write.
        folder: must exist.
        dtype: store the weights in another precision, to save space; `load` converts them to float32.
        tensors: by default those of `model.state_dict()`.
    """
    text = _config_text(model)
    tensors = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous()
        for name, tensor in (model.state_dict() if tensors is None else tensors).items()
    }
    write_tensors(folder / WEIGHTS, tensors, {"format": "pt", "torchcaps": text})
    write_text(folder / "config.json", text + "\n")
    return folder


def make_config(model: ImageModel) -> dict[str, Any]:
    """The content of config.json: everything needed to build the model again and to prepare its input."""
    return {
        "format": FORMAT,
        "torchcaps_version": __version__,
        "architecture": type(model).__name__,
        "arguments": {**model.arguments, "class_names": list(model.class_names)},
        "preprocessing": {"image_shape": model.image_shape, "resize_to": model.resize_to, "scale": 1 / 255},
        "parameters": model.parameter_count(),
        "trained_by": model.trained_by,
        "none_below": model.none_below,
        **({"task": model.task} if model.task != type(model).task else {}),
        **({"plugins": plugins} if (plugins := _plugins(model)) else {}),
    }


def _plugins(model: ImageModel) -> list[str]:
    """The plugins that registered the model's class, its backbone, its task, its data or a routing of its layers."""
    data = model.trained_by.get("data")
    routings = {str(getattr(module, "routing", "")) for module in model.modules()}
    found = plugins_of("model", [type(model).__name__]) | plugins_of("task", [model.task])
    found |= plugins_of("routing", routings) | plugins_of("backbone", [str(model.arguments.get("backbone"))])
    if isinstance(data, dict):
        found |= plugins_of("data set", [str(data.get("source"))])
    return sorted(found)


def _config_text(model: ImageModel) -> str:
    try:
        return json.dumps(make_config(model), indent=2, ensure_ascii=False, default=_to_json)
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f"save: the arguments of {type(model).__name__} must be numbers, text, or lists and dicts of them, so that "
            f"load can build it again: {error}"
        ) from error


def _find(name: str, hub: dict[str, Any]) -> Path:
    """Find the weights file of a name or path."""
    path = Path(name)
    if path.suffix in FOREIGN and os.path.isfile(path):
        source = "keras" if path.suffix in (".h5", ".hdf5") else "pytorch"
        raise UserError(
            f"{path} is not a .safetensors file of torchcaps: weights of other code are read by "
            f"`torchcaps convert {path} --from {source}`"
        )
    for candidate in (path, path / WEIGHTS, path / "model" / WEIGHTS):
        if os.path.isfile(candidate):  # unlike Path.is_file, accepts names of any length
            return candidate
    if os.path.isdir(path):
        unfinished = (path / "recipe.yaml").is_file()
        raise UserError(
            f"{path} is a run that has not finished: finish it with `torchcaps train --resume {path}`"
            if unfinished
            else f"{path} is not a saved model: it holds no {WEIGHTS}"
        )
    if os.path.isfile(WEIGHTS_DIR / name / WEIGHTS):
        return WEIGHTS_DIR / name / WEIGHTS
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not os.path.isdir(path.parent):
        return _from_hub(name, hub)
    known = shipped_models()
    hint = did_you_mean(name, known) if known else "give a run folder or a .safetensors file"
    raise UserError(f"no model {name!r}: it is neither a file, a folder nor a shipped model; {hint}")


def _from_hub(name: str, options: dict[str, Any]) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(hf_hub_download(name, WEIGHTS, **options))
    except (RepositoryNotFoundError, LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise UserError(
            f"no model {name!r}: there is no such folder here, and the hub gave none ({type(error).__name__}); "
            "check the name, or the network"
        ) from error


def _read(path: Path) -> ImageModel:
    try:
        metadata, tensors = read_tensors(path)
        config = read_json(metadata.get("torchcaps", "null"))
        if metadata.get("checksum", known := checksum(tensors, metadata)) != known:
            raise Unreadable("its content has changed since it was written (the checksum differs)")
    except Unreadable as error:
        raise UserError(f"{path} cannot be read as a model: {error}") from error
    if not isinstance(config, dict) or "architecture" not in config:
        raise UserError(f"{path} was not saved by torchcaps: it does not name the model's architecture")
    if config.get("format") != FORMAT:
        raise UserError(f"{path} has format {config.get('format')!r}, this version reads {FORMAT!r}: upgrade torchcaps")
    architecture, needed = str(config["architecture"]), _plugins_needed(config)
    if architecture not in CLASSES:
        own = "if it is one of your own, import the module that registers it"
        raise UserError(
            f"{path} holds a {architecture!r}: this version of torchcaps has no such model; {needed or own}"
        )
    kind = CLASSES[architecture]
    try:
        arguments = check_arguments(config.get("arguments"))
        model = build_on_meta(kind, arguments, len(tensors))
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RuntimeError) as error:
        why = "; ".join(filter(None, (str(error), needed)))
        raise UserError(f"{path} describes a {kind.__name__} that cannot be built: {why}") from error
    try:
        tensors = match_tensors(model, tensors)
    except (Unreadable, RuntimeError) as error:
        raise UserError(f"{path} does not fit the model it describes: {error}") from error
    model = fill(model, tensors)
    trained_by = config.get("trained_by")
    model.trained_by = trained_by if isinstance(trained_by, dict) else {}
    if isinstance(config.get("task"), str):
        model.task = config["task"]
    none_below = config.get("none_below")
    model.none_below = float(none_below) if isinstance(none_below, (int, float)) else None
    return model


def _plugins_needed(config: dict[str, Any]) -> str:
    """What to do about the plugins that a model names. They are never imported because a file names them."""
    plugins = config.get("plugins")
    names = [each for each in plugins if isinstance(each, str)] if isinstance(plugins, list) else []
    if not names:
        return ""
    options = " ".join(f"--plugin {name}" for name in names)
    return f"it needs the plugin {', '.join(names)}: pass {options}, or import it first"


def _to_json(value: Any) -> Any:
    """Convert NumPy numbers and arrays, and tensors, to what JSON can hold."""
    return value.tolist()
