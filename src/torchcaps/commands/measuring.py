"""The commands `eval` and `bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from torchcaps.commands.common import AsJson, Device, Model, out, say, show
from torchcaps.devices import make_device
from torchcaps.errors import UserError

if TYPE_CHECKING:
    from torchcaps.models import SynthesisModel

Suite = Annotated[
    str | None,
    typer.Option(
        help="Robustness suite: affine, corruption, adversarial, equivariance, scrambled, crowding, "
        "or unfamiliar (images of no known class)."
    ),
]


def evaluate(
    model: Model,
    data: Annotated[str | None, typer.Option(help="An image folder or CSV, or a data set's name.")] = None,
    views: Annotated[bool, typer.Option("--views", help="Classify by the mean over nine moved views.")] = False,
    suite: Suite = None,
    against: Annotated[
        str | None, typer.Option(help="With --suite, and for synthesis models: a second model, on the same images.")
    ] = None,
    n: Annotated[
        int, typer.Option("--n", help="With --suite: number of test images, stratified by class.", min=1)
    ] = 500,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the images chosen, noise and attacks; for synthesis models, of the first U-Net.", min=0
        ),
    ] = 0,
    out_: Annotated[
        Path | None,
        typer.Option("--out", help="With --suite: folder for <suite>.json and <suite>.png; or for judge.json."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="For synthesis models: U-Nets trained on each kind of images.", min=1)] = 3,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="For synthesis models: a setting of the U-Net's recipe.")
    ] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on its own test set, or on --data.

    A synthesis model is judged by the Dice, on real images, of U-Nets trained on the images it draws.
    """
    import torchcaps
    from torchcaps.train.evaluate import evaluate_model

    if suite is not None and views:
        raise UserError("--views and --suite do not go together")
    if suite is not None:
        _measure_suite(suite, model, against, data, n, seed, out_, device, as_json)
        return
    loaded = torchcaps.load(model, make_device(device))
    if loaded.task == "synthesis":
        if views:
            raise UserError("--views is for classifiers; this model draws images")
        _judge(
            cast("SynthesisModel", loaded), model, against, data, range(seed, seed + seeds), set_ or [], out_, as_json
        )
        return
    if against or out_:
        raise UserError("--against and --out need --suite or a synthesis model")
    if set_:
        raise UserError("--set needs a synthesis model: it changes the recipe of the U-Net that judges it")
    figures = evaluate_model(loaded, data, views=views, rejection=True)
    if as_json:
        print(json.dumps({"model": model, **figures}))
    elif "per_class" in figures:
        _print_masks(model, figures)
    else:
        (_print_classes if "accuracy" in figures else _print_means)(model, figures)


def _print_classes(model: str, figures: dict[str, Any]) -> None:
    found = f"{figures['accuracy']:.2%} of {figures['n']:,} images right"
    say(f"{model} on {figures['data']}: {found}")
    out.print(f"error {figures['error']:.2%}, loss {figures['loss']:.4f}", highlight=False)
    if "none_of_these" in figures:
        out.print(_rejection_words(figures["none_of_these"], figures["n"]), highlight=False, soft_wrap=True)


def _print_means(model: str, figures: dict[str, Any]) -> None:
    """The figures of a task of a user's own."""
    means = ", ".join(f"{name} {value:.4f}" for name, value in figures.items() if name not in ("data", "n"))
    say(f"{model} on {figures['data']}: {means} on {figures['n']:,} examples")


def _rejection_words(found: dict[str, Any], n: int) -> str:
    """The number of rejected images, and the accuracy on the others."""
    rejected, kept = found["rejected"], n - found["rejected"]
    words = f"none of these: {rejected:,} of {n:,} images ({found['rejected_share']:.2%})"
    words += f", familiarity below {found['none_below']:.4g}"
    if found["kept_accuracy"] is not None:
        words += f"; of the {kept:,} kept {found['kept_accuracy']:.2%} right"
    return f"{words}; of the most familiar 95 % {found['accuracy_at_95']:.2%} right"


def _print_masks(model: str, figures: dict[str, Any]) -> None:
    found = f"Dice {figures['dice']:.2%} on {figures['n']:,} images"
    say(f"{model} on {figures['data']}: {found}")
    rows = [
        (name, f"{values['dice']:.2%}", f"{values['iou']:.2%}", f"{values['hausdorff95']:.2f}")
        for name, values in figures["per_class"].items()
    ]
    show(("class", "Dice", "IoU", "Hausdorff 95 %, px"), rows)
    out.print(f"wrong pixels {figures['pixel_error']:.2%}, loss {figures['loss']:.4f}", highlight=False)


def _judge(
    model: SynthesisModel,
    name: str,
    against: str | None,
    data: str | None,
    seeds: range,
    overrides: list[str],
    folder: Path | None,
    as_json: bool,
) -> None:
    import torchcaps
    from torchcaps.generate import require_synthesis
    from torchcaps.train.experiments.judge import judge, judge_tables

    other = None if against is None else require_synthesis(torchcaps.load(against, model.device))
    settings: dict[str, Any] = {"data": data, "overrides": overrides, "out": folder}
    settings |= {"seeds": len(seeds), "first": seeds.start}
    result = judge(model, against=other, names=(name, against or ""), **settings, console=None if as_json else out)
    if as_json:
        print(json.dumps(result))
        return
    for heading, rows in judge_tables(result):
        show(heading, rows)
    if folder is not None:
        say(folder / "judge.json")


def _measure_suite(
    suite: str,
    model: str,
    against: str | None,
    data: str | None,
    n: int,
    seed: int,
    folder: Path | None,
    device: str,
    as_json: bool,
) -> None:
    import torchcaps
    from torchcaps.train.experiments.suite import run_suite, suite_table

    place = make_device(device)
    loaded, other = torchcaps.load(model, place), None if against is None else torchcaps.load(against, place)
    names = (model, against or "")
    result = run_suite(loaded, suite, against=other, names=names, data=data, n=n, seed=seed, out=folder)
    if as_json:
        print(json.dumps(result))
        return
    say(f"{suite} on {result['n']:,} images of {result['data']}")
    show(*suite_table(result))
    if folder is not None:
        for kind in ("json", "png"):
            say(folder / f"{suite}.{kind}")


def bench(
    device: Device = "auto",
    scaling: Annotated[bool, typer.Option(help="Also vary batch size, children, classes and iterations.")] = False,
    routing: Annotated[
        str | None, typer.Option(help="Compare routings instead: all, or some by name with commas between.")
    ] = None,
    epochs: Annotated[
        int, typer.Option(help="With --routing: epochs of training on MNIST with each routing; 0 for none.", min=0)
    ] = 10,
    masks: Annotated[bool, typer.Option(help="Time segmentation models instead.")] = False,
    out_: Annotated[
        Path | None,
        typer.Option("--out", help="Write the rows to this CSV file; with --scaling or --routing also draw them."),
    ] = None,
) -> None:
    """Time every routing backend, after checking it, and the network against one without capsules."""
    from torchcaps.bench.family import parse_routings, run_family
    from torchcaps.bench.masks import run_masks
    from torchcaps.bench.run import run_bench
    from torchcaps.train.loop import Interrupted

    if scaling + masks + (routing is not None) > 1:
        raise UserError("--scaling, --routing and --masks do not go together: choose one")
    if masks:
        run_masks(make_device(device), out=out_, console=out)
    elif routing is not None:
        try:
            run_family(parse_routings(routing), make_device(device), epochs=epochs, out=out_, console=out)
        except Interrupted:
            raise typer.Exit(130) from None
    else:
        run_bench(make_device(device), scaling=scaling, out=out_, console=out)
