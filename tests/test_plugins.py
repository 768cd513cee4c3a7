"""Plugins: what users register is found by name, in every command and in the processes that commands start."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch
from PIL import Image

import torchcaps
from torchcaps import plugins
from torchcaps.data import MASK_SOURCES, SOURCES, Dataset, SegmentationDataset, Splits, load_data, register_data
from torchcaps.errors import UserError
from torchcaps.layers import ROUTINGS, DenseCaps, register_routing
from torchcaps.models import CapsNet, register_model
from torchcaps.models.registry import CLASSES, MODELS
from torchcaps.ops import Routed, dynamic_routing
from torchcaps.train.recipe import import_plugins, load_recipe, make_recipe
from torchcaps.train.run import start_run
from torchcaps.train.tasks import TASKS, ClassificationTask, register_task

PLUGIN = """
import torch
from torchcaps import losses
from torchcaps.data import Dataset, register_data
from torchcaps.layers import register_routing
from torchcaps.models import CapsNet, register_model
from torchcaps.ops import dynamic_routing
from torchcaps.train.tasks import ClassificationTask, register_task

class Tiny(CapsNet):
    pass

@register_model
def tiny(image_shape=(1, 12, 12), num_classes=2, **options) -> Tiny:
    small = dict(channels=2, kernel=5, types=2, primary_kernel=5, hidden=(4,), routing="once")
    return Tiny(image_shape, num_classes, **{**small, **options})

@register_routing
def once(u, weight, iterations, return_couplings=False):
    return dynamic_routing(u, weight, 1, return_couplings=return_couplings)

@register_data
def bars(path=None):
    images = torch.zeros(40, 1, 12, 12)
    images[::2, :, ::3] = 1
    images[1::2, :, :, ::3] = 1
    return Dataset(images, torch.arange(40) % 2, ("across", "down"))

@register_task
class StrictTask(ClassificationTask):
    def terms(self, output, images, targets):
        strict = losses.margin_loss(output.lengths, targets, present=0.95)
        return {**super().terms(output, images, targets), "margin": strict}
"""
RECIPE = """
plugins: [own.py]
claim: {result: bars, measure: accuracy}
task: strict
data: {source: bars, validation: 4, test: 8}
model: {name: tiny}
train: {epochs: 1, batch_size: 8}
"""


@pytest.fixture(autouse=True)
def same_tables(monkeypatch):
    """What a test registers is gone after it, and so is what it imported."""
    monkeypatch.setenv(plugins.VARIABLE, "")
    tables = (MODELS, CLASSES, ROUTINGS, SOURCES, MASK_SOURCES, TASKS)
    before, modules, path = [dict(table) for table in tables], set(sys.modules), list(sys.path)
    yield
    for table, known in zip(tables, before):
        table.clear()
        table.update(known)
    for name in set(sys.modules) - modules:
        if name in plugins._files or name.partition(".")[0] in ("own", "bars_package"):
            del sys.modules[name]
    plugins._files.clear()
    sys.path[:] = path


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a plugin and a recipe that names it."""
    (tmp_path / "own.py").write_text(PLUGIN)
    (tmp_path / "own.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def route(u, weight, iterations, return_couplings=False):
    return dynamic_routing(u, weight, iterations, return_couplings=return_couplings)


def dots():
    return Dataset(torch.rand(30, 1, 8, 8), torch.arange(30) % 3, ("a", "b", "c"))


class CountDotsTask(ClassificationTask):
    pass


@pytest.mark.parametrize(
    ("register", "thing", "table", "name"),
    [
        (register_routing, route, ROUTINGS, "route"),
        (register_data, dots, SOURCES, "dots"),
        (register_data(masks=True), dots, MASK_SOURCES, "dots"),
        (register_task, CountDotsTask, TASKS, "count_dots"),
        (register_task(name="dots"), CountDotsTask, TASKS, "dots"),
    ],
)
def test_what_is_registered_is_found_by_its_name_and_registered_once(register, thing, table, name):
    assert register(thing) is thing
    assert name in table
    register(thing)  # the cell of a notebook, once more

    with pytest.raises(UserError, match=f".* already has a {table.noun} called '{name}'; choose another name"):
        table.add(name, None, test_what_is_registered_is_found_by_its_name_and_registered_once)
    with pytest.raises(UserError, match=f"there is no {table.noun} called '{name}s': did you mean '{name}'"):
        table[f"{name}s"]


def test_what_comes_with_the_package_is_not_replaced():
    with pytest.raises(UserError, match="torchcaps already has a routing called 'em'"):
        register_routing(name="em")(route)
    with pytest.raises(UserError, match="already is a data set called 'axons'"):
        register_data(name="axons")(dots)


def test_a_routing_has_the_fields_that_it_is_registered_with():
    def scaled(u, weight, scale, iterations, return_couplings=False):
        routed = dynamic_routing(u, weight, iterations, return_couplings=return_couplings)
        return Routed(routed.poses * scale, couplings=routed.couplings)

    register_routing(learns=lambda I, J, D: {"scale": torch.full((), 0.5)})(scaled)
    layer = DenseCaps(4, 3, 2, 5, routing="scaled")
    plain = dynamic_routing(u := torch.randn(2, 4, 3), layer.weight).poses
    torch.testing.assert_close(layer(u).pose, plain / 2)


def test_own_data_is_split_and_resized_by_the_recipe():
    register_data(dots)
    splits = load_data("dots", image_size=10, validation=3, test=6)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [21, 3, 6]
    assert splits.train.image_shape == (1, 10, 10)
    with pytest.raises(UserError, match="'dots' takes no path"):
        load_data("dots", path="somewhere")


def test_own_data_may_have_splits_and_a_path():
    def parts(path=None):
        whole = dots()
        return Splits(whole.subset(torch.arange(int(path.name))), None, whole.subset(torch.arange(6)), "parts")

    register_data(parts)
    splits = load_data("parts", path="12", validation=0.25)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [9, 3, 6]


def test_own_data_with_masks():
    def squares():
        images = [torch.zeros(1, 8, 8, dtype=torch.uint8) for _ in range(6)]
        masks = [torch.ones(8, 8, dtype=torch.uint8) for _ in range(6)]
        return SegmentationDataset(images, masks, ("background", "square"), tuple("abcdef"))

    register_data(masks=True)(squares)
    splits = load_data("squares", validation=1, test="a,b", channels=1, num_classes=2)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [3, 1, 2]
    with pytest.raises(UserError, match="makes its own images and masks; omit channels"):
        load_data("squares", channels=3)


def test_a_recipe_imports_its_plugins_from_beside_it(own, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    recipe = load_recipe(str(own / "own.yaml"))
    assert recipe.plugins == (str(own / "own.py"),)
    assert "tiny" not in MODELS  # a recipe may come from elsewhere: reading it runs no code
    import_plugins(recipe)
    assert {"tiny", "bars", "strict"} <= {*MODELS, *SOURCES, *TASKS}
    (own / "again.yaml").write_text(recipe.to_yaml())
    again = load_recipe(str(own / "again.yaml"))
    assert again == recipe
    import_plugins(again)  # the file is not imported twice


def test_further_data_sets_of_a_recipe_may_come_from_its_plugins(own):
    recipe = make_recipe({"name": "x", "plugins": [str(own / "own.py")], "also": ["bars"]})
    import_plugins(recipe)
    with pytest.raises(UserError, match="also: there is no data set 'bar': did you mean 'bars'"):
        import_plugins(recipe.model_copy(update={"also": ("bar",)}))


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ("missing", "there is no plugin 'missing': give a module that Python can import here, or the path of a .py"),
        ("missing.py", "there is no plugin .*missing.py: check the path"),
        ("broken.py", "the plugin .*broken.py cannot be imported: ZeroDivisionError: division by zero"),
        ("needy", "the plugin needy cannot be imported: ModuleNotFoundError: No module named 'nothing_like_this'"),
    ],
)
def test_mistakes_in_plugins_are_named(plugin, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "needy.py").write_text("import nothing_like_this")
    with pytest.raises(UserError, match=message):
        import_plugins(make_recipe({"name": "x", "plugins": [plugin]}))


def test_a_plugin_named_like_an_imported_module_replaces_nothing(tmp_path):
    (tmp_path / "json.py").write_text(PLUGIN)
    plugins.load_plugins([str(tmp_path / "json.py")])
    assert sys.modules["json"] is json
    assert plugins.plugin_of(MODELS["tiny"].__module__) == "json.py"


def package(folder):
    """A plugin in a package, which imports another of its modules by a relative name."""
    (folder / "bars_package").mkdir()
    (folder / "bars_package" / "__init__.py").write_text("")
    (folder / "bars_package" / "sizes.py").write_text("SIZE = 12")
    (folder / "bars_package" / "own.py").write_text("from .sizes import SIZE\n" + PLUGIN)


def test_a_module_of_the_current_folder_becomes_its_path(own, monkeypatch, tmp_path_factory):
    package(own)
    (own / "loose").mkdir()
    (own / "loose" / "own.py").write_text(PLUGIN)
    (own / "json.py").write_text("")
    inside = str(own / "bars_package" / "own.py")
    found = {"own": str(own / "own.py"), "bars_package.own": inside, "loose.own": "loose.own", "json": "json"}
    found["bars_package"] = str(own / "bars_package" / "__init__.py")
    assert {name: plugins.absolute(name) for name in found} == found
    assert plugins.inherit(["own", "own.py"]) == (str(own / "own.py"),)
    assert make_recipe({"name": "x", "plugins": ["own"]}).plugins == ("own",)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.syspath_prepend(own)
    assert plugins.absolute("own") == "own"  # found in every folder, like an installed one
    monkeypatch.delitem(sys.modules, "bars_package", raising=False)
    plugins.load_plugins([inside, inside])
    assert plugins.plugin_of(MODELS["tiny"].__module__) == "bars_package.own"


def test_a_run_names_the_file_of_a_module_of_the_current_folder(own):
    (own / "named.yaml").write_text(RECIPE.replace("[own.py]", "[own]"))
    folder = start_run(load_recipe("named.yaml"), out=own / "run", device="cpu")
    assert load_recipe(str(folder / "recipe.yaml")).plugins == (str(own / "own.py"),)
    tree = {"name": "x", "plugins": ["own"], "data": {"source": "bars"}, "model": {"name": "tiny"}}
    folder = start_run(make_recipe({**tree, "train": {"epochs": 1}}), out=own / "again", device="cpu")
    assert load_recipe(str(folder / "recipe.yaml")).plugins == (str(own / "own.py"),)


def test_installed_packages_are_asked_for_an_unknown_name(own, monkeypatch):
    entry = EntryPoint("own", "own", plugins.GROUP)
    monkeypatch.syspath_prepend(own)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry] if group == plugins.GROUP else [])
    monkeypatch.setattr(plugins, "_installed", None)
    assert DenseCaps(4, 3, 2, 5, routing="once").routing == "once"
    assert "tiny" in torchcaps.list_models()


def test_a_broken_installed_plugin_is_a_warning(monkeypatch):
    entry = EntryPoint("x", "nothing_like_this", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])
    monkeypatch.setattr(plugins, "_installed", None)
    with pytest.warns(UserWarning, match="there is no plugin 'nothing_like_this'"):
        assert "tiny" not in MODELS


def test_every_command_takes_plugins(own, call, monkeypatch):
    code, printed, _ = call("list", "--plugin", "own.py")
    assert code == 0
    assert "tiny" in printed
    assert "once" in printed
    code, _, complaint = call("list", "--plugin")
    assert (code, "--plugin: give the name of a module" in complaint) == (2, True)
    code, _, complaint = call("eval", "capsnet-digits", "--plugin=nothing_like_this")
    assert (code, "there is no plugin" in complaint) == (2, True)


def test_a_model_file_names_its_plugins_and_never_imports_them(own, call):
    plugins.load_plugins(["own.py"])
    model = torchcaps.create_model("tiny")
    model.trained_by["data"] = {"source": "bars"}
    torchcaps.save(model, own / "model")
    assert json.loads((own / "model" / "config.json").read_text())["plugins"] == ["own.py"]
    needed = "it needs the plugin own.py: pass --plugin own.py, or import it first"
    for table, name in ((ROUTINGS, "once"), (CLASSES, "Tiny")):
        del table[name]
        code, _, complaint = call("export", own / "model")
        assert code == 2
        assert needed in " ".join(complaint.split())


DRAWS = """
from torchcaps.models import CapsPix2Pix, register_model

class OwnDraws(CapsPix2Pix):
    pass

@register_model
def own_draws(image_shape=(1, 16, 16), **options) -> OwnDraws:
    return OwnDraws(image_shape, **{"channels": 2, "z": 4, **options})
"""


def test_generate_draws_with_a_model_of_ones_own(own, call):
    (own / "draws.py").write_text(DRAWS)
    plugins.load_plugins(["draws.py"])
    torchcaps.save(torchcaps.create_model("own_draws"), own / "model")
    Image.fromarray(np.eye(16, dtype=np.uint8) * 255).save(own / "mask.png")
    for table, name in ((MODELS, "own_draws"), (CLASSES, "OwnDraws")):
        del table[name]
    sys.modules.pop("draws")
    arguments = ("generate", own / "model", own / "mask.png", "--n", "2", "--out", own / "drawn")
    code, _, complaint = call(*arguments)
    assert (code, "pass --plugin draws.py" in " ".join(complaint.split())) == (2, True)
    code, printed, complaint = call(*arguments, "--plugin", "draws")
    assert code == 0, complaint
    assert len(printed.split()) == len(list((own / "drawn").iterdir())) == 2


def test_convert_imports_plugins_which_the_converted_model_does_not_need(own, call):
    shapes = {"conv1": (4, 1, 9, 9), "primarycaps.conv2d": (8, 4, 9, 9)}
    state = {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    state |= {f"{name}.bias": torch.randn(shape[0]) for name, shape in shapes.items()}
    state["digitcaps.weight"] = torch.randn(3, 8, 6, 4)  # 2 types of 4 at 2×2 places, for images of 20×20
    for number, shape in enumerate([(5, 18), (7, 5), (400, 7)]):
        state |= {
            f"decoder.{2 * number}.weight": torch.randn(shape),
            f"decoder.{2 * number}.bias": torch.randn(shape[0]),
        }
    torch.save(state, own / "weights.pt")
    arguments = ("convert", "weights.pt", "--from", "pytorch", "--out", own / "model")
    code, _, complaint = call(*arguments, "--plugin", "own.py")
    assert code == 0, complaint
    assert "tiny" in MODELS
    assert "plugins" not in json.loads((own / "model" / "config.json").read_text())
    code, _, complaint = call(*arguments, "--plugin", "nothing_like_this")
    assert (code, "there is no plugin 'nothing_like_this'" in complaint) == (2, True)


class Counting(CapsNet):
    """Changes an attribute in training, which `save` refuses."""

    def __init__(self, image_shape=(1, 12, 12), num_classes=2, **options):
        small = {"channels": 2, "kernel": 5, "types": 2, "primary_kernel": 5, "hidden": (4,)}
        super().__init__(image_shape, num_classes, **{**small, **options})
        self.calls = 0

    def forward(self, *arguments, **options):
        self.calls += 1
        return super().forward(*arguments, **options)


def test_a_run_is_not_lost_for_what_a_model_changes_in_training(tmp_path):
    def counting(**options) -> Counting:
        return Counting(**options)

    register_model(counting)
    register_data(dots)
    tree = {"name": "x", "data": {"source": "dots", "image_size": 12, "test": 0}, "model": {"name": "counting"}}
    recipe = make_recipe({**tree, "train": {"epochs": 1}})
    folder = start_run(recipe, out=tmp_path / "run", device="cpu")
    model = torchcaps.load(folder)
    model(torch.rand(1, 1, 12, 12))
    with pytest.raises(UserError, match="model.calls was changed from 0 to 1"):
        torchcaps.save(model, tmp_path / "model")


@pytest.mark.slow
def test_plugins_reach_the_processes_that_commands_start(own, tmp_path_factory):
    """`reproduce` starts a process for each seed; the runs can be resumed and rerun from any folder."""

    def run(*words, cwd=own):
        command = [sys.executable, "-m", "torchcaps", *map(str, words)]
        result = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    (own / "bare.yaml").write_text(RECIPE.replace("plugins: [own.py]", ""))
    run("reproduce", "bare.yaml", "--seeds", "2", "--plugin", "own", "--device", "cpu")
    assert json.loads((own / "results" / "bare.json").read_text())["n"] == 2
    run("train", "own.yaml", "--devices", "2", "--device", "cpu", "--out", "two")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    run("train", "--resume", own / "two", "--epochs", "2", "--device", "cpu", cwd=elsewhere)
    assert "the same, bit for bit" in run("rerun", own / "runs" / "reproduce" / "bare-0", cwd=elsewhere)
    assert "right" in run("eval", own / "two", "--plugin", own / "own.py", cwd=elsewhere)
