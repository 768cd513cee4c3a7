"""Turn a finished run into weights that the package ships: in float16, with a card that says how they were made.

python tools/ship_weights.py RUN NAME src/torchcaps/weights [--no-decoder]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from torchcaps.errors import UserError
from torchcaps.models import ImageModel, SynthesisModel, load
from torchcaps.models.files import write_model
from torchcaps.train.environment import commit
from torchcaps.train.evaluate import evaluate_model
from torchcaps.train.experiments.judge import judge

CARD = """# {name}

{model}{without}, {parameters:,} parameters, stored in float16 ({megabytes:.1f} MB).

| | |
|---|---|
| data | {data} |
| recipe | `torchcaps train {recipe} --seed {seed}`, version {version}, commit {commit} |
| measured as stored, by `torchcaps eval {name}` | {measured} |
| trained in | {train_seconds:.0f} s on {machine} |
"""


WRONG = "error {error:.4%} on {n:,} test images ({wrong} wrong)"
FOUND = "Dice {dice:.2%} on {n:,} test images"
OBJECTS = "F1 {f1:.2%} of the objects of {n:,} test images"
DRAWN = (
    "Dice {dice:.2%} ± {std:.2%} on {n:,} real images, of {seeds} U-Nets that learned from what it draws; {real:.2%} "
    "of such that learned from real images"
)


def ship(run: Path, name: str, weights: Path, decoder: bool = True) -> dict[str, Any]:
    """Write a run's model to `weights/name` in float16, measure it as it will be loaded, and write its card.

    Args:
        run: the folder of a finished run.
        name: of the shipped model.
        weights: the folder of all shipped models.
        decoder: whether to keep the decoder; for a classifier it can be most of the file.
    """
    if not (run / "summary.json").is_file():
        raise UserError(f"{run} has not finished: only a finished run can be shipped")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    folder = weights / name
    folder.mkdir(parents=True, exist_ok=True)
    trained = load(run)
    write_model(trained if decoder else _without_decoder(trained), folder, torch.float16)
    model = load(folder)
    figures = _judged(model) if model.task == "synthesis" else evaluate_model(model)
    facts = {
        **summary,
        **figures,
        "name": name,
        "parameters": model.parameter_count(),
        "without": "" if decoder else ", without the decoder that it was trained with",
        "commit": commit() or "unknown",
        "megabytes": (folder / "model.safetensors").stat().st_size / 1e6,
    }
    if "error" in figures:
        facts["wrong"] = round(figures["error"] * figures["n"])
    words = {"classification": WRONG, "segmentation": FOUND, "synthesis": DRAWN, "detection": OBJECTS}[model.task]
    facts["measured"] = words.format(**facts)
    (folder / "README.md").write_text(CARD.format(**facts), encoding="utf-8")
    kept = ("name", "recipe", "seed", "version", "commit", "data", "error", "dice", "f1", "std", "n", "parameters")
    card = {key: facts[key] for key in kept if key in facts}
    (folder / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    return facts


def _without_decoder(model: ImageModel) -> ImageModel:
    smaller = type(model)(**{**model.arguments, "class_names": model.class_names, "decoder": "none"})
    smaller.load_state_dict({name: w for name, w in model.state_dict().items() if not name.startswith("decoder.")})
    smaller.trained_by = model.trained_by
    return smaller.eval()


def _judged(model: SynthesisModel) -> dict[str, Any]:
    result = judge(model)
    drawn, real = result["trained"]["model"], result["trained"]["real"]
    names = {"dice": drawn["mean"], "std": drawn["std"], "seeds": drawn["n"], "real": real["mean"]}
    return {**names, "n": result["test_n"], "data": result["data"]}


if __name__ == "__main__":
    run, name, weights, *options = sys.argv[1:]
    print(Path(weights) / name, ship(Path(run), name, Path(weights), decoder="--no-decoder" not in options)["measured"])
