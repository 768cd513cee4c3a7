"""Models as folders that a hub takes: weights, configuration, and a card with what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from torchcaps.errors import UserError
from torchcaps.exchange.check import Agreement
from torchcaps.exchange.program import answers_of
from torchcaps.models import ImageModel, SegmentationModel, SynthesisModel, load, save
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
MEASURES = {  # of a run's summary, in the words of a card
    "test_accuracy": "test accuracy {:.2%}",
    "test_dice": "test Dice {:.2%}",
    "test_likeness": "similarity of drawn test images {:.3f}",
    "test_n": "{:,} test images",
    "recipe": "recipe `{}`",
    "seed": "seed {}",
    "machine": "trained on {}",
}


def write_folder(model: ImageModel, folder: Path, source: str, name: str) -> Agreement:
    """model.safetensors, config.json and README.md: what `from_pretrained` and `torchcaps.load` read.

    source  what the model was loaded from: the figures on the card are found beside it
    """
    save(model, folder)
    (folder / "README.md").write_text(card(model, source, name, folder.name), encoding="utf-8")
    return _same(model, folder)


def card(model: ImageModel, source: str, name: str, folder: str) -> str:
    """The README of a hub's folder."""
    kinds = {SegmentationModel: "image-segmentation", SynthesisModel: "image-to-image"}
    pipeline = next((words for kind, words in kinds.items() if isinstance(model, kind)), "image-classification")
    return CARD.format(
        name=name,
        folder=folder,
        pipeline=pipeline,
        architecture=type(model).__name__,
        parameters=model.parameter_count(),
        size="×".join(map(str, model.image_shape)),
        classes=", ".join(model.class_names),
        measured=_measured(source) or UNMEASURED,
    )


def _measured(source: str) -> str | None:
    """What the card of shipped weights says, or the summary of a run."""
    folder = weights_folder(source)
    if (folder / "card.json").is_file() and (folder / "README.md").is_file():
        return "".join((folder / "README.md").read_text(encoding="utf-8").partition("| | |")[1:]).strip()
    summary = folder.parent / "summary.json"
    return _figures(json.loads(summary.read_text(encoding="utf-8"))) if summary.is_file() else None


def _figures(summary: dict[str, Any]) -> str:
    lines = [f"- {words.format(summary[key])}" for key, words in MEASURES.items() if summary.get(key) is not None]
    return "\n".join(lines)


@torch.no_grad()
def _same(model: ImageModel, folder: Path) -> Agreement:
    """Read back what was written: it answers as the model does, to the last bit."""
    ours, theirs = answers_of(model), answers_of(load(folder))
    inputs = ours.example(3)
    for expected, found in zip(ours(*inputs), theirs(*inputs)):
        if not torch.equal(expected, found):
            raise UserError("what was written does not answer as the model does; nothing was kept")
    return Agreement(3, 0.0)
