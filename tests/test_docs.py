"""What the documents show runs as it is written there."""

import importlib.util
import re
from pathlib import Path

import pytest

import torchcaps
from torchcaps.exchange.onnx_file import write_onnx
from torchcaps.layers.routings import ROUTINGS
from torchcaps.train.recipe import load_recipe

DOCS = Path(__file__).parents[1] / "docs"
spec = importlib.util.spec_from_file_location("make_figures", DOCS / "make_figures.py")
make_figures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_figures)


@pytest.mark.parametrize("page", make_figures.PAGES, ids=lambda page: page.name)
def test_every_table_is_what_the_files_of_the_benchmarks_say(page, tmp_path):
    (copy := tmp_path / page.name).write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    make_figures.fill(copy)
    assert copy.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")


def test_a_routing_of_ones_own_is_made_as_the_page_says():
    example = re.findall(r"```python\n(.*?)```", (DOCS / "routing.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    try:
        exec(compile(example, "docs/routing.md", "exec"), {})
    finally:
        ROUTINGS.pop("winner", None)


@pytest.mark.parametrize("name", sorted(ROUTINGS))
def test_every_routing_is_in_the_table(name):
    assert f"| `{name}` |" in (DOCS / "routing.md").read_text(encoding="utf-8")


def test_segmentation_from_python_runs_as_the_page_says():
    (example,) = re.findall(r"```python\n(.*?)```", (DOCS / "segmentation.md").read_text(encoding="utf-8"), re.DOTALL)
    found: dict = {}
    exec(compile(example, "docs/segmentation.md", "exec"), found)
    assert found["picture"].shape == (64, 64, 3)


def test_synthesis_from_python_runs_as_the_page_says():
    (example,) = re.findall(r"```python\n(.*?)```", (DOCS / "synthesis.md").read_text(encoding="utf-8"), re.DOTALL)
    found: dict = {}
    exec(compile(example, "docs/synthesis.md", "exec"), found)
    assert found["image"].shape == (1, 1, 64, 64)
    assert len(found["images"]) == 4


def test_the_settings_that_pages_name_are_settings():
    named = 0
    for page in DOCS.glob("*.md"):
        for recipe, rest in re.findall(r"\$ torchcaps train ([\w-]+)(.*)", page.read_text(encoding="utf-8")):
            named += len(settings := re.findall(r"--set ([\w.]+=[^\s`]+)", rest))
            load_recipe(recipe, settings)
    assert named >= 5


def test_an_exported_model_runs_as_the_page_says(tmp_path, monkeypatch):
    (example,) = re.findall(r"```python\n(.*?)```", (DOCS / "export.md").read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    write_onnx(torchcaps.load("capsnet-digits"), Path("capsnet-digits.onnx"))
    found: dict = {}
    exec(compile(example, "docs/export.md", "exec"), found)
    assert len(found["names"]) == 5
    assert set(found["names"]) <= set("0123456789")
    assert found["reconstruction"].shape == (5, 1, 16, 16)
