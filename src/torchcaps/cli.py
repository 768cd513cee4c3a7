"""The command line: every command under one name, and how a user's mistake ends."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from torchcaps._version import __version__
from torchcaps.commands import answering, detecting, exchanging, measuring, training
from torchcaps.commands.common import err
from torchcaps.errors import LostProcess, UserError
from torchcaps.plugins import inherit, load_plugins

OPENMP_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # of how its threads wait
app = typer.Typer(
    help="Capsule networks for PyTorch: train, measure, explain. Add --debug to any command for a full traceback, and "
    "--plugin MODULE to import models, routings, data sets or tasks of your own: a module's name, or a .py file.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"torchcaps {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None: ...


COMMANDS: dict[str, Callable[..., None]] = {
    "train": training.train,
    "rerun": training.rerun,
    "eval": measuring.evaluate,
    "reproduce": training.reproduce,
    "predict": answering.predict,
    "detect": detecting.detect,
    "generate": answering.generate,
    "explain": answering.explain,
    "serve": answering.serve,
    "bench": measuring.bench,
    "list": answering.list_,
    "export": exchanging.export,
    "convert": exchanging.convert,
}
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


def main() -> NoReturn:
    """Run the command line; a user's mistake ends in one message and exit code 2."""
    _let_waiting_threads_sleep()
    code = _run()
    if distributed := sys.modules.get("torchcaps.train.distributed"):
        distributed.exit_without_teardown(code)
    sys.exit(code)


def _let_waiting_threads_sleep() -> None:
    """Make OpenMP's threads sleep while they wait for each other, unless the environment has a setting of its own.

    By default they spin, which on a busy machine takes the cores from the threads that they wait for: training beside
    two busy processes is fifty times slower. OpenMP reads the environment when PyTorch is loaded, which commands do.
    """
    if not any(name in os.environ for name in OPENMP_SETTINGS):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def _run() -> int:
    """The command's exit code."""
    debug = "--debug" in sys.argv
    rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
    err.quiet = rank != "0"  # only rank 0 prints
    warnings.showwarning = lambda message, *rest, **more: err.print(f"note: {message}", markup=False, soft_wrap=True)
    try:
        arguments, plugins = _without_plugins([argument for argument in sys.argv[1:] if argument != "--debug"])
        load_plugins(inherit(plugins))
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


def _without_plugins(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments without --plugin, which every command has, and its values."""
    rest, plugins = [], []
    given = iter(arguments)
    for argument in given:
        option, equals, value = argument.partition("=")
        if option != "--plugin":
            rest.append(argument)
        elif plugin := value if equals else next(given, ""):
            plugins.append(plugin)
        else:
            raise UserError("--plugin: give the name of a module, or the path of a .py file")
    return rest, plugins


if __name__ == "__main__":
    main()
