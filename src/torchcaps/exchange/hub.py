"""Export models as folders for a model hub: weights, configuration, and a card with results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from torchcaps.errors import UserError
from torchcaps.exchange.check import Agreement
from torchcaps.exchange.program import export_wrapper
from torchcaps.models import ImageModel, load, save
from torchcaps.models.files import weights_folder

CARD = """---
library_name: torchcaps
pipeline_tag: {pipeline}
tags: [capsule-network, {architecture}]
---
# {name}

{architecture} with {parameters:,} parameters, for images of {size}. Classes: {classes}.

{measured}

```python
import torchcaps

model = torchcaps.load("{folder}")  # this folder, or its name on the hub
```
"""
UNMEASURED = "Nothing about its accuracy came with the weights."
PIPELINES = {"detection": "object-detection", "segmentation": "image-segmentation", "synthesis": "image-to-image"}
MEASURES = {  # key in a run's summary, and its text on the card
    "test_accuracy": "test accuracy {:.2%}",
    "test_dice": "test Dice {:.2%}",
    "test_similarity": "similarity of drawn test images {:.3f}",
    "test_n": "{:,} test images",
    "recipe": "recipe `{}`",
    "seed": "seed {}",
    "machine": "trained on {}",
}


def write_folder(model: ImageModel, folder: Path, source: str, name: str) -> Agreement:
    """Write model.safetensors, config.json and README.md, as `from_pretrained` and `torchcaps.load` read them.

    Args:
        model: to write.
        folder: to write to.
        source: what the model was loaded from; the results on the card are read from there.
        name: title of the card.
    """
    save(model, folder)
    (folder / "README.md").write_text(card(model, source, name, folder.name), encoding="utf-8")
    return _check_round_trip(model, folder)


def card(model: ImageModel, source: str, name: str, folder: str) -> str:
    """The text of README.md."""
    pipeline = PIPELINES.get(model.task, "image-classification")
    return CARD.format(
        name=name,
        folder=folder,
        pipeline=pipeline,
        architecture=type(model).__name__,
        parameters=model.parameter_count(),
        size="×".join(map(str, model.image_shape)),
        classes=", ".join(model.class_names),
        measured=_read_results(source) or UNMEASURED,
    )


def _read_results(source: str) -> str | None:
    """The results on the card of shipped weights, or in the summary of a run."""
    folder = weights_folder(source)
    if (folder / "card.json").is_file() and (folder / "README.md").is_file():
        return "".join((folder / "README.md").read_text(encoding="utf-8").partition("| | |")[1:]).strip()
    summary = folder.parent / "summary.json"
    return _format_summary(json.loads(summary.read_text(encoding="utf-8"))) if summary.is_file() else None


def _format_summary(summary: dict[str, Any]) -> str:
    lines = [f"- {words.format(summary[key])}" for key, words in MEASURES.items() if summary.get(key) is not None]
    return "\n".join(lines)


@torch.no_grad()
def _check_round_trip(model: ImageModel, folder: Path) -> Agreement:
    """Check that the folder, read back, gives bit-identical output."""
    original, loaded = export_wrapper(model), export_wrapper(load(folder))
    inputs = original.example(3)
    for expected, found in zip(original(*inputs), loaded(*inputs)):
        if not torch.equal(expected, found):
            raise UserError("the written model gives other output than the model; nothing was kept")
    return Agreement(3, 0.0)
