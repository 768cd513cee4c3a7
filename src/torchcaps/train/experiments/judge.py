"""Drawn images judged by use: a U-Net that learned from them, on real images, beside one that learned from those."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from torchcaps.data import MASK_SOURCES, SegmentationDataset, Splits, load_data, named_data, tiles
from torchcaps.errors import UserError
from torchcaps.metrics.similarity import features_of, kid, ssim
from torchcaps.models import SynthesisModel, UNet
from torchcaps.models.synthesis import MAX_BATCH_IMAGES, generate_images
from torchcaps.train import loop
from torchcaps.train.callbacks import Quiet
from torchcaps.train.environment import machine
from torchcaps.train.evaluate import warn_if_changed
from torchcaps.train.recipe import LossSection, Recipe, load_recipe
from torchcaps.train.reports.classification import write_whole
from torchcaps.train.state import make_state, seeded
from torchcaps.train.tasks.segmentation import SegmentationTask, evaluate_masks

DRAWS = 4  # images of every label map to train on, with other noise each, or the real one so often; an even number
HELD_OUT = 1000  # seed of the noise of label maps that are not trained on
APART = ("apart with two noises", "whole maps")  # columns: of windows, and of all of a map
Draw = Callable[[SynthesisModel, Sequence[Tensor], int], list[Tensor]]


class Taught(NamedTuple):
    """A U-Net of one seed, and its mean Dice on the real test images."""

    unet: UNet
    dice: float


def judge(
    model: SynthesisModel,
    *,
    against: SynthesisModel | None = None,
    names: tuple[str, str] = ("model", "against"),
    data: str | None = None,
    seeds: int = 3,
    first: int = 0,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train the same U-Net on real images, on drawn ones, and on both; test each on real images that no one has seen.

    Every U-Net takes as many steps, on windows of the same label maps: DRAWS images of each, drawn with other noise, or
    the real one so often, or half of either.

    against    a second generator, such as pix2pix
    names      what to call the two
    data       where the pairs are that the model was trained on, if they were moved
    seeds      U-Nets for each kind of images, with the seeds from `first` on
    overrides  settings of the U-Net's recipe, "train.epochs=3"
    out        folder for judge.json
    returns    trained: by what the U-Net learned from, its Dice (n, mean, std) and the generator's parameters;
               drawn: of each generator, how its images of held-out label maps compare with the real ones
    """
    console = console or Console(quiet=True)
    generators = {names[0]: model} if against is None else {names[0]: model, names[1]: against}
    _check(generators, against is not None, names)
    splits, source = _splits(model, data)
    if splits.test is None:
        raise UserError(f"{source} has no test images: the U-Nets are tested on real images that nobody trained on")
    recipe = _recipe(model, overrides)
    _make_folder(out)
    windows, held_out = (tiles(part, *model.image_shape[1:]) for part in (splits.train, splits.test))
    real, drawn = [windows] * DRAWS, {name: _draw(each, windows) for name, each in generators.items()}
    sets = {"real": real, **drawn, f"real + {names[0]}": real[::2] + drawn[names[0]][::2]}
    taught: dict[str, list[Taught]] = {}
    for kind, rounds in sets.items():
        each_seed = range(first, first + seeds)
        taught[kind] = [_teach(recipe, rounds, splits.test, seed, model.device) for seed in each_seed]
        dice = _spread([each.dice for each in taught[kind]])
        console.print(f"trained on {kind}: Dice {dice['mean']:.2%}", highlight=False, markup=False)
    usual = statistics.mean(each.dice for each in taught["real"])
    result = {
        "data": source,
        "unet": {
            "recipe": recipe.name,
            "settings": list(overrides),
            "parameters": taught["real"][0].unet.parameter_count(),
            "first_seed": first,
        },
        "generator_seeds": {name: each.trained_by.get("seed") for name, each in generators.items()},
        "windows": len(windows),
        "draws": DRAWS,
        "test_n": len(splits.test),
        "machine": machine(model.device),
        "trained": {
            kind: {
                **_spread([each.dice for each in some]),
                "of_real": statistics.mean(each.dice for each in some) / max(usual, 1e-12),
                "generator_parameters": _parameters(kind, generators),
            }
            for kind, some in taught.items()
        },
        "drawn": {name: _compare(each, held_out, splits.test, taught["real"]) for name, each in generators.items()},
        "kid_of_real": _kid(taught["real"][0].unet, _floats(windows), _floats(held_out)),
    }
    if out is not None:
        write_whole(out / "judge.json", json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    return result


def pool(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What judges found of the same kinds of generators, trained with other seeds: as if one had judged them all."""
    first = results[0]
    for what in ("data", "windows", "draws", "test_n"):
        _check_alike(what, [result[what] for result in results])
    for what in ("recipe", "settings", "parameters"):
        _check_alike(f"{what} of the U-Net", [result["unet"].get(what) for result in results])
    seeds = [(result["unet"]["first_seed"], tuple(result["generator_seeds"].values())) for result in results]
    if len(set(seeds)) < len(seeds):
        raise UserError(f"one of these was judged twice, by the seeds of U-Net and generators: {seeds}")
    kinds = [{_unnumbered(kind) for kind in result["trained"]} for result in results]
    if any(names != kinds[0] for names in kinds) or any(len(names) != len(first["trained"]) for names in kinds):
        raise UserError(f"these were not judged alike: they have {[sorted(names) for names in kinds]}")
    trained: dict[str, Any] = {}
    for kind in map(_unnumbered, first["trained"]):
        alike = [_by_kind(result["trained"])[kind] for result in results]
        spread = _spread([value for each in alike for value in each["values"]])
        usual = trained["real"]["mean"] if trained else spread["mean"]  # real images come first
        trained[kind] = {
            **spread,
            "of_real": spread["mean"] / max(usual, 1e-12),
            "generator_parameters": alike[0]["generator_parameters"],
        }
    drawn: dict[str, Any] = {}
    for name in map(_unnumbered, first["drawn"]):
        some = [_by_kind(result["drawn"])[name] for result in results]
        keys = dict.fromkeys(key for each in some for key in each if key not in ("parameters", "n"))
        means = {key: _mean([each.get(key) for each in some]) for key in keys}
        drawn[name] = {"parameters": some[0]["parameters"], **means, "n": sum(each["n"] for each in some)}
    each_seed = {name: [_by_kind(result["generator_seeds"])[name] for result in results] for name in drawn}
    unet = {**first["unet"], "first_seed": [result["unet"]["first_seed"] for result in results]}
    together = {"unet": unet, "generator_seeds": each_seed, "trained": trained, "drawn": drawn}
    return {**first, **together, "kid_of_real": _mean([result["kid_of_real"] for result in results])}


def _check_alike(what: str, values: list[Any]) -> None:
    if any(value != values[0] for value in values):
        raise UserError(f"these were not judged alike: their {what} is {values}")


def _by_kind(found: dict[str, Any]) -> dict[str, Any]:
    return {_unnumbered(kind): each for kind, each in found.items()}


def _mean(values: list[float | None]) -> float | None:
    """None where one of them is."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if len(known) == len(values) else None


def _unnumbered(kind: str) -> str:
    """ "real + runs/mine-0" as "real + mine"."""
    before, plus, name = kind.rpartition(" + ")
    return before + plus + re.sub(r"-\d+$", "", Path(name).name)


def judge_tables(result: dict[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """What was found as words for two tables: of the U-Nets, and of the images."""
    trained = [
        [
            kind,
            f"{each['mean']:.2%}" + ("" if each["std"] is None else f" ± {each['std']:.2%}"),
            str(each["n"]),
            f"{each['of_real']:.1%}",
            "" if each["generator_parameters"] is None else f"{each['generator_parameters']:,}",
        ]
        for kind, each in result["trained"].items()
    ]
    drawn = [
        [
            name,
            *(_percent(each.get(key)) for key in ("label_dice", "label_dice_apart", "whole_dice_apart", "variation")),
            f"{each['ssim']:.3f}",
            "" if each["kid"] is None else f"{each['kid']:.4g}",
        ]
        for name, each in result["drawn"].items()
    ]
    return [
        (["U-Net trained on", "Dice on real images", "n", "of real", "generator parameters"], trained),
        (["drawn by", "label found, Dice", *APART, "grey values apart", "SSIM", "KID"], drawn),
    ]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def _check(generators: dict[str, SynthesisModel], paired: bool, names: tuple[str, str]) -> None:
    if paired and Path(names[0]) == Path(names[1]):
        raise UserError(f"--against {names[1]}: that is the same model; give another")
    if reserved := [name for name in generators if name == "real" or name.startswith("real + ")]:
        raise UserError(f"a model called {reserved[0]!r} would be taken for the real images: give its path another way")
    (first, model), *others = generators.items()
    for name, other in others:
        if not isinstance(other, SynthesisModel):
            raise UserError(f"--against {name}: it draws no images; give another model that does, such as pix2pix")
        for what in ("image_shape", "num_classes"):
            if getattr(other, what) != getattr(model, what):
                raise UserError(
                    f"--against {name}: its {what} is {getattr(other, what)}, that of {first} {getattr(model, what)}; "
                    "give a model trained on the same windows and classes"
                )


def _splits(model: SynthesisModel, data: str | None) -> tuple[Splits[SegmentationDataset], str]:
    """The model's own pairs, split as they were when it was trained; and their name."""
    own = model.trained_by.get("data")
    if own is None:
        raise UserError("this model does not say what it was trained on: only models of `torchcaps train` are judged")
    settings = {**own, "channels": model.image_shape[0]}
    if data is not None:
        settings["source"], settings["path"] = named_data(data)
        if settings["source"] not in MASK_SOURCES:
            raise UserError(f"--data {data}: this model draws from masks; give a folder with images and masks in it")
    splits = load_data(**settings)
    if splits.train.num_classes != model.num_classes:
        raise UserError(f"the masks have {splits.train.num_classes} classes, and this model draws {model.num_classes}")
    warn_if_changed(model, splits)
    return splits, settings["path"] or settings["source"]


def _recipe(model: SynthesisModel, overrides: Sequence[str]) -> Recipe:
    """That of the U-Net, on windows as large as what is drawn."""
    crop = f"augment.crop={min(model.image_shape[1:])}"
    recipe = load_recipe(model.trained_by.get("judge", "judge"), (*overrides, crop))
    if recipe.model.name != "unet":
        raise UserError(f"the recipe {recipe.name} trains {recipe.model.name}, no unet: images are judged by one")
    if recipe.train.epochs % DRAWS:
        raise UserError(f"train.epochs={recipe.train.epochs}: give a multiple of {DRAWS}, the images drawn of each map")
    return recipe


def _make_folder(out: Path | None) -> None:
    """Before hours of training, not after them."""
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write to {out}: {error.strerror or error}") from error


def _draw(generator: SynthesisModel, windows: SegmentationDataset) -> list[SegmentationDataset]:
    """The same label maps with images drawn of them, DRAWS times."""
    return [replace(windows, images=_bytes(generate_images(generator, windows.masks, seed))) for seed in range(DRAWS)]


def _teach(
    recipe: Recipe, rounds: list[SegmentationDataset], test: SegmentationDataset, seed: int, device: torch.device
) -> Taught:
    """A U-Net that learns from all of the rounds together; its recipe counts epochs of one of them."""
    images, masks = ([each for part in rounds for each in getattr(part, what)] for what in ("images", "masks"))
    names = tuple(name for part in rounds for name in part.names)
    segments = SegmentationDataset(images, masks, test.class_names, names)
    epochs = recipe.train.epochs // len(rounds)
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"seed": seed, "epochs": epochs})})
    with seeded(seed, device):
        state, task = make_state(recipe, segments, device)
        assert isinstance(state.final, UNet)  # _recipe has seen to it
        fabric = loop.make_fabric(device.type, recipe.train.precision)
        loop.train(state, segments, None, task, recipe, fabric, Quiet())
        state.model.zero_grad(set_to_none=True)  # which would keep a recorded step's memory
    return Taught(state.final.eval(), _dice(state.final, test))


def _compare(
    generator: SynthesisModel, held_out: SegmentationDataset, whole: SegmentationDataset, real: list[Taught]
) -> dict[str, Any]:
    """How images drawn of held-out label maps compare with the real ones, and two of one map with each other.

    held_out  windows of the maps, as large as what the generator was trained to draw
    whole     the maps themselves
    """
    (one, other), pairs = _drawn_twice(generator, held_out, real)
    if all(mask.shape == generator.image_shape[1:] for mask in whole.masks):
        entire: list[tuple[float, float]] | None = pairs  # a window is all of a map
    else:
        entire = _drawn_twice(generator, whole, real, _one_by_one)[1] if _draws(generator, whole) else None
    unet, true = real[0].unet, _floats(held_out)
    return {
        "parameters": generator.parameter_count(),
        "label_dice": statistics.mean(sum(pairs, ())),
        "label_dice_apart": _apart(pairs),
        "whole_dice_apart": None if entire is None else _apart(entire),
        "variation": statistics.mean(float((a - b).abs().mean()) for a, b in zip(one, other)),
        "ssim": ssim(one, true),
        "kid": _kid(unet, one, true),
        "n": len(held_out),
    }


def _drawn_twice(
    generator: SynthesisModel, held_out: SegmentationDataset, real: list[Taught], draw: Draw = generate_images
) -> tuple[tuple[list[Tensor], list[Tensor]], list[tuple[float, float]]]:
    """Two images of every map, and how well either is found: a pair for each U-Net and map."""
    one, other = (draw(generator, held_out.masks, HELD_OUT + number) for number in range(2))
    found = [[_dices(each.unet, replace(held_out, images=_bytes(some))) for each in real] for some in (one, other)]
    return (one, other), [pair for each in zip(*found) for pair in zip(*each)]


def _apart(pairs: list[tuple[float, float]]) -> float:
    return statistics.mean(abs(a - b) for a, b in pairs)


def _one_by_one(generator: SynthesisModel, masks: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Maps of any sizes."""
    return [generate_images(generator, [mask], seed, [number])[0] for number, mask in enumerate(masks)]


def _draws(generator: SynthesisModel, maps: SegmentationDataset) -> bool:
    """Whether it can draw each of these in one piece, with the memory that a batch of windows takes."""
    most = MAX_BATCH_IMAGES * torch.Size(generator.image_shape[1:]).numel()
    try:
        for mask in maps.masks:
            generator.check_size(*mask.shape)
    except UserError:
        return False
    return all(mask.numel() <= most for mask in maps.masks)


def _dice(unet: UNet, segments: SegmentationDataset) -> float:
    return statistics.mean(_dices(unet, segments))


def _dices(unet: UNet, segments: SegmentationDataset) -> list[float]:
    """Of every image."""
    task = SegmentationTask.for_model(unet, LossSection())
    return [evaluate_masks(unet, segments.subset(torch.tensor([i])), task).right for i in range(len(segments))]


def _kid(unet: UNet, some: list[Tensor], others: list[Tensor]) -> float | None:
    """None where there are too few images to tell."""
    enough = min(len(some), len(others)) > 1
    return kid(features_of(unet, some), features_of(unet, others)) if enough else None


def _bytes(images: list[Tensor]) -> list[Tensor]:
    return [(255 * image).round().to(torch.uint8) for image in images]


def _floats(segments: SegmentationDataset) -> list[Tensor]:
    return [image.float() / 255 for image in segments.images]


def _parameters(kind: str, generators: dict[str, SynthesisModel]) -> int | None:
    name = kind.removeprefix("real + ")
    return generators[name].parameter_count() if name in generators else None


def _spread(values: list[float]) -> dict[str, Any]:
    return {
        "n": len(values),
        "mean": statistics.mean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "values": values,
    }
