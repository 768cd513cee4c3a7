"""Shared by the commands: consoles, and common options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

out = Console(emoji=False)  # a file name may contain :cat:
err = Console(stderr=True, emoji=False)

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Model = Annotated[str, typer.Argument(help="A run folder, a model folder, a .safetensors file or a shipped name.")]
AnySize = Annotated[
    bool, typer.Option("--any-size", help="For synthesis models: allow masks of another size than in training.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def say(text: object) -> None:
    """Print a line without wrapping or markup, for paths."""
    out.print(str(text), soft_wrap=True, highlight=False, markup=False)


def show(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    columns = (Column(escape(each), overflow="fold") for each in heading)  # cells wrap in a narrow window
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(escape, row))
    out.print(table, highlight=False)
