"""The documentation shows what is true: its code runs, its commands exist, and its tables match the measured files."""

import ast
import glob
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
import typer.main
from PIL import Image

import torchcaps
from test_cli import draw, torchcaps_command
from torchcaps.bench import routing, step
from torchcaps.cli import app
from torchcaps.data import SOURCES, draw_axons
from torchcaps.exchange.onnx_file import write_onnx
from torchcaps.layers import ROUTINGS
from torchcaps.models.backbones import BACKBONES
from torchcaps.models.registry import CLASSES, MODELS
from torchcaps.train.loggers import CALLBACKS
from torchcaps.train.recipe import Recipe, list_recipes, load_recipe
from torchcaps.train.run import start_run
from torchcaps.train.tasks import TASKS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
START = (README, DOCS / "train.md", DOCS / "predict.md")
API = (ROOT / "tests" / "api.txt").read_text(encoding="utf-8").splitlines()
REPOSITORY = "https://github.com/torchcaps/torchcaps"
MASKS = "--epochs 1 --device cpu --set data.limit=4 --set data.validation=2 --set train.read_test=no"
# Options that make the commands of the Start pages short, by how the command begins.
SHORT = {
    "train --resume": "--epochs 2 --device cpu",
    "train segcaps": MASKS,
    "train capspix2pix": MASKS,
    "train": "--epochs 1 --device cpu --set data.limit=16",
    "reproduce": "--seeds 1 --device cpu --set train.epochs=1 --set data.limit=32",
    "eval capsnet-digits": "--n 10",
    "serve": "--port 0",
    "bench": "--device cpu",
}


def load_script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_figures = load_script(DOCS / "make_figures.py")


def blocks(page, language):
    """The fenced code blocks of a page."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def commands(page):
    """The commands of a page's console blocks, without the comments behind them."""
    lines = "".join(blocks(page, "console")).splitlines()
    return [line.removeprefix("$ ").split("  #")[0].strip() for line in lines if line.startswith("$ ")]


@pytest.mark.parametrize("page", make_figures.PAGES, ids=lambda page: page.name)
def test_every_table_is_what_the_files_of_the_benchmarks_say(page, tmp_path):
    (copy := tmp_path / page.name).write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    make_figures.fill(copy)
    assert copy.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """Work in a folder with the files that the Start pages name, with a small benchmark and a server that ends."""
    for kind, name in (("across", "cat"), ("down", "dog")):
        for index in range(8):
            for folder in ("photos", "other-photos"):
                draw(tmp_path / folder / name / f"{index}.jpg", kind, (20 + index, 40 - index), index)
    draw(tmp_path / "new.jpg", "down", (30, 30))
    draw(tmp_path / "new" / "0.png", "down", (64, 64), mode="L")
    (tmp_path / "masks").mkdir()
    Image.fromarray(draw_axons(1, 64).masks[0].numpy()).save(tmp_path / "masks" / "0.png")
    tiny = routing.Workload(B=2, I=6, K=4, J=3, D=5, R=2)
    monkeypatch.setattr(routing, "Workload", lambda **changes: tiny)
    monkeypatch.setattr(step, "measure", lambda device, batch: [step.StepRow("inference", batch, 3.0, 2.0, None, 7.0)])
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", START, ids=lambda page: page.name)
@pytest.mark.usefixtures("workplace")
def test_the_commands_of_a_start_page_run_in_their_order(page):
    if page.name == "predict.md":
        run("train --data photos/ --out runs/photos")
    ran = [run(command.removeprefix("torchcaps ")) for command in commands(page) if command.startswith("torchcaps ")]
    assert len(ran) >= 6


def run(line):
    short = next((options for start, options in SHORT.items() if line.startswith(start)), "")
    words = [found for word in shlex.split(line) for found in (sorted(glob.glob(word)) if "*" in word else [word])]
    result = torchcaps_command(*words, *shlex.split(short), cwd=os.getcwd())
    assert result.returncode == 0, f"torchcaps {line}: {result.stderr}"


@pytest.mark.parametrize("page", [*START, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_command_of_a_page_can_be_given(page):
    """Also those within sentences and tables, and those of make and pip, which are not run."""
    text = page.read_text(encoding="utf-8")
    named = [*commands(page), *re.findall(r"`((?:make|torchcaps|pip install) [^`]+)`", text)]
    assert len(named) >= 5
    group = typer.main.get_command(app)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    for program, *words in map(shlex.split, named):
        if program == "make":
            assert words[0] in targets
        elif program == "pip":
            assert words[1:3] == ["-c", "constraints.txt"]
            assert set(re.findall(r"[a-z]+", words[3])) <= set(extras)
        elif program == "torchcaps":
            known = {
                option for each in group.commands[words[0]].params for option in (*each.opts, *each.secondary_opts)
            }
            assert {word for word in words if word.startswith("--")} <= known
            if words[0] in ("train", "reproduce") and len(words) > 1 and words[1].islower() and "." not in words[1]:
                assert words[1] in [*list_recipes(), "claims"] or words[1].startswith("--")
        else:
            assert (ROOT / words[0]).is_file(), f"{page.name} names a command that is neither ours nor a script"


@pytest.mark.slow
@pytest.mark.parametrize("page", START, ids=lambda page: page.name)
def test_the_python_of_a_start_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = blocks(page, "python")
    assert examples
    for example in examples:
        exec(compile(example, page.name, "exec"), {})


@pytest.mark.parametrize("page", START, ids=lambda page: page.name)
def test_a_start_page_has_no_block_that_no_test_reads(page, tmp_path):
    languages = re.findall(r"^```(\w*)$", page.read_text(encoding="utf-8"), re.MULTILINE)[::2]
    assert set(languages) <= {"console", "python", "yaml"}
    assert all(line.startswith("$ ") for block in blocks(page, "console") for line in block.splitlines())
    for index, block in enumerate(blocks(page, "yaml")):
        (file := tmp_path / f"{index}.yaml").write_text(block, encoding="utf-8")
        load_recipe(str(file))


def public(name):
    """Whether tests/api.txt has a name, or a module that it has shows it."""
    if any(re.match(rf"{re.escape(name)}(\W|$)", line) for line in API):
        return True
    module, _, last = name.rpartition(".")
    return f"{module}: module" in API and last in getattr(importlib.import_module(module), "__all__", ())


@pytest.mark.parametrize("page", [README, *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_examples_use_public_names_alone(page):
    for example in blocks(page, "python"):
        for node in ast.walk(ast.parse(example)):
            if isinstance(node, ast.Import):
                used = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom):
                used = [f"{node.module}.{each.name}" for each in node.names]
            elif isinstance(node, ast.Attribute) and re.fullmatch(r"torchcaps(\.\w+)+", ast.unparse(node)):
                used = [".".join(ast.unparse(node).split(".")[:3])]
            else:
                continue
            assert [name for name in used if name.startswith("torchcaps.") and not public(name)] == []


def test_addresses_of_the_readme_are_files_of_the_repository():
    """They are absolute, so that they also work on a package index."""
    addresses = re.findall(r"\]\(([^)#]+)", README.read_text(encoding="utf-8"))
    assert len(addresses) > 20
    for address in addresses:
        path = re.fullmatch(rf"{REPOSITORY}/(?:blob|raw)/main/(.+)", address)
        assert path, address
        assert (ROOT / path[1]).is_file(), address


def test_ci_runs_only_what_contributing_names():
    ran = re.findall(r"^make (\S+)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert {f"make {target}" for target in ran} <= set(commands(ROOT / "CONTRIBUTING.md"))
    assert {"check", "test"} <= set(ran)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site, and what MkDocs printed."""
    pytest.importorskip("mkdocs", reason="the documentation site needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    # mkdocs-material advertises its successor unless this is set
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_every_public_name_is_on_a_reference_page(site):
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    shown = set(re.findall(r'id="([^"]+)"', pages))
    assert [name for line in API if (name := re.split(r"[(:]", line)[0]) not in shown] == []


@pytest.mark.slow
def test_the_site_needs_no_other_host(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="(?:https?:)?//[^"]*"', text) == []
        assert re.findall(r'<link[^>]*\shref="(?:https?:)?//[^"]*"', text) == []


@pytest.mark.slow
def test_every_command_option_and_setting_is_on_a_page(site):
    text, settings = ((site / page).read_text(encoding="utf-8") for page in ("commands.html", "recipes.html"))
    for name, command in typer.main.get_command(app).commands.items():
        assert f">torchcaps {name}<" in text
        for each in command.params:
            assert all(f"<code>{option}</code>" in text for option in each.opts if option.startswith("-"))
    for section, values in Recipe(name="any").model_dump().items():
        names = [f"{section}.{key}" for key in values] if isinstance(values, dict) else [section]
        assert [name for name in names if f"<code>{name}</code>" not in settings] == [] or section == "claim"
    assert [name for name in list_recipes() if f"<code>{name}</code>" not in settings] == []


@pytest.mark.parametrize("number", [1, 2, 3], ids=["parts with poses", "a network of layers", "a routing of one's own"])
def test_examples_of_layers_run_as_the_page_says(number):
    example = blocks(DOCS / "routing.md", "python")[number]
    try:
        exec(compile(example, "docs/routing.md", "exec"), {})
    finally:
        ROUTINGS.pop("winner", None)


def test_everything_of_ones_own_is_added_as_the_page_says(tmp_path):
    """The blocks of docs/extend.md in their order, and its recipe with all of what they register."""
    page, names = DOCS / "extend.md", {"__name__": "extend"}
    tables = (ROUTINGS, MODELS, CLASSES, SOURCES, TASKS, CALLBACKS)
    before = [dict(table) for table in tables]
    sys.modules["extend"] = types.ModuleType("extend")
    try:
        for example in blocks(page, "python"):
            assert len(example.splitlines()) <= 20
            exec(compile(example, page.name, "exec"), names)
        (tmp_path / "own.yaml").write_text(blocks(page, "yaml")[0].replace("[own.py]", "[]"), encoding="utf-8")
        recipe = load_recipe(str(tmp_path / "own.yaml"), ["train.callbacks=[diary]"])
        folder = start_run(recipe, out=tmp_path / "run", device="cpu")
        assert torchcaps.load(folder).task == "sparse"
        assert len((folder / "diary.txt").read_text().splitlines()) == 3
    finally:
        del sys.modules["extend"]
        for table, known in zip(tables, before):
            table.clear()
            table.update(known)


def test_a_head_on_ones_own_network_is_trained_as_the_page_says(tmp_path, monkeypatch):
    """The blocks of docs/head.md in their order; its recipe can be read without timm."""
    monkeypatch.chdir(tmp_path)
    page, names = DOCS / "head.md", {"__name__": "head"}
    try:
        for example in blocks(page, "python"):
            exec(compile(example, page.name, "exec"), names)
    finally:
        BACKBONES.pop("two_layers", None)
    assert repr(names["head"]).startswith("CapsHead(\n  grid=4×4, 128 capsules → 2 classes, 3,168 parameters")
    assert names["lengths"].shape == (64, 2)
    assert names["trained"].num_classes == 3
    (tmp_path / "own.yaml").write_text(blocks(page, "yaml")[0], encoding="utf-8")
    assert load_recipe(str(tmp_path / "own.yaml")).transfer.lr == {"backbone": 0.1}


@pytest.mark.parametrize("name", sorted(ROUTINGS))
def test_every_routing_is_in_the_table(name):
    assert f"| `{name}` |" in (DOCS / "routing.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.filterwarnings("ignore")  # torch.export warns of what it does itself
def test_layers_in_other_peoples_code_run_as_the_page_says(number):
    example = blocks(DOCS / "interoperability.md", "python")[number]
    exec(compile(example, "docs/interoperability.md", "exec"), {})


@pytest.mark.parametrize("example", blocks(DOCS / "python.md", "python"), ids=lambda text: text.split()[1])
def test_training_from_python_runs_as_the_page_says(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "docs/python.md", "exec"), {})


def test_segmentation_from_python_runs_as_the_page_says():
    (example,) = blocks(DOCS / "segmentation.md", "python")
    found: dict = {}
    exec(compile(example, "docs/segmentation.md", "exec"), found)
    assert found["picture"].shape == (64, 64, 3)


def test_synthesis_from_python_runs_as_the_page_says():
    (example,) = blocks(DOCS / "synthesis.md", "python")
    found: dict = {}
    exec(compile(example, "docs/synthesis.md", "exec"), found)
    assert found["image"].shape == (1, 1, 64, 64)
    assert len(found["images"]) == 4


def test_the_settings_that_pages_name_are_settings():
    named = 0
    for page in DOCS.glob("*.md"):
        for recipe, rest in re.findall(r"\$ torchcaps train ([\w-]+)(?![\w.-])(.*)", page.read_text(encoding="utf-8")):
            if recipe.startswith("--"):
                continue
            named += len(settings := re.findall(r"--set ([\w.]+=[^\s`]+)", rest))
            load_recipe(recipe, settings)
    assert named >= 5


def test_pose_capsules_from_python_run_as_the_page_says():
    (example,) = blocks(DOCS / "posecaps.md", "python")
    found = {"torchcaps": torchcaps, "images": torch.rand(2, 1, 28, 28)}
    exec(compile(example, "docs/posecaps.md", "exec"), found)
    assert found["out"].placement.angle.shape == (2, 10)


def test_a_scene_is_parsed_as_the_page_says():
    (example,) = blocks(DOCS / "inverse-graphics.md", "python")
    found: dict = {}
    exec(compile(example, "docs/inverse-graphics.md", "exec"), found)
    assert found["found"].parts
    assert found["new"].class_names == found["data"].class_names


def test_layers_share_the_interface_that_the_page_shows():
    names = {"torchcaps": torchcaps, "children": torch.randn(2, 1152, 8)}
    exec(compile(blocks(DOCS / "routing.md", "python")[0], "docs/routing.md", "exec"), names)
    assert names["couplings"].shape == (2, 1152, 10)


def test_an_exported_model_runs_as_the_page_says(tmp_path, monkeypatch):
    (example,) = blocks(DOCS / "export.md", "python")
    monkeypatch.chdir(tmp_path)
    write_onnx(torchcaps.load("capsnet-digits"), Path("capsnet-digits.onnx"))
    found: dict = {}
    exec(compile(example, "docs/export.md", "exec"), found)
    assert len(found["names"]) == 5
    assert set(found["names"]) <= set("0123456789")
    assert found["reconstruction"].shape == (5, 1, 16, 16)
