"""A finished run as weights that come with the package: half the size, with a card that says how they were made.

python -m torchcaps.train.ship RUN NAME SHELF
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from torchcaps.errors import UserError
from torchcaps.models import load
from torchcaps.models.files import write_model
from torchcaps.train.evaluate import evaluate_model

CARD = """# {name}

{model}, {parameters:,} parameters, stored in float16 ({megabytes:.1f} MB).

| | |
|---|---|
| data | {data} |
| recipe | `torchcaps train {recipe} --seed {seed}`, version {version}, commit {commit} |
| measured as stored, by `torchcaps eval {name}` | error {error:.4%} on {n:,} test images ({wrong} wrong) |
| trained in | {train_seconds:.0f} s on {machine} |
"""


def ship(run: Path, name: str, shelf: Path) -> dict[str, Any]:
    """Write a run's model to `shelf/name` in float16, measure it as it will be loaded, and write its card."""
    if not (run / "summary.json").is_file():
        raise UserError(f"{run} has not finished: only a finished run can be shipped")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    folder = shelf / name
    folder.mkdir(parents=True, exist_ok=True)
    write_model(load(run), folder, torch.float16)
    figures = evaluate_model(load(folder))
    facts = {
        **summary,
        **figures,
        "name": name,
        "commit": _commit(),
        "megabytes": (folder / "model.safetensors").stat().st_size / 1e6,
        "wrong": round(figures["error"] * figures["n"]),
    }
    (folder / "README.md").write_text(CARD.format(**facts), encoding="utf-8")
    kept = ("name", "recipe", "seed", "version", "commit", "data", "error", "n", "parameters")
    (folder / "card.json").write_text(json.dumps({key: facts[key] for key in kept}, indent=2) + "\n", encoding="utf-8")
    return facts


def _commit() -> str:
    try:
        asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        return asked.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


if __name__ == "__main__":
    run, name, shelf = sys.argv[1:]
    print((Path(shelf) / name), f"error {ship(Path(run), name, Path(shelf))['error']:.4%}")
