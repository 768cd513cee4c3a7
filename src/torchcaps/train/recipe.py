"""A recipe: everything that decides a result, in one validated YAML file."""

from __future__ import annotations

import reprlib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from torchcaps.data import SOURCES
from torchcaps.errors import UserError, did_you_mean
from torchcaps.io.limits import size_of
from torchcaps.io.strict_yaml import BadYaml, read_yaml

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
    validation: float = Field(0.1, ge=0)  # a fraction, or a count from 1 on; 0 holds nothing out, for a final refit
    test: NonNegative | str = 0.2  # where the source has no test split; with masks also names, or last:6
    split_seed: int = 0
    limit: int | None = Field(None, ge=1)
    per_class: int | None = Field(None, ge=1)
    positive: int | None = Field(None, ge=0)  # of masks: the value that is the class looked for
    num_classes: int | None = Field(None, ge=2)  # of masks: where not every class id need occur


class AugmentSection(Section):
    """Random changes to training images and their masks; the fields are the arguments of `torchcaps.data.augment`."""

    shift: int = Field(0, ge=0)  # pixels
    rotate: float = Field(0.0, ge=0)  # degrees
    shear: float = Field(0.0, ge=0)
    scale: float = Field(0.0, ge=0, lt=1)
    elastic: float = Field(0.0, ge=0)  # pixels
    share: float = Field(1.0, ge=0, le=1)  # of the images that are rotated, sheared, scaled and bent
    erase: int = Field(0, ge=0)  # pixels
    crop: int = Field(0, ge=0)  # side of a random crop; at test time the centre is cut out, of masks all is seen
    flip: bool = False
    flip_vertical: bool = False
    turn: bool = False  # by quarters
    brightness: float = Field(0.0, ge=0)  # of an image in [0, 1]
    contrast: float = Field(0.0, ge=0, le=1)
    noise: float = Field(0.0, ge=0)


class ModelSection(BaseModel):
    """A name of `torchcaps.list_models()`; what else is given here goes to that model."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "capsnet"

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class LossSection(Section):
    """Weights of the terms. By default capsules: margin 1, reconstruction 0.392 / values of an image (0.0005 at 28×28);
    pose capsules: also disagreement 0.1, and absence 0.5 with model.negatives;
    matrix capsules: spread 1; CNNs: cross-entropy 1; masks: cross-entropy 1, and reconstruction 1 with a decoder;
    drawn images: bce 1, l1 100, features 0."""

    margin: float | None = Field(None, ge=0)
    spread: float | None = Field(None, ge=0)
    reconstruction: float | None = Field(None, ge=0)
    cross_entropy: float | None = Field(None, ge=0)
    disagreement: float | None = Field(None, ge=0)  # of pose capsules: how far views disagree about the pose
    absence: float | None = Field(None, ge=0)  # of pose capsules: how present classes are in images of nothing
    dice: float | None = Field(None, ge=0)  # of masks
    positive_weight: float = Field(1.0, gt=0)  # of masks: how much a pixel of a class counts against one of the rest
    class_weights: bool = False  # weigh rare classes up
    bce: float | None = Field(None, ge=0)  # of drawn images: to be taken for real, by cross-entropy
    least_squares: float | None = Field(None, ge=0)  # or by least squares
    l1: float | None = Field(None, ge=0)  # and to be near the real one
    features: float | None = Field(None, ge=0)  # and near it in what the discriminator notices
    label_smoothing: float = Field(0.1, ge=0, lt=0.5)  # how unsure the discriminator is to be of real images


class OptimSection(Section):
    name: Literal["adam", "adamw", "muon"] = "adam"
    lr: float = Field(1e-3, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    warmup_steps: int = Field(0, ge=0)
    schedule: Literal["constant", "exponential", "linear", "cosine"] = "constant"
    decay_rate: float = Field(0.96, gt=0, le=1)  # exponential: lr × decay_rate every decay_steps
    decay_steps: int = Field(2000, ge=1)
    final: float = Field(0.0, ge=0, le=1)  # linear, cosine: the share of lr that is left at the end
    clip: float | None = Field(None, gt=0)  # largest norm of the gradient
    sharpness: float = Field(0.0, ge=0)  # how far around the weights the loss is to be low, too; 0: not asked

    @model_validator(mode="before")
    @classmethod
    def _without_linear(cls, given: Any) -> Any:
        """A setting that is gone, and that runs of earlier versions name: where it was off, they can be resumed."""
        if isinstance(given, dict) and given.get("linear") is False:
            return {name: value for name, value in given.items() if name != "linear"}
        return given


class DiscriminatorSection(Section):
    """Of drawn images: the network that tells them from real ones; see `torchcaps.models.Discriminator`."""

    channels: int = Field(64, ge=1)
    depth: int = Field(3, ge=1)  # halvings: 3 for patches of 70×70, 2 for 34×34, 1 for 16×16
    spectral_norm: bool = True
    instance_norm: bool = False
    lr: float = Field(1.0, gt=0)  # its learning rate, as a multiple of the generator's


class TrainSection(Section):
    epochs: int = Field(10, ge=1)
    repeat: int = Field(1, ge=1)  # passes over the images that make an epoch: more than one where there are few
    stop_at: float | None = Field(None, gt=0, le=1)  # accuracy, or Dice, on validation images that ends the run
    batch_size: int = Field(128, ge=1)
    seed: int = Field(0, ge=0)
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 convolutions on CUDA, fp32 elsewhere
    ema: float = Field(0.0, ge=0, lt=1)  # decay of the averaged weights; 0: none
    fast: bool = True  # on CUDA, record the step as a CUDA graph
    compile: bool | None = None  # where it is recorded, also compile it; null: if the run has 10,000 steps or more
    save_every: float = Field(15.0, ge=0)  # seconds between two checkpoints at least; 0: one after every epoch
    on_nan: Literal["stop", "skip"] = "stop"  # a loss that is no number ends the run, or its step is passed over
    deterministic: bool = False  # on CUDA, the same numbers in every run, at some cost in speed
    read_test: bool = True  # no: the test set stays unread, while settings are still being chosen
    select: Literal["last", "best"] = "last"  # the weights that are kept: the last, or the best on validation


class ClaimSection(Section):
    """What `torchcaps reproduce` found for this recipe, and what it is measured against, all in percent."""

    result: str  # in words, for the table
    measure: Literal["error", "accuracy", "dice"] = "error"
    mean: float | None = None  # over the seeds; None: not measured yet
    paper: float | None = None
    open: float | None = None  # the best open reproduction known
    note: str = ""
    ensemble: bool = False  # also measure all seeds together, by the mean of their lengths
    views: bool = False  # also measure each with nine slightly moved views of every image


class Recipe(Section):
    name: str
    description: str = ""
    claim: ClaimSection | None = None
    also: tuple[str, ...] = ()  # further data sets to measure the final model on
    judge: str = "judge"  # of drawn images: the recipe of the U-Net that `torchcaps eval` trains on them
    data: DataSection = DataSection()
    augment: AugmentSection = AugmentSection()
    model: ModelSection = ModelSection()
    discriminator: DiscriminatorSection = DiscriminatorSection()
    loss: LossSection = LossSection()
    optim: OptimSection = OptimSection()
    train: TrainSection = TrainSection()

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def list_recipes() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in RECIPES_DIR.glob("*.yaml"))


def load_recipe(name_or_path: str, overrides: list[str] | tuple[str, ...] = ()) -> Recipe:
    """A shipped recipe by name, or a YAML file; overrides are "section.field=value"."""
    path = Path(name_or_path)
    shipped = path.suffix not in (".yaml", ".yml")
    if shipped:
        path = RECIPES_DIR / f"{name_or_path}.yaml"
        if not path.is_file():
            raise UserError(f"there is no recipe called {name_or_path!r}: {did_you_mean(name_or_path, list_recipes())}")
    if size_of(path) > MAX_BYTES:
        raise UserError(f"recipe {path} cannot be read: it has more than {MAX_BYTES:,} bytes")
    try:
        tree = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, BadYaml) as error:
        raise UserError(f"recipe {path} cannot be read: {error}") from error
    if not isinstance(tree, dict):
        raise UserError(f"recipe {path} is not a set of 'section:' entries")
    tree.setdefault("name", path.stem)
    return make_recipe(tree, overrides, None if shipped else str(path))


def make_recipe(tree: dict[str, Any], overrides: list[str] | tuple[str, ...] = (), called: str | None = None) -> Recipe:
    """Validate a recipe given as nested dicts.

    called  what a message about it says; by default its name
    """
    called = called or str(tree.get("name"))
    for override in overrides:
        _override(tree, override)
    try:
        recipe = Recipe.model_validate(tree)
    except ValidationError as error:
        problems = [_explain(problem) for problem in error.errors()]
        more = [f"and {len(problems) - MAX_PROBLEMS} more"] if len(problems) > MAX_PROBLEMS else []
        raise UserError(f"recipe {called}: " + "; ".join(problems[:MAX_PROBLEMS] + more)) from error
    for name in recipe.also:
        if name not in SOURCES:
            raise UserError(f"recipe {called}: also: there is no data set {name!r}: {did_you_mean(name, SOURCES)}")
    return recipe


def _override(tree: dict[str, Any], assignment: str) -> None:
    key, equals, text = assignment.partition("=")
    *parents, leaf = key.strip().split(".")
    if not equals or not leaf:
        raise UserError(f"--set {assignment}: write it as section.field=value, for example train.epochs=3")
    for parent in parents:
        child = tree.setdefault(parent, {})
        if not isinstance(child, dict):
            raise UserError(f"--set {assignment}: {parent} is a value, not a section")
        tree = child
    try:
        tree[leaf] = read_yaml(text)
    except BadYaml as error:
        raise UserError(f"--set {assignment}: {text!r} is not a value ({error})") from error


def _explain(problem: Any) -> str:
    where = [str(part) for part in problem["loc"]]
    if problem["type"] == "extra_forbidden":
        section: Any = Recipe
        for part in where[:-1]:
            section = ClaimSection if part == "claim" else section.model_fields[part].annotation
        return f"{'.'.join(where)} is not a setting: {did_you_mean(where[-1], section.model_fields)}"
    return f"{'.'.join(where)}: {problem['msg'].lower()}, got {reprlib.repr(problem['input'])}"
