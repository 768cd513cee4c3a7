"""Sharded weights: every capsule layer is a unit of its own, and the gradients are those of the whole model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchcaps.layers import DenseCaps
from torchcaps.models import create_model, list_models
from torchcaps.train.fsdp import capsule_layers

SCRIPT = Path(__file__).with_name("shard_models.py")


def test_capsule_layers_are_found_and_others_are_not():
    model = create_model("capsnet_small", image_shape=(1, 14, 14))
    assert capsule_layers(model) == [model.primary, model.classes]
    nested = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ModuleList([model]))
    assert capsule_layers(nested) == [model.primary, model.classes]
    assert capsule_layers(create_model("baseline_cnn")) == []
    assert capsule_layers(DenseCaps(4, 4, 3, 4)) == []  # it is the root itself


@pytest.mark.slow
def test_every_model_has_the_gradients_of_one_process(tmp_path):
    ranks = [subprocess.Popen([sys.executable, str(SCRIPT), str(rank), str(tmp_path)]) for rank in range(2)]
    assert [process.wait(timeout=300) for process in ranks] == [0, 0]
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert len(found) >= len(list_models()) - 4
        for name, each in found.items():
            if name.startswith("posecaps"):
                assert "parameters of one number" in each["wrong"]
                continue
            assert each["wrong"] == "", name
            assert (each["units"] >= 1) == ("caps" in name)
