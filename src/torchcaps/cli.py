"""The command line: parse, call, print."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torchcaps._version import __version__
from torchcaps.errors import LostProcess, UserError
from torchcaps.exchange import commands

if TYPE_CHECKING:
    from torchcaps.models import SynthesisModel

app = typer.Typer(
    help="Capsule networks for PyTorch: train, measure, explain. Add --debug to any command for a full traceback.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
out = Console()
err = Console(stderr=True)

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Model = Annotated[str, typer.Argument(help="A run folder, a model folder, a .safetensors file or a shipped name.")]
AnySize = Annotated[
    bool, typer.Option("--any-size", help="Of a model that draws: also masks of another size than it learned from.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def _version(asked: bool) -> None:
    if asked:
        print(f"torchcaps {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None: ...


@app.command()
def train(
    recipe: Annotated[str | None, typer.Argument(help="A recipe's name or YAML file; see `torchcaps list`.")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="An image folder or CSV, a folder of images/ and masks/, or a data set's name."),
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a setting: train.epochs=3")] = None,
    out_: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run; runs/<recipe>-<time> if not given.")
    ] = None,
    device: Device = "auto",
    precision: Annotated[str | None, typer.Option(help="auto, fp32 or bf16.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order and augmentation.")] = None,
    devices: Annotated[int, typer.Option(help="Train on so many devices of this machine, a process each.", min=1)] = 1,
    nodes: Annotated[int, typer.Option(help="And on so many machines; see docs/trust.md.", min=1)] = 1,
    shard: Annotated[
        bool,
        typer.Option(
            "--shard", help="Share out weights and moments among the devices, for layers too large to train on one."
        ),
    ] = False,
    fast: Annotated[bool, typer.Option(help="On CUDA, record the training step as a CUDA graph.")] = True,
    on_nan: Annotated[
        str | None, typer.Option("--on-nan", help="If a loss is no number: stop, or skip its step and go on.")
    ] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="On CUDA, the same numbers in every run; slower.")
    ] = False,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run folder.")] = None,
) -> None:
    """Train a model. Without arguments: the embedded digits, in about a minute."""
    from torchcaps.train.engine import Interrupted
    from torchcaps.train.recipe import load_recipe
    from torchcaps.train.run import resume_run, start_run

    source, overrides = _data_overrides(data)
    overrides += set_ or ()
    given = {"precision": precision, "epochs": epochs, "seed": seed, "on_nan": on_nan}
    given |= {"fast": None if fast else "no", "deterministic": "yes" if deterministic else None}
    where: dict[str, Any] = {"device": device, "devices": devices, "nodes": nodes, "shard": shard}
    overrides += [f"train.{name}={value}" for name, value in given.items() if value is not None]
    try:
        if resume is None:
            usual = {None: "digits", "pairs": "segcaps", "axons": "segcaps", "isbi2012": "isbi"}.get(source, "folder")
            chosen = load_recipe(recipe or usual, overrides)
            start_run(chosen, out=out_, console=out, **where)
        elif recipe or data or out_:
            raise UserError(
                "--resume takes its recipe, data and folder from the run: leave RECIPE, --data and --out away"
            )
        else:
            resume_run(resume, overrides, console=out, **where)
    except Interrupted:
        raise typer.Exit(130) from None


@app.command()
def rerun(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    out_: Annotated[Path | None, typer.Option("--out", help="Folder of the new run; RUN-again-<time> else.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps; that of the run if not given.")] = None,
) -> None:
    """Train a run once more and compare: history, figures and weights. Ends with 1 if they differ."""
    from torchcaps.train.engine import Interrupted
    from torchcaps.train.rerun import compare_runs
    from torchcaps.train.rerun import rerun as train_again

    try:
        again = train_again(run, out=out_, device=device, console=out)
    except Interrupted:
        raise typer.Exit(130) from None
    if err.quiet:
        return  # of several processes the first compares: it has written what there is to compare
    found, about = compare_runs(run, again)
    for heading, differences in (("different", found), ("about the two runs", about)):
        for each in differences:
            out.print(f"{heading}: {each.what}: {each.before} before, {each.now} now", highlight=False, soft_wrap=True)
    out.print("not the same" if found else "the same, bit for bit", style="bold red" if found else "bold green")
    if found:
        raise typer.Exit(1)


@app.command("eval")
def evaluate(
    model: Model,
    data: Annotated[str | None, typer.Option(help="An image folder or CSV, or a data set's name.")] = None,
    views: Annotated[bool, typer.Option("--views", help="Answer by the mean over nine slightly moved views.")] = False,
    suite: Annotated[
        str | None,
        typer.Option(help="Change the images: affine, corruption, adversarial, equivariance, scrambled or crowding."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="With --suite, and of a model that draws: a second model, on the same images.")
    ] = None,
    n: Annotated[int, typer.Option("--n", help="With --suite: so many test images, of each class alike.", min=1)] = 500,
    seed: Annotated[
        int, typer.Option(help="With --suite: of the images chosen, noise and attacks; or of the first U-Net.", min=0)
    ] = 0,
    out_: Annotated[
        Path | None,
        typer.Option("--out", help="With --suite: folder for <suite>.json and <suite>.png; or for judge.json."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Of a model that draws: U-Nets trained on each kind of images.", min=1)
    ] = 3,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Of a model that draws: a setting of the U-Net's recipe.")
    ] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure a model on a test set: that of its own training data, or all of --data.

    A model that draws is judged by the Dice, on real images, of U-Nets trained on what it draws.
    """
    import torchcaps
    from torchcaps.models import SynthesisModel
    from torchcaps.train.evaluate import evaluate_model

    if suite is not None and views:
        raise UserError("--views and --suite do not go together")
    if suite is not None:
        _measure_suite(suite, model, against, data, n, seed, out_, device, as_json)
        return
    loaded = torchcaps.load(model, _device(device))
    if isinstance(loaded, SynthesisModel):
        if views:
            raise UserError("--views: it is for models that name a class, not for those that draw")
        _judge(loaded, model, against, data, range(seed, seed + seeds), set_ or [], out_, as_json)
        return
    if against or out_:
        raise UserError("--against and --out go with --suite, or with a model that draws")
    if set_:
        raise UserError("--set goes with a model that draws: it is a setting of the U-Net that judges it")
    figures = evaluate_model(loaded, data, views=views)
    if as_json:
        print(json.dumps({"model": model, **figures}))
        return
    if "per_class" in figures:
        _print_masks(model, figures)
        return
    found = f"{figures['accuracy']:.2%} of {figures['n']:,} images right"
    out.print(f"{model} on {figures['data']}: {found}", markup=False, highlight=False, soft_wrap=True)
    out.print(f"error {figures['error']:.2%}, loss {figures['loss']:.4f}", highlight=False)


def _print_masks(model: str, figures: dict[str, Any]) -> None:
    found = f"Dice {figures['dice']:.2%} on {figures['n']:,} images"
    out.print(f"{model} on {figures['data']}: {found}", markup=False, highlight=False, soft_wrap=True)
    table = Table("class", "Dice", "IoU", "Hausdorff 95 %, px", box=None, pad_edge=False)
    for name, values in figures["per_class"].items():
        table.add_row(escape(name), f"{values['dice']:.2%}", f"{values['iou']:.2%}", f"{values['hausdorff95']:.2f}")
    out.print(table, highlight=False)
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
    from torchcaps.generate import drawing_model
    from torchcaps.train.judge import judge, judge_tables

    other = None if against is None else drawing_model(torchcaps.load(against, model.device))
    settings: dict[str, Any] = {"data": data, "overrides": overrides, "out": folder}
    settings |= {"seeds": len(seeds), "first": seeds.start}
    result = judge(model, against=other, names=(name, against or ""), **settings, console=None if as_json else out)
    if as_json:
        print(json.dumps(result))
        return
    for heading, rows in judge_tables(result):
        table = Table(*map(escape, heading), box=None, pad_edge=False)
        for row in rows:
            table.add_row(*map(escape, row))
        out.print(table, highlight=False)
    if folder is not None:
        out.print(str(folder / "judge.json"), soft_wrap=True, highlight=False, markup=False)


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
    from torchcaps.train.suite import run_suite, suite_table

    place = _device(device)
    loaded, other = torchcaps.load(model, place), None if against is None else torchcaps.load(against, place)
    names = (model, against or "")
    result = run_suite(loaded, suite, against=other, names=names, data=data, n=n, seed=seed, out=folder)
    if as_json:
        print(json.dumps(result))
        return
    heading, rows = suite_table(result)
    table = Table(*map(escape, heading), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(escape, row))
    out.print(f"{suite} on {result['n']:,} images of {result['data']}", markup=False, highlight=False)
    out.print(table, highlight=False)
    if folder is not None:
        for kind in ("json", "png"):
            out.print(str(folder / f"{suite}.{kind}"), soft_wrap=True, highlight=False, markup=False)


@app.command()
def reproduce(
    recipes: Annotated[list[str] | None, typer.Argument(help="Recipes; by default all that claim a result.")] = None,
    seeds: Annotated[int, typer.Option(help="Train each with seeds 0, 1, … so many of them.", min=1)] = 5,
    out_: Annotated[Path, typer.Option("--out", help="Folder of the results; their table is beside it.")] = Path(
        "results"
    ),
    runs: Annotated[
        Path, typer.Option(help="Folder of the runs; those that are finished are not trained again.")
    ] = Path("runs/reproduce"),
    side_by_side: Annotated[
        int | None, typer.Option(help="Runs at a time; 5 on a GPU, 1 on a CPU if not given.", min=1)
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a setting: train.epochs=3")] = None,
    device: Device = "auto",
) -> None:
    """Train recipes for several seeds and put what they reach into a table, beside what was published."""
    from torchcaps.train.reproduce import reproduce as run_all

    settings = {"out": out_, "runs": runs, "device": device, "side_by_side": side_by_side, "overrides": set_ or ()}
    try:
        results = run_all(recipes or (), seeds, **settings, console=out)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        out.print("\nstopped; the same command goes on")
        raise typer.Exit(130) from None
    table = Table("recipe", "result", "paper", "ours", "n", "seconds", box=None, pad_edge=False)
    for each in results:
        spread = "" if each["std"] is None else f" ± {each['std']:.2f}"
        paper = "" if each["paper"] is None else f"{each['paper']:g}"
        ours = f"{each['mean']:.2f}{spread}"
        table.add_row(each["recipe"], escape(each["result"]), paper, ours, str(each["n"]), str(each["seconds"]))
    out.print(table)


@app.command()
def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    reject: Annotated[float, typer.Option(help="Answer 'none of these' below this length.", min=0, max=1)] = 0.0,
    out_: Annotated[
        Path | None, typer.Option("--out", help="Of a model that finds masks: folder for masks and overlays.")
    ] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Say what is on image files; of a model that finds masks, write these, and the images with them on top."""
    import torchcaps
    from torchcaps.models import PixelModel
    from torchcaps.predict import check_finds, check_names, predict_file, segment_file

    loaded = torchcaps.load(model, _device(device))
    check_finds(loaded)
    if isinstance(loaded, PixelModel) != (out_ is not None):
        raise UserError(
            "--out is for models that find masks; this one names a class"
            if out_
            else "this model finds masks: say where to write them with --out FOLDER"
        )
    if out_ is not None:
        if reject:
            raise UserError("--reject is for models that name a class; this one finds masks")
        check_names(images, out_)
    answers: list[dict[str, Any]] = []
    failed = 0
    for path in images:
        try:
            if out_ is None:
                answers.append(predict_file(loaded, path, reject))
            else:
                answers.append(segment_file(cast(PixelModel, loaded), path, out_))
        except UserError as error:
            failed += 1
            err.print(str(error), style="red", soft_wrap=True, highlight=False, markup=False)
    if as_json:
        print(json.dumps(answers, indent=2))
    elif answers:
        out.print(_table_of_classes(answers) if out_ is None else _table_of_masks(answers))
        if out_ is not None:
            out.print(f"{out_ / 'masks'}\n{out_ / 'overlays'}", soft_wrap=True, highlight=False, markup=False)
    if failed:
        raise typer.Exit(1)


def _table_of_classes(answers: list[dict[str, Any]]) -> Table:
    from torchcaps.predict import NONE

    table = Table("file", "class", "length", "next", box=None, pad_edge=False)
    for answer in answers:
        found = ", ".join(answer["classes"]) or NONE
        second = answer["ranking"][1] if len(answer["ranking"]) > 1 else None
        rival = f"{second['class']} {second['length']:.3f}" if second else ""
        table.add_row(escape(answer["file"]), escape(found), f"{answer['ranking'][0]['length']:.3f}", escape(rival))
    return table


def _table_of_masks(answers: list[dict[str, Any]]) -> Table:
    table = Table("file", "size", "found", box=None, pad_edge=False)
    for answer in answers:
        shares = list(answer["shares"].items())[1:]
        found = ", ".join(f"{name} {share:.1%}" for name, share in shares)
        size = "×".join(map(str, answer["size"]))
        table.add_row(escape(answer["file"]), size, escape(found))
    return table


@app.command()
def generate(
    model: Model,
    masks: Annotated[list[Path], typer.Argument(help="Mask files: the label maps to draw.")],
    out_: Annotated[Path, typer.Option("--out", help="Folder for the images.")],
    n: Annotated[
        int | None, typer.Option("--n", help="Images of each mask, by as many noise vectors; 4 if not given.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the noise: the same seed gives the same files.", min=0)] = 0,
    interpolate: Annotated[
        tuple[int, int] | None,
        typer.Option(help="Instead, a film from one noise vector to another, by their numbers.", metavar="Z1 Z2"),
    ] = None,
    frames: Annotated[
        int | None, typer.Option(help="With --interpolate: images of the film; 16 if not given.", min=2)
    ] = None,
    any_size: AnySize = False,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Draw images from masks, each by noise of its own; or a film from one of them to another."""
    import torchcaps
    from torchcaps.generate import drawing_model, generate_files, interpolate_files

    if interpolate is None and frames is not None:
        raise UserError("--frames is for films: give --interpolate Z1 Z2 as well, or --n for so many images")
    if interpolate is not None and n is not None:
        raise UserError("--n is for single images: leave it away, or --interpolate; a film has --frames")
    loaded = drawing_model(torchcaps.load(model, _device(device)))
    if interpolate is None:
        answers = generate_files(loaded, masks, out_, n or 4, seed, any_size)
    else:
        if min(interpolate) < 0:
            raise UserError(f"--interpolate {interpolate[0]} {interpolate[1]}: noise vectors are numbered from 0 on")
        answers = interpolate_files(loaded, masks, out_, interpolate, frames or 16, seed, any_size)
    if as_json:
        print(json.dumps(answers, indent=2))
        return
    for answer in answers:
        for path in answer["images"]:
            out.print(path, soft_wrap=True, highlight=False, markup=False)


@app.command()
def explain(
    model: Model,
    image: Annotated[Path, typer.Argument(help="An image file; of a model that draws, a mask.")],
    out_: Annotated[Path, typer.Option("--out", help="Folder for the figures.")],
    target: Annotated[str | None, typer.Option(help="Explain this class instead of the predicted one.")] = None,
    against: Annotated[str | None, typer.Option(help="Of a model that draws: a second one beside it.")] = None,
    any_size: AnySize = False,
    device: Device = "cpu",
) -> None:
    """Show what a capsule network saw in an image: reconstruction, sweep, routing; of masks, every layer's maps.

    Of a model that draws: images of a mask, and the last layer's features from one noise vector to another.
    """
    import torchcaps
    from torchcaps.predict import explain_file

    place = _device(device)
    other = None if against is None else torchcaps.load(against, place)
    loaded = torchcaps.load(model, place)
    for path in explain_file(loaded, image, out_, target, against=other, any_size=any_size):
        out.print(str(path), soft_wrap=True, highlight=False, markup=False)


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="A capsule network with a decoder: shipped name or path.")] = (
        "capsnet-mnist"
    ),
    port: Annotated[int, typer.Option(help="To listen on.", min=0, max=65535)] = 8765,
    host: Annotated[str, typer.Option(help="To listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
) -> None:
    """Open the capsule explorer: a page to draw on that shows what a capsule network thinks, and its API."""
    from torchcaps.serve.run import serve as run

    run(model, host, port, out)


@app.command()
def bench(
    device: Device = "auto",
    scaling: Annotated[bool, typer.Option(help="Also vary batch, children, classes and iterations.")] = False,
    routing: Annotated[
        str | None, typer.Option(help="Compare routings instead: all, or some by name with commas between.")
    ] = None,
    epochs: Annotated[
        int, typer.Option(help="With --routing: train on MNIST with each, so many epochs; 0 for not at all.", min=0)
    ] = 10,
    masks: Annotated[bool, typer.Option(help="Time models that find masks instead.")] = False,
    out_: Annotated[
        Path | None,
        typer.Option("--out", help="Write the rows to this CSV file; with --scaling or --routing also draw them."),
    ] = None,
) -> None:
    """Time routing by every backend, and the whole network against one without capsules. Routing is checked first."""
    from torchcaps.bench.family import family_of, run_family
    from torchcaps.bench.masks import run_masks
    from torchcaps.bench.run import run_bench
    from torchcaps.train.engine import Interrupted

    if scaling + masks + (routing is not None) > 1:
        raise UserError("--scaling, --routing and --masks do not go together: ask for one at a time")
    if masks:
        run_masks(_device(device), out=out_, console=out)
    elif routing is not None:
        try:
            run_family(family_of(routing), _device(device), epochs=epochs, out=out_, console=out)
        except Interrupted:
            raise typer.Exit(130) from None
    else:
        run_bench(_device(device), scaling=scaling, out=out_, console=out)


@app.command("list")
def list_() -> None:
    """List recipes, models, data sets and shipped weights."""
    from torchcaps.data import MASK_SOURCES, SOURCES
    from torchcaps.layers.routings import ROUTINGS
    from torchcaps.models import list_models, shipped_models
    from torchcaps.train.recipe import list_recipes, load_recipe

    table = Table("recipe", "what it trains", box=None, pad_edge=False)
    for name in list_recipes():
        table.add_row(name, load_recipe(name).description)
    out.print(table)
    for title, names in (
        ("models", list_models()),
        ("routings", sorted(ROUTINGS)),
        ("data sets", sorted(SOURCES)),
        ("with masks", sorted(MASK_SOURCES)),
        ("shipped weights", shipped_models()),
    ):
        out.print(f"\n[bold]{title}[/bold]: {', '.join(names) or 'none'}", highlight=False)


app.command()(commands.export)
app.command()(commands.convert)


def _data_overrides(data: str | None) -> tuple[str | None, list[str]]:
    """--data as a source, and as settings of a recipe."""
    from torchcaps.data import named_data

    if data is None:
        return None, []
    source, path = named_data(data)
    return source, [f"data.source={source}", f"data.path={json.dumps(path)}"]


def _device(name: str) -> Any:
    from torchcaps.train.engine import make_fabric

    return make_fabric(name, "fp32").device


def main() -> NoReturn:
    """Run the command line; a user's mistake ends in one message and exit code 2."""
    code = _run()
    if team := sys.modules.get("torchcaps.train.team"):
        team.leave(code)
    sys.exit(code)


def _run() -> int:
    """The command's exit code."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
    err.quiet = rank != "0"  # of several processes one speaks
    warnings.showwarning = lambda message, *rest, **more: err.print(f"note: {message}", markup=False, soft_wrap=True)
    try:
        app(arguments, prog_name="torchcaps")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except UserError as error:
        if debug:
            raise
        if isinstance(error, LostProcess):
            err.quiet = rank not in ("0", "1")
        err.print(f"error: {error}", style="red", soft_wrap=True, highlight=False, markup=False)
        return 2
    return 0


if __name__ == "__main__":
    main()
