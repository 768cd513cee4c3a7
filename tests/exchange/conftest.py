"""Exports are slow: each kind is made once for the tests that look at it."""

from __future__ import annotations

import pytest
import torch

import torchcaps
from torchcaps.exchange.export import export
from torchcaps.models import create_model


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A folder with a small CapsNet of two channels and three named classes."""
    torch.manual_seed(0)
    about = {"class_names": ["ant", "bee", "cow"], "mean": [0.4, 0.5], "std": [0.3, 0.2], "resize_to": (16, 18)}
    sizes = {"channels": 6, "types": 3, "dim": 4, "class_dim": 5, "hidden": (7,)}
    model = create_model("capsnet_small", image_shape=(2, 14, 16), num_classes=3, **sizes, **about)
    return torchcaps.save(model, tmp_path_factory.mktemp("small") / "small")


@pytest.fixture(scope="session")
def exported(small, tmp_path_factory):
    """exported(kind) → the small CapsNet in that form, and how it compared."""
    made = {}

    def once(kind):
        if kind not in made:
            ending = {"onnx": "small.onnx", "hub": "small-hub"}.get(kind, f"{kind}.pt2")
            made[kind] = export(str(small), kind, tmp_path_factory.mktemp("exported") / ending)
        return made[kind]

    return once
