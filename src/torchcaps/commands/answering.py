"""The commands `predict`, `generate`, `explain`, `serve` and `list`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from torchcaps.commands.common import AnySize, AsJson, Device, Model, err, out, say, show
from torchcaps.devices import make_device
from torchcaps.errors import UserError

HOST, PORT = "127.0.0.1", 8765
# Fields of a placement in printing order: digits after the point, unit.
STANDING = (
    ("x", 1, ""),
    ("y", 1, ""),
    ("angle", 1, "°"),
    ("scale", 2, ""),
    ("stretch", 2, ""),
    ("shear", 2, ""),
    ("thickness", 1, " px"),
)


def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    reject: Annotated[
        float | None,
        typer.Option(
            help="Answer 'none of these' below this length, instead of below the model's own threshold.", min=0, max=1
        ),
    ] = None,
    out_: Annotated[
        Path | None, typer.Option("--out", help="For segmentation models: folder for masks and overlays.")
    ] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Classify image files; with a segmentation model, write masks and overlays."""
    import torchcaps
    from torchcaps.models import SegmentationModel
    from torchcaps.predict import check_outputs, check_takes_images, familiarity_threshold, predict_file, segment_file

    loaded = torchcaps.load(model, make_device(device))
    check_takes_images(loaded)
    if (loaded.task == "segmentation") != (out_ is not None):
        raise UserError(
            "--out is for segmentation models; this one classifies images"
            if out_
            else "this model segments images: choose a folder for the masks with --out FOLDER"
        )
    if out_ is not None:
        if reject:
            raise UserError("--reject is for classifiers; this model segments images")
        check_outputs(images, out_)
    elif reject is None:
        familiarity_threshold(loaded)  # an invalid threshold is reported once, not for every file
    answers: list[dict[str, Any]] = []
    failed = 0
    for path in images:
        try:
            if out_ is None:
                answers.append(predict_file(loaded, path, reject))
            else:
                answers.append(segment_file(cast(SegmentationModel, loaded), path, out_))
        except UserError as error:
            failed += 1
            err.print(str(error), style="red", soft_wrap=True, highlight=False, markup=False)
    if as_json:
        print(json.dumps(answers, indent=2))
    elif answers:
        if out_ is None:
            _show_classes(answers)
        else:
            _show_masks(answers)
            say(f"{out_ / 'masks'}\n{out_ / 'overlays'}")
    if failed:
        raise typer.Exit(1)


def _show_classes(answers: list[dict[str, Any]]) -> None:
    from torchcaps.predict import NONE_OF_THESE

    if "angle" in answers[0]["ranking"][0]:
        for answer in answers:
            for line in _standing_lines(answer):
                say(line)
        return
    rows = []
    for answer in answers:
        found = ", ".join(answer["classes"]) or NONE_OF_THESE
        second = answer["ranking"][1] if len(answer["ranking"]) > 1 else None
        runner_up = f"{second['class']} {second['length']:.3f}" if second else ""
        rows.append((answer["file"], found, f"{answer['ranking'][0]['length']:.3f}", runner_up))
    show(("file", "class", "length", "next"), rows)


def _standing_lines(answer: dict[str, Any]) -> list[str]:
    """A line for each class found, with its presence and placement."""
    from torchcaps.predict import NONE_OF_THESE

    if not answer["classes"]:
        nearest = answer["ranking"][0]
        line = f"{answer['file']}  {NONE_OF_THESE}  nearest {nearest['class']}  presence {nearest['length']:.2f}"
        if "familiarity" in answer and answer["familiarity"] < answer["none_below"]:
            line += f"  familiarity {answer['familiarity']:.3g}, below {answer['none_below']:.3g}"
        return [line]
    lines = []
    for entry in answer["ranking"]:
        if entry["class"] in answer["classes"]:
            words = [f"presence {entry['length']:.2f}"]
            for name, digits, unit in STANDING:
                if name in entry:
                    words.append(f"{name} {round(entry[name], digits) + 0.0:.{digits}f}{unit}")  # + 0.0: no "-0.0"
            lines.append("  ".join([answer["file"], entry["class"], *words]))
    return lines


def _show_masks(answers: list[dict[str, Any]]) -> None:
    rows = []
    for answer in answers:
        shares = list(answer["shares"].items())[1:]
        found = ", ".join(f"{name} {share:.1%}" for name, share in shares)
        rows.append((answer["file"], "×".join(map(str, answer["size"])), found))
    show(("file", "size", "found"), rows)


def generate(
    model: Model,
    masks: Annotated[list[Path], typer.Argument(help="Mask files: the label maps to draw images from.")],
    out_: Annotated[Path, typer.Option("--out", help="Folder for the images.")],
    n: Annotated[
        int | None, typer.Option("--n", help="Images of each mask, one for each noise vector; 4 by default.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise: the same seed gives the same files.", min=0)] = 0,
    interpolate: Annotated[
        tuple[int, int] | None,
        typer.Option(help="Interpolate from one noise vector to another, by their numbers.", metavar="Z1 Z2"),
    ] = None,
    frames: Annotated[
        int | None, typer.Option(help="With --interpolate: number of images; 16 by default.", min=2)
    ] = None,
    any_size: AnySize = False,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Draw images from masks, each with its own noise, or interpolate between two noise vectors."""
    import torchcaps
    from torchcaps.generate import generate_files, interpolate_files, require_synthesis

    if interpolate is None and frames is not None:
        raise UserError("--frames is for interpolations: add --interpolate Z1 Z2, or set the number of images with --n")
    if interpolate is not None and n is not None:
        raise UserError("--n and --interpolate do not go together: omit one; an interpolation has --frames")
    loaded = require_synthesis(torchcaps.load(model, make_device(device)))
    if interpolate is None:
        answers = generate_files(loaded, masks, out_, n or 4, seed, any_size)
    else:
        if min(interpolate) < 0:
            raise UserError(f"--interpolate {interpolate[0]} {interpolate[1]}: noise vectors are numbered from 0")
        answers = interpolate_files(loaded, masks, out_, interpolate, frames or 16, seed, any_size)
    if as_json:
        print(json.dumps(answers, indent=2))
        return
    for answer in answers:
        for path in answer["images"]:
            say(path)


def explain(
    model: Model,
    image: Annotated[Path, typer.Argument(help="An image file; for synthesis models, a mask.")],
    out_: Annotated[Path, typer.Option("--out", help="Folder for the figures.")],
    target: Annotated[str | None, typer.Option(help="Explain this class instead of the predicted one.")] = None,
    against: Annotated[str | None, typer.Option(help="For synthesis models: a second model to compare with.")] = None,
    any_size: AnySize = False,
    device: Device = "cpu",
) -> None:
    """Show what a capsule network saw in an image: reconstruction, sweep, routing.

    For segmentation models: the maps of every layer. For pose capsules: the placement of a class, the views that found
    it, and sweeps in degrees and pixels. For synthesis models: images of a mask, and the last layer's features from one
    noise vector to another.
    """
    import torchcaps
    from torchcaps.predict import explain_file

    place = make_device(device)
    other = None if against is None else torchcaps.load(against, place)
    loaded = torchcaps.load(model, place)
    for path in explain_file(loaded, image, out_, target, against=other, any_size=any_size):
        say(path)


def serve(
    model: Annotated[
        str, typer.Argument(help="A CapsNet with a decoder, or pose capsules: a shipped name or a path.")
    ] = ("capsnet-mnist"),
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = PORT,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 admits other machines.")] = HOST,
    static: Annotated[
        Path | None,
        typer.Option(help="Start no server; write the explorer as a folder for a static host.", metavar="FOLDER"),
    ] = None,
    runtime: Annotated[
        Path | None,
        typer.Option(help="With --static: the npm package onnxruntime-web, as an archive or a folder. Default: npm."),
    ] = None,
) -> None:
    """Serve the capsule explorer: a page to draw on that shows how a capsule network routes, and its API."""
    if static is not None:
        from torchcaps.site.folder import write_site

        if (port, host) != (PORT, HOST):
            raise UserError("--port and --host are for a server; omit them with --static")
        site = write_site(model, static, runtime, say)
        names = ", ".join(site.models)
        say(f"{site.path}: {names}; {site.megabytes:.1f} MB; answers differ by at most {site.difference:.1g}")
        return
    if runtime is not None:
        raise UserError("--runtime is for --static; omit it")
    from torchcaps.serve.run import serve as run

    run(model, host, port, out)


def list_() -> None:
    """List recipes, models, data sets and shipped weights."""
    from torchcaps.data import MASK_SOURCES, SOURCES
    from torchcaps.layers.routings import ROUTINGS
    from torchcaps.models import list_models, shipped_models
    from torchcaps.train.recipe import list_recipes, load_recipe
    from torchcaps.train.tasks import TASKS

    show(("recipe", "what it trains"), [(name, load_recipe(name).description) for name in list_recipes()])
    for title, names in (
        ("models", list_models()),
        ("routings", sorted(ROUTINGS)),
        ("data sets", sorted(SOURCES)),
        ("with masks", sorted(MASK_SOURCES)),
        ("tasks", sorted(TASKS)),
        ("shipped weights", shipped_models()),
    ):
        out.print(f"\n[bold]{title}[/bold]: {', '.join(names) or 'none'}", highlight=False)
