"""A recipe: everything that decides a result, in one validated YAML file."""

from __future__ import annotations

import logging
import reprlib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from torchcaps.data import SOURCES
from torchcaps.errors import UserError, did_you_mean
from torchcaps.io.limits import size_of
from torchcaps.io.strict_yaml import BadYaml, read_yaml
from torchcaps.models.registry import MODELS, accepts_option
from torchcaps.plugins import absolute, load_plugins

log = logging.getLogger("torchcaps")

NonNegative = Annotated[float, Field(ge=0)]
MAX_BYTES = 1 << 18  # of a recipe
RECIPES_DIR = Path(str(resources.files("torchcaps"))) / "recipes"
MAX_PROBLEMS = 5  # named in one message


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSection(Section):
    """Where images come from; the fields are the arguments of `torchcaps.data.load_data`."""

    source: str = "digits"
    path: str | None = None
    image_size: int | tuple[int, int] | None = None
    channels: Literal[1, 3] | None = None
    validation: float = Field(0.1, ge=0)  # a fraction below 1, or a count; 0 holds nothing out, for a final refit
    test: NonNegative | str = 0.2  # where the source has no test split; with masks also file names, or last:6
    split_seed: int = 0
    limit: int | None = Field(None, ge=1)
    per_class: int | None = Field(None, ge=1)
    positive: int | None = Field(None, ge=0)  # of masks: the value of the foreground
    num_classes: int | None = Field(None, ge=2)  # of masks, where some class ids may be missing
    storage: Literal["auto", "memory", "cache", "stream"] = "auto"  # of files and shards; results never depend on it
    workers: int | None = Field(None, ge=1)  # threads that decode and read; null: one for each core, at most 8
    cache_dir: str | None = None  # folder of image caches; null: in the data folder
    on_error: Literal["stop", "skip"] = "stop"  # what to do about unreadable images


class AugmentSection(Section):
    """Random changes to training images and their masks; the fields are the arguments of `torchcaps.data.augment`, and
    of `torchcaps.data.mix`."""

    shift: int = Field(0, ge=0)  # pixels
    rotate: float = Field(0.0, ge=0)  # degrees
    shear: float = Field(0.0, ge=0)
    scale: float = Field(0.0, ge=0, lt=1)
    elastic: float = Field(0.0, ge=0)  # pixels
    share: float = Field(1.0, ge=0, le=1)  # of the images that are rotated, sheared, scaled and bent
    erase: int = Field(0, ge=0)  # pixels
    crop: int = Field(0, ge=0)  # side of a random crop; tests use the centre crop, or with masks the whole image
    flip: bool = False
    flip_vertical: bool = False
    turn: bool = False  # by multiples of 90 degrees
    brightness: float = Field(0.0, ge=0)  # of an image in [0, 1]
    contrast: float = Field(0.0, ge=0, le=1)
    noise: float = Field(0.0, ge=0)
    resized_crop: float = Field(0.0, ge=0, le=1)  # least share of the area of a random window, resized to the image
    saturation: float = Field(0.0, ge=0, le=1)
    hue: float = Field(0.0, ge=0, le=0.5)  # of the colour circle
    randaugment: int = Field(0, ge=0, le=10)  # operations for each image
    magnitude: float = Field(9.0, ge=0, le=10)  # of those operations
    mixup: float = Field(0.0, ge=0)  # α of Beta(α, α), by which two images and their targets are mixed
    cutmix: float = Field(0.0, ge=0)  # α for a rectangle of another image, pasted in; masks follow


class ModelSection(BaseModel):
    """A name of `torchcaps.list_models()`; all other settings here are options of that model."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "capsnet"

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class LossSection(Section):
    """Weights of the terms. By default capsules: margin 1, reconstruction 0.392 / values of an image (0.0005 at 28×28);
    pose capsules: also disagreement 0.1, and absence 0.5 with model.negatives;
    matrix capsules: spread 1; CNNs: cross-entropy 1; masks: cross-entropy 1, and reconstruction 1 with a decoder;
    synthesis: bce 1, l1 100, features 0."""

    margin: float | None = Field(None, ge=0)
    squared_lengths: bool = False  # of margin: compare squared lengths with squared margins, with a plain hinge
    spread: float | None = Field(None, ge=0)
    reconstruction: float | None = Field(None, ge=0)
    cross_entropy: float | None = Field(None, ge=0)
    disagreement: float | None = Field(None, ge=0)  # of pose capsules: disagreement of views about the pose
    absence: float | None = Field(None, ge=0)  # of pose capsules: presence in images of nothing
    dice: float | None = Field(None, ge=0)  # of masks
    positive_weight: float = Field(1.0, gt=0)  # of masks: weight of a foreground pixel, against 1 of the background
    class_weights: bool = False  # give rare classes more weight
    bce: float | None = Field(None, ge=0)  # of synthesis: adversarial loss by cross-entropy
    least_squares: float | None = Field(None, ge=0)  # of synthesis: adversarial loss by least squares
    l1: float | None = Field(None, ge=0)  # of synthesis: distance from the real image
    features: float | None = Field(None, ge=0)  # of synthesis: distance in the discriminator's features
    label_smoothing: float = Field(0.1, ge=0, lt=0.5)  # of the discriminator's target for real images


class OptimSection(Section):
    name: Literal["adam", "adamw", "muon"] = "adam"
    lr: float = Field(1e-3, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    warmup_steps: int = Field(0, ge=0)
    schedule: Literal["constant", "exponential", "linear", "cosine"] = "constant"
    decay_rate: float = Field(0.96, gt=0, le=1)  # exponential: lr × decay_rate every decay_steps
    decay_steps: int = Field(2000, ge=1)
    final: float = Field(0.0, ge=0, le=1)  # linear, cosine: lr at the end, as a share of lr
    clip: float | None = Field(None, gt=0)  # largest gradient norm
    sam_rho: float = Field(0.0, ge=0)  # norm of the perturbation of sharpness-aware minimisation; 0: without it


class DiscriminatorSection(Section):
    """Of synthesis: the options of `torchcaps.models.Discriminator`."""

    channels: int = Field(64, ge=1)
    depth: int = Field(3, ge=1)  # downsampling layers: 3 for patches of 70×70, 2 for 34×34, 1 for 16×16
    spectral_norm: bool = True
    instance_norm: bool = False
    lr: float = Field(1.0, gt=0)  # its learning rate, as a multiple of the generator's


class TransferSection(Section):
    """Training that starts from weights, part by part. A part is a name of a layer or of layers, such as backbone."""

    weights: str | None = None  # a saved model to start from: its name, folder or file; `torchcaps train --from`
    freeze: tuple[str, ...] = ()  # parts that do not learn at first
    epochs: int | None = Field(None, ge=1)  # number of epochs; null: never
    gradual: int = Field(0, ge=0)  # then thaw one layer of a part every so many epochs, the last first; 0: all at once
    lr: dict[str, Annotated[float, Field(gt=0)]] = {}  # learning rates of parts, as multiples of optim.lr


class TrainSection(Section):
    epochs: int = Field(10, ge=1)
    repeat: int = Field(1, ge=1)  # passes over the images in each epoch, for small data sets
    stop_at: float | None = Field(None, gt=0, le=1)  # validation accuracy or Dice that ends the run
    patience: int | None = Field(None, ge=1)  # epochs without a better validation measure or loss that end the run
    batch_size: int = Field(128, ge=1)
    seed: int = Field(0, ge=0)
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 convolutions on CUDA, fp32 elsewhere
    ema: float = Field(0.0, ge=0, lt=1)  # decay of the averaged weights; 0: none
    fast: bool = True  # on CUDA, record the step as a CUDA graph
    compile: bool | None = None  # compile the recorded step; null: if the run has 10,000 steps or more
    save_every: float = Field(15.0, ge=0)  # least seconds between two checkpoints; 0: one after every epoch
    on_nan: Literal["stop", "skip"] = "stop"  # a NaN or infinite loss ends the run, or its step is skipped
    deterministic: bool = False  # on CUDA, bit-identical runs, at some cost in speed
    read_test: bool = True  # no: keep the test set unread while settings are being chosen
    select: Literal["last", "best"] = "last"  # weights to keep: the last, or the best on validation (see best_epoch)
    baselines: bool = False  # of classes: also measure chance, the majority class, and HOG features with a linear SVM
    callbacks: tuple[str, ...] = ()  # names of callbacks: mlflow, wandb, or registered by a plugin


class ClaimSection(Section):
    """The result of `torchcaps reproduce` for this recipe, and what it is compared with, all in percent."""

    result: str  # title in the table
    measure: Literal["error", "accuracy", "dice"] = "error"
    mean: float | None = None  # over the seeds; null: not measured yet
    paper: float | None = None
    open: float | None = None  # the best known open reproduction
    note: str = ""
    ensemble: bool = False  # also evaluate the ensemble of all seeds
    views: bool = False  # also evaluate with nine slightly moved views of every image


class Recipe(Section):
    name: str
    description: str = ""
    claim: ClaimSection | None = None
    also: tuple[str, ...] = ()  # further data sets to evaluate the final model on
    plugins: tuple[
        str, ...
    ] = ()  # modules, or .py files beside the recipe, whose code is run: they register what it names
    task: str | None = None  # by which the model learns; null: the model's own
    judge: str = "judge"  # of synthesis: the recipe of the U-Net that `torchcaps eval` trains on drawn images
    data: DataSection = DataSection()
    augment: AugmentSection = AugmentSection()
    model: ModelSection = ModelSection()
    discriminator: DiscriminatorSection = DiscriminatorSection()
    loss: LossSection = LossSection()
    optim: OptimSection = OptimSection()
    transfer: TransferSection = TransferSection()
    train: TrainSection = TrainSection()

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def list_recipes() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in RECIPES_DIR.glob("*.yaml"))


def load_recipe(name_or_path: str, overrides: list[str] | tuple[str, ...] = ()) -> Recipe:
    """Load a shipped recipe by name, or a YAML file.

    Args:
        name_or_path: of the recipe.
        overrides: settings to change, "section.field=value".
    """
    tree, path = _read_recipe(name_or_path)
    return make_recipe(tree, overrides, None if path.parent == RECIPES_DIR else str(path))


def _read_recipe(name_or_path: str, ancestors: tuple[Path, ...] = ()) -> tuple[dict[str, Any], Path]:
    """The settings in a recipe file, with those of the recipe that it extends, and the file's path."""
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = RECIPES_DIR / f"{name_or_path}.yaml"
        if not path.is_file():
            if Path(name_or_path).is_dir():
                raise UserError(
                    f"there is no recipe called {name_or_path!r}, but a folder: torchcaps train --data {name_or_path}"
                )
            raise UserError(f"there is no recipe called {name_or_path!r}: {did_you_mean(name_or_path, list_recipes())}")
    if path in ancestors:
        raise UserError(f"recipe {path} extends itself, by way of {ancestors[-1]}")
    if size_of(path) > MAX_BYTES:
        raise UserError(f"recipe {path} cannot be read: it has more than {MAX_BYTES:,} bytes")
    try:
        tree = read_yaml(path.read_text(encoding="utf-8"))
        tree.setdefault("name", path.stem)
        if isinstance(tree.get("plugins"), list):  # else the mistake is reported later
            tree["plugins"] = [absolute(str(plugin), path.parent) for plugin in tree["plugins"]]
    except (OSError, UnicodeDecodeError, BadYaml) as error:
        raise UserError(f"recipe {path} cannot be read: {error}") from error
    except AttributeError:
        raise UserError(f"recipe {path} is not a set of 'section:' entries") from None
    if "extends" not in tree:
        return tree, path
    name = str(tree.pop("extends"))
    beside = str(path.parent / name) if name.endswith((".yaml", ".yml")) else name
    return _merged(_read_recipe(beside, (*ancestors, path))[0], tree), path


def _merged(base: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    """The settings of `base`, replaced one by one by those of `tree`. A model with a name of its own replaces the whole
    section. Name, description and claim are not inherited."""
    merged = {key: value for key, value in base.items() if key not in ("name", "description", "claim")}
    for key, value in tree.items():
        try:
            merged[key] = value if key == "model" and "name" in value else {**merged[key], **value}
        except (KeyError, TypeError):  # not a section in both
            merged[key] = value
    return merged


def make_recipe(tree: dict[str, Any], overrides: list[str] | tuple[str, ...] = (), called: str | None = None) -> Recipe:
    """Validate a recipe given as nested dicts.

    Args:
        tree: its sections.
        overrides: settings to change, "section.field=value".
        called: what error messages call it; by default its name.
    """
    called = called or str(tree.get("name"))
    model = dict(tree["model"]) if isinstance(tree.get("model"), dict) else {}
    for override in overrides:
        _override(tree, override)
    _drop_options_of(model, tree, overrides)
    try:
        recipe = Recipe.model_validate(tree)
    except ValidationError as error:
        problems = [_explain(problem) for problem in error.errors()]
        more = [f"and {len(problems) - MAX_PROBLEMS} more"] if len(problems) > MAX_PROBLEMS else []
        raise UserError(f"recipe {called}: " + "; ".join(problems[:MAX_PROBLEMS] + more)) from error
    if not recipe.plugins:
        _check_names(recipe, called)
    return recipe


def import_plugins(recipe: Recipe) -> None:
    """Import a recipe's plugins. Reading a recipe does not: it may come from elsewhere; training it runs their code."""
    load_plugins(recipe.plugins)
    _check_names(recipe, recipe.name)


def _check_names(recipe: Recipe, called: str) -> None:
    for name in recipe.also:
        if name not in SOURCES:
            raise UserError(f"recipe {called}: also: there is no data set {name!r}: {did_you_mean(name, SOURCES)}")


def _override(tree: dict[str, Any], assignment: str) -> None:
    key, equals, text = assignment.partition("=")
    *parents, leaf = key.strip().split(".")
    if not equals or not leaf:
        raise UserError(f"--set {assignment}: write it as section.field=value, for example train.epochs=3")
    try:
        for parent in parents:
            tree = tree.setdefault(parent, {})
        tree[leaf] = read_yaml(text)
    except (AttributeError, TypeError):
        raise UserError(f"--set {assignment}: {parents[-1]} is a value, not a section") from None
    except BadYaml as error:
        raise UserError(f"--set {assignment}: {text!r} is not a value ({error})") from error


def _drop_options_of(model: dict[str, Any], tree: dict[str, Any], overrides: list[str] | tuple[str, ...]) -> None:
    """Where `--set model.name` chooses another model, leave out the recipe's options that only the former one has."""
    chosen = tree.get("model")
    if not isinstance(chosen, dict) or chosen.get("name") == model.get("name") or chosen.get("name") not in MODELS:
        return
    given = {override.partition("=")[0].strip() for override in overrides}
    name = chosen["name"]
    odd = [key for key in model if key != "name" and f"model.{key}" not in given and not accepts_option(name, key)]
    if odd:
        settings = ", ".join(f"model.{key}" for key in odd)
        log.warning("%s: of the recipe's model %s; left out for %s", settings, model.get("name"), name)
    tree["model"] = {key: value for key, value in chosen.items() if key not in odd}


def _explain(problem: Any) -> str:
    where = [str(part) for part in problem["loc"]]
    if problem["type"] == "extra_forbidden":
        section: Any = Recipe
        for part in where[:-1]:
            section = ClaimSection if part == "claim" else section.model_fields[part].annotation
        return f"{'.'.join(where)} is not a setting: {did_you_mean(where[-1], section.model_fields)}"
    return f"{'.'.join(where)}: {problem['msg'].lower()}, got {reprlib.repr(problem['input'])}"
