"""What commands have in common: where they print, and options that several of them take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

out = Console(emoji=False)  # a file may be called :cat:
err = Console(stderr=True, emoji=False)

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Model = Annotated[str, typer.Argument(help="A run folder, a model folder, a .safetensors file or a shipped name.")]
AnySize = Annotated[
    bool, typer.Option("--any-size", help="Of a model that draws: also masks of another size than it learned from.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def make_device(name: str) -> Any:
    from torchcaps.train.distributed import make_fabric

    return make_fabric(name, "fp32").device


def say(text: object) -> None:
    """A line as it is: a path is neither wrapped nor read as markup."""
    out.print(str(text), soft_wrap=True, highlight=False, markup=False)


def show(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    columns = (Column(escape(each), overflow="fold") for each in heading)  # a narrow window shortens nothing
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(escape, row))
    out.print(table, highlight=False)
