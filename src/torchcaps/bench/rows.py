"""Measured rows as a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import torch

from torchcaps.errors import UserError
from torchcaps.train.environment import machine


def blank_row(head: Sequence[str], device: torch.device) -> dict[str, str]:
    """A row of which only the machine is known."""
    return {**dict.fromkeys(head, ""), "machine": machine(device)}


def write_rows(out: Path | None, head: Sequence[str], rows: Sequence[dict[str, str]]) -> None:
    """All rows so far: a long run that is stopped leaves what it has measured."""
    if out is None:
        return
    if out.suffix == ".png":
        raise UserError(f"--out {out}: rows go into a CSV file, and a picture of them beside it; give a name in .csv")
    try:
        with out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, head)
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise UserError(f"--out {out}: it cannot be written: {error.strerror or error}") from error
