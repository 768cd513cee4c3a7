"""Measured rows as a CSV file and as a table."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from rich.table import Table

from torchcaps.errors import UserError
from torchcaps.train.environment import machine


def blank_row(head: Sequence[str], device: torch.device) -> dict[str, str]:
    """A row with the machine filled in and all other columns empty."""
    return {**dict.fromkeys(head, ""), "machine": machine(device)}


def rounded(value: float | None, digits: int) -> str:
    """Format a number; an empty string for None."""
    return "" if value is None else f"{value:.{digits}f}"


def write_rows(out: Path | None, head: Sequence[str], rows: Sequence[dict[str, str]]) -> None:
    """Write all rows measured so far, so that an interrupted run keeps its results."""
    if out is None:
        return
    if out.suffix == ".png":
        raise UserError(f"--out {out}: name a .csv file; the figure is written beside it")
    try:
        with out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, head)
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise UserError(f"--out {out}: it cannot be written: {error.strerror or error}") from error


def table_of(titles: Mapping[str, str], rows: Iterable[dict[str, str]]) -> Table:
    """A table of some columns.

    Args:
        titles: The title of each column, by its name in the CSV file.
        rows: Rows as written to the CSV file.
    """
    table = Table(*titles.values(), box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*(row[name] for name in titles))
    return table
