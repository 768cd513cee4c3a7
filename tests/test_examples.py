"""Every example runs."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pytest
import torch

from torchcaps.layers import ROUTINGS, DenseCaps, PrimaryCaps
from torchcaps.losses import margin_loss

EXAMPLES = Path(__file__).parents[1] / "examples"
TESTED = {
    *("own_everything", "own_routing", "resnet_with_capsules", "lightning_module"),
    *("per_sample_gradients", "onnx_own_module"),
}


def test_no_example_is_without_a_test():
    assert {path.stem for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")} == TESTED


@pytest.mark.slow
def test_own_everything(tmp_path):
    """As a user runs it: in a process, whose child processes import the plugin."""
    script = EXAMPLES / "own_everything.py"
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 60
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "results" / "own_everything.json").read_text(encoding="utf-8"))
    assert result["n"] == 2
    assert result["mean"] > 80
    config = json.loads((tmp_path / "bar_caps" / "config.json").read_text(encoding="utf-8"))
    assert config["plugins"] == ["own_everything.py"]
    assert config["task"] == "strict"
    assert (tmp_path / "bar_caps.onnx").is_file()


def test_own_routing(capsys):
    try:
        runpy.run_path(str(EXAMPLES / "own_routing.py"), run_name="__main__")
    finally:
        ROUTINGS.pop("sharpened", None)
    assert "has the properties of a routing" in capsys.readouterr().out


def test_resnet_with_capsules():
    _, history = runpy.run_path(str(EXAMPLES / "resnet_with_capsules.py"))["train"](epochs=1)
    assert history[-1]["val_accuracy"] > 0.5


@pytest.mark.filterwarnings("default")  # of Fabric, about data loaders without workers
def test_lightning_module():
    assert runpy.run_path(str(EXAMPLES / "lightning_module.py"))["train"](epochs=1) > 0.8


def test_per_sample_gradients():
    norms_of = runpy.run_path(str(EXAMPLES / "per_sample_gradients.py"))["gradient_norms"]
    torch.manual_seed(0)
    network = torch.nn.Sequential(PrimaryCaps(1, 4, 4, 3, stride=2, padding=1), DenseCaps(64, 4, 3, 8))
    images, targets = torch.rand(3, 1, 8, 8), torch.tensor([2, 0, 1])
    expected = []
    for image, target in zip(images, targets):
        network.zero_grad()
        margin_loss(network(image[None]).activation, target[None]).mean().backward()
        expected.append(torch.cat([weight.grad.flatten() for weight in network.parameters()]).norm())
    torch.testing.assert_close(norms_of(network, images, targets), torch.stack(expected))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch.export warns of what it does itself
def test_onnx_own_module(tmp_path):
    pytest.importorskip("onnxscript")
    assert runpy.run_path(str(EXAMPLES / "onnx_own_module.py"))["export"](tmp_path / "own.onnx") < 1e-5


def test_the_notebook_runs_from_its_first_cell_to_its_last(monkeypatch):
    cells = json.loads((EXAMPLES / "resnet_with_capsules.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict = {}
    with mpl.rc_context({"backend": "agg"}):
        for cell in cells:
            if cell["cell_type"] == "code":
                assert cell["outputs"] == []
                exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert names["accuracy"] > 0.5
    assert names["couplings"].shape == (1, 128, 10)
