"""The package as a whole: what it exports, what importing it costs, that every recipe runs."""

import gzip
import json
import subprocess
import sys
from importlib.metadata import packages_distributions, requires

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

import torchcaps
from torchcaps.data import draw_axons
from torchcaps.data.datasets.smallnorb import FILES
from torchcaps.train import run
from torchcaps.train.recipe import list_recipes, load_recipe
from torchcaps.train.tasks import ClassificationTask

FIRST_USE = (
    "lightning_fabric",
    "matplotlib",
    "sklearn",
    "huggingface_hub",
    "PIL",
    "pydantic",
    "tensorboard",
    "rich",
    "monai",
)


def test_every_public_name_is_there():
    for name in torchcaps.__all__:
        assert getattr(torchcaps, name) is not None
    assert set(torchcaps.__all__) == set(dir(torchcaps))
    with pytest.raises(AttributeError, match="no attribute 'capsnet'"):
        torchcaps.capsnet  # noqa: B018


def test_import_loads_nothing_that_is_not_needed_yet():
    code = f"import sys, torchcaps; print([name for name in {FIRST_USE} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


BLOCKED = """
import sys
import torch

class Blocked:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        known = name.partition(".")[0] in {*sys.stdlib_module_names, *sys.modules, *%r}
        return self.finder.find_spec(name, path, target) if known else None

sys.meta_path[:] = [Blocked(each) for each in sys.meta_path if hasattr(each, "find_spec")]
"""


def without_other_packages(code):
    """What a program prints where only PyTorch, NumPy and safetensors are installed, with what these need."""
    installed, left = set(), ["torchcaps", "torch", "numpy", "safetensors"]
    while left:
        if (name := canonicalize_name(left.pop())) not in installed:
            installed.add(name)
            wanted = map(Requirement, requires(name) or () if name != "torchcaps" else ())
            left += [each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    homes = packages_distributions().items()
    modules = {module for module, names in homes if installed & set(map(canonicalize_name, names))}
    assert not modules & {"lightning_fabric", "sklearn", "yaml", "huggingface_hub", "PIL", "pydantic", "rich"}
    result = subprocess.run([sys.executable, "-c", BLOCKED % modules + code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_layers_need_pytorch_numpy_and_safetensors_alone():
    printed = without_other_packages(
        "import torchcaps\n"
        "layer = torchcaps.layers.DenseCaps(6, 4, 3, 5)\n"
        "torchcaps.losses.margin_loss(layer(torch.rand(2, 6, 4)).activation, torch.tensor([0, 2])).sum().backward()\n"
        "print(layer.weight.grad.isfinite().all().item(), 'torchcaps.models' in sys.modules)"
    )
    assert printed.strip() == "True False"


def test_a_package_that_is_missing_is_named_with_the_command():
    printed = without_other_packages(
        "import torchcaps\n"
        "for name in ('fit', 'CapsClassifier'):\n"
        "    try:\n"
        "        getattr(torchcaps, name)\n"
        "    except torchcaps.UserError as error:\n"
        "        print(isinstance(error, ImportError), error)"
    )
    for name, line in zip(("fit", "CapsClassifier"), printed.splitlines(), strict=True):
        assert line.startswith(f"True torchcaps.{name} needs the package ")
        assert line.endswith("which is not installed: pip install torchcaps")


def write_idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.fixture
def small_data_sets(tmp_path, monkeypatch, write_pairs):
    """Every data set a recipe names, tiny, in its own format, where recipes look for it."""
    generator = np.random.default_rng(0)
    for name in ("mnist", "fashion-mnist"):
        folder = tmp_path / name
        folder.mkdir()
        for part, count in (("train", 60), ("t10k", 20)):
            ink = generator.integers(0, 256, (count, 20, 20), dtype=np.uint8)
            images = np.pad(ink, ((0, 0), (4, 4), (4, 4)))
            write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
            write_idx(folder / f"{part}-labels-idx1-ubyte.gz", np.arange(count, dtype=np.uint8) % 10)
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for part in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        records = generator.integers(0, 256, (20, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(20) % 10
        (folder / f"{part}.bin").write_bytes(records.tobytes())
    for kind in ("cat", "dog"):
        for index in range(6):
            (tmp_path / "folder" / kind).mkdir(parents=True, exist_ok=True)
            pixels = generator.integers(0, 256, (30, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "folder" / kind / f"{index}.png")
    write_smallnorb(tmp_path / "smallnorb", generator)
    write_pairs(tmp_path / "isbi2012", draw_axons(30, 20))
    monkeypatch.setattr("torchcaps.data.mask_sources.AXONS", 20)
    monkeypatch.setattr("torchcaps.data.mask_sources.TEST_AXONS", 4)
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    monkeypatch.setattr("torchcaps.data.datasets.multimnist.TEST_PAIRS", 20)
    monkeypatch.setattr("torchcaps.data.datasets.multimnist.VALIDATION_PAIRS", 20)
    return tmp_path


def write_smallnorb(folder, generator):
    folder.mkdir()
    for names, toy in ((FILES[:3], 8), (FILES[3:], 5)):
        images = generator.integers(0, 256, (20, 2, 96, 96), dtype=np.uint8)
        labels = np.arange(20, dtype="<i4") % 5
        info = np.array([(toy, 0, 0, 0)] * 10 + [(toy + (toy == 8), 0, 0, 0)] * 10, dtype="<i4")  # of training: 8 and 9
        for name, array, magic in zip(names, (images, labels, info), (0x1E3D4C55, 0x1E3D4C54, 0x1E3D4C54)):
            sizes = (*array.shape, 1, 1)[: max(3, array.ndim)]
            header = np.array([magic, array.ndim, *sizes], dtype="<i4").tobytes()
            (folder / name).write_bytes(header + array.tobytes())


def one_of_each_kind():
    """Recipes that differ in numbers alone run the same code: the first of them stands for all."""
    kinds = {}
    for name in list_recipes():
        tree = load_recipe(name).model_dump(mode="json", exclude={"name", "description", "claim"})
        tree["data"]["limit"] = None
        kinds.setdefault(json.dumps(_without_numbers(tree), sort_keys=True), name)
    return list(kinds.values())


def _without_numbers(value):
    """The same with every number replaced by one."""
    if isinstance(value, dict):
        return {key: _without_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_numbers(each) for each in value]
    return 1 if isinstance(value, (int, float)) else value


SLOW = {"scenes", "scattered-digits", "scattered-mnist"}  # thousands of images are drawn, or large ones evaluated


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in one_of_each_kind()]
)
def test_recipes_of_every_kind_run_for_two_steps(name, small_data_sets, tmp_path, monkeypatch):
    # Reports of each kind of data have tests of their own; here they would take half of the time.
    monkeypatch.setattr(ClassificationTask, "write_report", lambda *_: None)
    recipe = load_recipe(name)
    overrides = ["train.epochs=1", "train.batch_size=2", "train.repeat=1"]
    few = "data.limit=4" if recipe.data.per_class is None else "data.per_class=1"
    overrides += [few, "data.validation=10", "data.test=10"]
    if recipe.data.source == "folder":
        overrides += [f"data.path={small_data_sets / 'folder'}", "data.validation=2", "data.test=2"]
    if recipe.model.name == "matched_cnn":
        overrides.append("model.parameters=100000")
    elif recipe.model.name == "baseline_cnn":
        overrides += ["model.channels=[4, 4, 4]"]
    elif recipe.model.name in ("capsnet", "capsnet_small"):
        overrides += ["model.channels=8", "model.types=2"]  # most of the multiplications and of the weights are there
    elif recipe.model.name in ("em_capsnet", "em_capsnet_large"):
        overrides.append("model.channels=8")
    elif recipe.model.name in ("segcaps", "unet"):
        overrides += ["model.channels=2", "augment.crop=16"]
    elif "pix2pix" in recipe.model.name:
        overrides += ["model.channels=2", "augment.crop=16", "discriminator.channels=2", "discriminator.depth=1"]
    folder = run.start_run(load_recipe(name, overrides), out=tmp_path / "run", device="cpu")
    assert (folder / "summary.json").is_file()
    assert torchcaps.load(folder).parameter_count() > 0
