"""A recipe on a Ray cluster of this machine, with two real workers."""

import json

import pytest
import torch

import torchcaps
from torchcaps.errors import UserError
from torchcaps.train.recipe import load_recipe
from torchcaps.train.run import start_run

ray = pytest.importorskip("ray", reason="the extra ray is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray warns of what it does itself

SETTINGS = ["data.image_size=12", "data.limit=50", "data.validation=20", "train.batch_size=25", "train.epochs=3"]
SETTINGS += ["model.channels=4", "model.types=2", "model.hidden=[16]", "augment.shift=1", "train.read_test=no"]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    yield
    ray.shutdown()


def test_two_workers_train_as_one_process_does(tmp_path):
    from torchcaps.train.ray import train_on_ray

    recipe = load_recipe("digits", SETTINGS)
    folder = train_on_ray(recipe, out=tmp_path / "ray", workers=2)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["processes"], summary["steps"]) == (2, 6)
    alone = start_run(recipe, out=tmp_path / "alone", device="cpu")
    one, two = (
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (alone, folder)
    )
    assert [line["train_loss"] for line in two] == pytest.approx([line["train_loss"] for line in one], abs=1e-5)
    assert torchcaps.load(folder).num_classes == 10
    with pytest.raises(UserError, match="holds a finished run"):
        train_on_ray(recipe, out=folder)


def test_an_unfinished_run_is_resumed_and_mistakes_come_back(tmp_path):
    from torchcaps.train.ray import train_on_ray

    folder = start_run(load_recipe("digits", [*SETTINGS, "train.epochs=1"]), out=tmp_path / "run", device="cpu")
    (folder / "summary.json").unlink()
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace("epochs: 1", "epochs: 3"))
    train_on_ray(load_recipe("digits", SETTINGS), out=folder, workers=2, shard=True)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["epochs"], summary["resumed"]) == (3, True)
    with pytest.raises(UserError, match="there is no folder"):
        train_on_ray(load_recipe("digits", ["data.source=folder", "data.path=nowhere"]), out=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert torch.distributed.is_initialized() is False
