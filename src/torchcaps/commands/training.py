"""The commands `train`, `rerun` and `reproduce`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from torchcaps.commands.common import Device, err, out, say, show
from torchcaps.errors import UserError


def train(
    recipe: Annotated[str | None, typer.Argument(help="A recipe's name or YAML file; see `torchcaps list`.")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="An image folder or CSV, a folder of images/ and masks/, tar shards as in 'train-{000..009}.tar', "
            "a folder of save_to_disk, or a data set's name."
        ),
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a setting: train.epochs=3")] = None,
    out_: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run; runs/<recipe>-<time> by default.")
    ] = None,
    device: Device = "auto",
    precision: Annotated[str | None, typer.Option(help="auto, fp32 or bf16.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, order and augmentation.")] = None,
    devices: Annotated[int, typer.Option(help="Number of devices of this machine, with one process each.", min=1)] = 1,
    nodes: Annotated[
        int, typer.Option(help="Number of machines; see the page on several machines in the docs.", min=1)
    ] = 1,
    shard: Annotated[
        bool,
        typer.Option("--shard", help="Shard weights and moments among the devices, for layers too large for one."),
    ] = False,
    fast: Annotated[bool, typer.Option(help="On CUDA, record the training step as a CUDA graph.")] = True,
    on_nan: Annotated[
        str | None, typer.Option("--on-nan", help="What to do after a NaN or infinite loss: stop, or skip that step.")
    ] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="On CUDA, bit-identical runs; slower.")
    ] = False,
    from_: Annotated[
        str | None,
        typer.Option("--from", help="Start from the weights of this model: its name, folder or file."),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the run in this folder.")] = None,
) -> None:
    """Train a model. Without arguments: the embedded digits, in about a minute."""
    from torchcaps.train.loop import Interrupted
    from torchcaps.train.run import resume_run, start_run

    source, overrides = _data_overrides(data)
    overrides += set_ or ()
    given = {"precision": precision, "epochs": epochs, "seed": seed, "on_nan": on_nan}
    given |= {"fast": None if fast else "no", "deterministic": "yes" if deterministic else None}
    where: dict[str, Any] = {"device": device, "devices": devices, "nodes": nodes, "shard": shard}
    overrides += [f"train.{name}={value}" for name, value in given.items() if value is not None]
    overrides += [] if from_ is None else [f"transfer.weights={json.dumps(from_)}"]
    try:
        if resume is None:
            chosen = _chosen_recipe(recipe, data, source, overrides)
            start_run(chosen, out=out_, console=out, **where)
        elif recipe or data or out_:
            raise UserError("--resume takes recipe, data and folder from the run: omit RECIPE, --data and --out")
        else:
            resume_run(resume, overrides, console=out, **where)
    except Interrupted:
        raise typer.Exit(130) from None


def rerun(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    out_: Annotated[
        Path | None, typer.Option("--out", help="Folder of the new run; RUN-again-<time> by default.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps; that of the run by default.")] = None,
) -> None:
    """Train a run again and compare history, figures and weights; exit code 1 if they differ."""
    from torchcaps.train.experiments.rerun import compare_runs
    from torchcaps.train.experiments.rerun import rerun as train_again
    from torchcaps.train.loop import Interrupted

    try:
        again = train_again(run, out=out_, device=device, console=out)
    except Interrupted:
        raise typer.Exit(130) from None
    if err.quiet:
        return  # rank 0 compares
    found, about = compare_runs(run, again)
    for heading, differences in (("different", found), ("about the two runs", about)):
        for each in differences:
            say(f"{heading}: {each.what}: {each.before} before, {each.now} now")
    out.print("not the same" if found else "the same, bit for bit", style="bold red" if found else "bold green")
    if found:
        raise typer.Exit(1)


def reproduce(
    recipes: Annotated[
        list[str] | None,
        typer.Argument(help="Recipes; by default all with a claimed result. Or `claims` and names of its studies."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds, from 0, for each recipe; 5 by default.", min=1),
    ] = None,
    out_: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder of the results, with the table beside it; `results` or `claims` by default."
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(help="Folder of the runs; finished runs are kept; runs/reproduce or runs/claims by default."),
    ] = None,
    network: Annotated[
        list[str] | None, typer.Option(help="With `claims`: only this network; may be repeated.")
    ] = None,
    side_by_side: Annotated[
        int | None, typer.Option(help="Runs at a time; by default 5 on a GPU, 1 on a CPU.", min=1)
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a setting: train.epochs=3")] = None,
    device: Device = "auto",
) -> None:
    """Train recipes with several seeds and tabulate their results beside published ones.

    `torchcaps reproduce claims` compares capsule networks with CNNs on every claim of the literature.
    """
    from torchcaps.train.experiments.reproduce import reproduce as run_all

    if recipes and recipes[0] == "claims":
        if seeds or set_:
            raise UserError("reproduce claims: seeds and settings are part of the comparison; omit --seeds and --set")
        _reproduce_claims(recipes[1:], network or [], out_, runs, side_by_side, device)
        return
    if network:
        raise UserError("--network goes with `torchcaps reproduce claims`")
    places = {"out": out_ or Path("results"), "runs": runs or Path("runs/reproduce")}
    settings = {"device": device, "side_by_side": side_by_side, "overrides": set_ or ()}
    try:
        results = run_all(recipes or (), seeds or 5, **places, **settings, console=out)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        out.print("\nstopped; run the same command to continue")
        raise typer.Exit(130) from None
    rows = []
    for each in results:
        spread = "" if each["std"] is None else f" ± {each['std']:.2f}"
        paper = "" if each["paper"] is None else f"{each['paper']:g}"
        ours = f"{each['mean']:.2f}{spread}"
        rows.append((each["recipe"], each["result"], paper, ours, str(each["n"]), str(each["seconds"])))
    show(("recipe", "result", "paper", "ours", "n", "seconds"), rows)


def _reproduce_claims(
    studies: list[str],
    networks: list[str],
    folder: Path | None,
    runs: Path | None,
    side_by_side: int | None,
    device: str,
) -> None:
    from torchcaps.claims.run import reproduce_claims

    places = {"out": folder or Path("claims"), "runs": runs or Path("runs/claims")}
    asked = {"studies": studies, "networks": networks, "side_by_side": side_by_side, "device": device}
    try:
        page = reproduce_claims(**places, **asked, console=out)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        out.print("\nstopped; run the same command to continue")
        raise typer.Exit(130) from None
    say(page)


def _chosen_recipe(recipe: str | None, data: str | None, source: str | None, overrides: list[str]) -> Any:
    """The recipe that the user names; else that of the data, which for a folder follows from the images in it."""
    from torchcaps.train.recipe import load_recipe

    if recipe is not None or source != "folder" or data is None:
        usual = {None: "digits", "pairs": "segcaps", "axons": "segcaps", "isbi2012": "isbi"}.get(source, "folder")
        return load_recipe(recipe or usual, overrides)
    from torchcaps.train.auto import recipe_for_folder

    chosen, findings = recipe_for_folder(data, overrides)
    if not err.quiet:  # rank 0 tells
        for line in findings:
            say(line)
    return chosen


def _data_overrides(data: str | None) -> tuple[str | None, list[str]]:
    """--data as the name of a source, and as settings of a recipe."""
    from torchcaps.data import named_data

    if data is None:
        return None, []
    source, path = named_data(data)
    return source, [f"data.source={source}", f"data.path={json.dumps(path)}"]
