"""Judge generators by the Dice, on real images, of U-Nets trained on the images that they draw."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from rich.console import Console
from torch import Tensor

from torchcaps.data import MASK_SOURCES, SegmentationDataset, load_data, named_data, tiles
from torchcaps.errors import UserError
from torchcaps.io.atomic import write_text
from torchcaps.io.folders import make_folder
from torchcaps.metrics.similarity import features_of, kid, ssim
from torchcaps.models import SynthesisModel, UNet
from torchcaps.models.synthesis import MAX_BATCH_IMAGES, generate_images
from torchcaps.train.callbacks import Callback
from torchcaps.train.distributed import make_fabric
from torchcaps.train.environment import machine
from torchcaps.train.loop import train
from torchcaps.train.recipe import LossSection, Recipe, load_recipe
from torchcaps.train.setup import make_state
from torchcaps.train.state import seeded
from torchcaps.train.tasks import SegmentationTask
from torchcaps.train.tasks.test_sets import warn_if_changed

DRAWS = 4  # training images of every label map, each with other noise, or repeats of the real one; an even number
HELD_OUT = 1000  # seed of the noise for held-out label maps
APART = ("apart with two noises", "whole maps")  # columns: of windows, and of all of a map
Draw = Callable[[SynthesisModel, Sequence[Tensor], int], list[Tensor]]


class TrainedUNet(NamedTuple):
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
    """Train the same U-Net on real images, on drawn ones and on both; test each on unseen real images.

    Every U-Net takes the same number of steps, on windows of the same label maps: DRAWS drawn images of each with
    different noise, or the real one DRAWS times, or half of each.

    Args:
        model: the generator.
        against: a second generator, such as pix2pix.
        names: what to call the two.
        data: the pairs that the model was trained on, if they were moved.
        seeds: number of U-Nets for each kind of images.
        first: the first of their seeds.
        overrides: settings of the U-Net's recipe, "train.epochs=3".
        out: folder for judge.json.
        console: where to print; by default nowhere.

    Returns:
        trained: for each kind of training images the U-Nets' Dice (n, mean, std) and the generator's parameters.
        drawn: for each generator, how its images of held-out label maps compare with the real ones.
    """
    console = console or Console(quiet=True)
    generators = {names[0]: model} if against is None else {names[0]: model, names[1]: against}
    _check(generators, against is not None, names)
    real_pairs, test, source = _pairs(model, data)
    recipe = _recipe(model, overrides)
    if out is not None:
        make_folder(out)  # fail before hours of training
    windows, held_out = (tiles(part, *model.image_shape[1:]) for part in (real_pairs, test))
    trained: dict[str, list[TrainedUNet]] = {}
    for kind, rounds in _training_sets(generators, windows, names[0]).items():
        trained[kind] = [_train_unet(recipe, rounds, test, first + i, model.device) for i in range(seeds)]
        dice = statistics.mean(each.dice for each in trained[kind])
        console.print(f"trained on {kind}: Dice {dice:.2%}", highlight=False, markup=False)
    result = {
        "data": source,
        "unet": _about_unet(recipe, overrides, trained["real"][0], first),
        "generator_seeds": {name: each.trained_by.get("seed") for name, each in generators.items()},
        "windows": len(windows),
        "draws": DRAWS,
        "test_n": len(test),
        "machine": machine(model.device),
        "trained": {kind: _trained(kind, some, trained["real"], generators) for kind, some in trained.items()},
        "drawn": {name: _compare(each, held_out, test, trained["real"]) for name, each in generators.items()},
        "kid_of_real": _kid(trained["real"][0].unet, _floats(windows), _floats(held_out)),
    }
    if out is not None:
        write_text(out / "judge.json", json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    return result


def _about_unet(recipe: Recipe, overrides: Sequence[str], trained: TrainedUNet, first_seed: int) -> dict[str, Any]:
    parameters = trained.unet.parameter_count()
    return {
        "recipe": recipe.name,
        "settings": list(overrides),
        "parameters": parameters,
        "first_seed": first_seed,
    }


def _training_sets(
    generators: dict[str, SynthesisModel], windows: SegmentationDataset, first: str
) -> dict[str, list[SegmentationDataset]]:
    """What the U-Nets learn from, by its name: real images, drawn ones, and half of each."""
    real, drawn = [windows] * DRAWS, {name: _draw(each, windows) for name, each in generators.items()}
    return {"real": real, **drawn, f"real + {first}": real[::2] + drawn[first][::2]}


def _trained(
    kind: str, unets: list[TrainedUNet], real: list[TrainedUNet], generators: dict[str, SynthesisModel]
) -> dict[str, Any]:
    """The Dice of the U-Nets that were trained on one kind of images, also as a share of those trained on real ones."""
    share = statistics.mean(each.dice for each in unets) / max(statistics.mean(each.dice for each in real), 1e-12)
    return {
        **spread([each.dice for each in unets]),
        "of_real": share,
        "generator_parameters": _parameters(kind, generators),
    }


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
        raise UserError(f"a model called {reserved[0]!r} would be confused with the real images: rename it")
    (first, model), *others = generators.items()
    for name, other in others:
        if other.task != "synthesis":
            raise UserError(f"--against {name}: it draws no images; give a synthesis model, such as pix2pix")
        for what in ("image_shape", "num_classes"):
            if getattr(other, what) != getattr(model, what):
                raise UserError(
                    f"--against {name}: its {what} is {getattr(other, what)}, that of {first} {getattr(model, what)}; "
                    "give a model trained on the same windows and classes"
                )


def _pairs(model: SynthesisModel, data: str | None) -> tuple[SegmentationDataset, SegmentationDataset, str]:
    """The model's own pairs, split as they were when it was trained; and their name."""
    own = model.trained_by.get("data")
    if own is None:
        raise UserError("this model does not record its training data: only models of `torchcaps train` can be judged")
    settings = {**own, "channels": model.image_shape[0]}
    if data is not None:
        settings["source"], settings["path"] = named_data(data)
        if settings["source"] not in MASK_SOURCES:
            raise UserError(f"--data {data}: this model draws from masks; give a folder with images and masks in it")
    splits = load_data(**settings)
    if splits.train.num_classes != model.num_classes:
        raise UserError(f"the masks have {splits.train.num_classes} classes, but this model draws {model.num_classes}")
    warn_if_changed(model, splits)
    name = settings["path"] or settings["source"]
    if splits.test is None:
        raise UserError(f"{name} has no test images, and the U-Nets are tested on unseen real images")
    return splits.train, splits.test, name


def _recipe(model: SynthesisModel, overrides: Sequence[str]) -> Recipe:
    """That of the U-Net, on windows as large as what is drawn."""
    crop = f"augment.crop={min(model.image_shape[1:])}"
    recipe = load_recipe(model.trained_by.get("judge", "judge"), (*overrides, crop))
    if recipe.model.name != "unet":
        raise UserError(f"the recipe {recipe.name} trains {recipe.model.name}, but images are judged by a unet")
    if recipe.train.epochs % DRAWS:
        raise UserError(f"train.epochs={recipe.train.epochs}: give a multiple of {DRAWS}, the images drawn of each map")
    return recipe


def _draw(generator: SynthesisModel, windows: SegmentationDataset) -> list[SegmentationDataset]:
    """The same label maps with images drawn of them, DRAWS times."""
    return [replace(windows, images=_bytes(generate_images(generator, windows.masks, seed))) for seed in range(DRAWS)]


def _train_unet(
    recipe: Recipe, rounds: list[SegmentationDataset], test: SegmentationDataset, seed: int, device: torch.device
) -> TrainedUNet:
    """A U-Net that learns from all of the rounds together; its recipe counts epochs of one of them."""
    images, masks = ([each for part in rounds for each in getattr(part, what)] for what in ("images", "masks"))
    names = tuple(name for part in rounds for name in part.names)
    segments = SegmentationDataset(images, masks, test.class_names, names)
    epochs = recipe.train.epochs // len(rounds)
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"seed": seed, "epochs": epochs})})
    with seeded(seed, device):
        state, task = make_state(recipe, segments, device)
        fabric = make_fabric(device.type, recipe.train.precision)
        train(state, segments, None, task, recipe, fabric, Callback())
        state.model.zero_grad(set_to_none=True)  # it would keep a recorded step's memory
    unet = cast(UNet, state.final.eval())  # _recipe has checked it
    return TrainedUNet(unet, _dice(unet, test))


def _compare(
    generator: SynthesisModel, held_out: SegmentationDataset, whole: SegmentationDataset, real: list[TrainedUNet]
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
    generator: SynthesisModel, held_out: SegmentationDataset, real: list[TrainedUNet], draw: Draw = generate_images
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
    task = SegmentationTask.make(unet, segments, LossSection())
    return [task.evaluate(unet, segments.subset(torch.tensor([i]))).score for i in range(len(segments))]


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


def spread(values: list[float]) -> dict[str, Any]:
    return {
        "n": len(values),
        "mean": statistics.mean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "values": values,
    }
