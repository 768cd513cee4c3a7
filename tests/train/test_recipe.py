"""Recipes: every shipped one is valid, every mistake is named."""

import itertools

import pytest
import torch

from torchcaps.errors import UserError
from torchcaps.models import create_model, list_models
from torchcaps.train.optim.schedule import learning_rate
from torchcaps.train.recipe import OptimSection, list_recipes, load_recipe, make_recipe


@pytest.mark.parametrize("name", list_recipes())
def test_shipped_recipe_is_valid_and_described(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.description.endswith((".", ")."))
    assert recipe.model.name in list_models()


def test_written_recipe_reads_back_the_same(tmp_path):
    recipe = load_recipe("cifar10-paper", ["train.epochs=3", "model.types=4"])
    path = tmp_path / "again.yaml"
    path.write_text(recipe.to_yaml())
    assert load_recipe(str(path)) == recipe


def test_override_parses_yaml_values():
    recipe = load_recipe(
        "digits",
        [
            *("train.epochs=3", "data.image_size=[20, 24]", "augment.flip=true", "optim.clip=null"),
        ],
    )
    assert (recipe.train.epochs, recipe.data.image_size, recipe.augment.flip) == (3, (20, 24), True)
    assert recipe.optim.clip is None


def test_model_options_pass_through():
    assert load_recipe("digits", ["model.iterations=2"]).model.options == {"iterations": 2}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epoch=3", "train.epoch is not a setting: did you mean 'epochs'"),
        ("trian.epochs=3", "trian is not a setting: did you mean 'train'"),
        ("train.epochs=-1", "train.epochs: input should be greater than or equal to 1, got -1"),
        ("train.epochs=many", "train.epochs"),
        ("optim.schedule=cosin", "optim.schedule"),
        ("data.validation=-0.1", "data.validation"),
        ("train.epochs", "section.field=value"),
        ("name.x=1", "name is a value, not a section"),
        ("train.epochs=[1", "is not a value"),
    ],
)
def test_mistake_is_named(override, message):
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        load_recipe("digits", [override])


def test_a_setting_that_is_gone_is_passed_over_where_it_was_off():
    assert load_recipe("mnist-best", ["optim.linear=no"]) == load_recipe("mnist-best")
    with pytest.raises(UserError, match=r"optim\.linear"):
        load_recipe("mnist-best", ["optim.linear=yes"])


def test_unknown_recipe_suggests_the_nearest():
    with pytest.raises(UserError, match="did you mean 'digits'"):
        load_recipe("digit")


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [1\n", ""])
def test_file_that_is_no_recipe(tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"bad\.yaml"):
        load_recipe(str(path))


def test_missing_recipe_file(tmp_path):
    with pytest.raises(UserError, match="cannot read .*none.yaml"):
        load_recipe(str(tmp_path / "none.yaml"))


def test_yaml_cannot_construct_objects(tmp_path):
    path = tmp_path / "evil.yaml"
    path.write_text("name: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(UserError, match="cannot be read"):
        load_recipe(str(path))


def optim(**settings):
    return make_recipe({"name": "x", "optim": settings}).optim


@pytest.mark.parametrize(
    ("settings", "step", "expected"),
    [
        ({"lr": 1.0}, 77, 1.0),
        ({"lr": 1.0, "warmup_steps": 10}, 0, 0.1),
        ({"lr": 1.0, "warmup_steps": 10}, 9, 1.0),
        ({"lr": 1.0, "schedule": "linear"}, 0, 1.0),
        ({"lr": 1.0, "schedule": "linear"}, 50, 0.5),
        ({"lr": 1.0, "schedule": "linear", "final": 0.2}, 100, 0.2),
        ({"lr": 1.0, "schedule": "cosine"}, 50, 0.5),
        ({"lr": 1.0, "schedule": "cosine", "warmup_steps": 20}, 60, 0.5),
        ({"lr": 1.0, "schedule": "exponential", "decay_rate": 0.5, "decay_steps": 10}, 20, 0.25),
    ],
)
def test_learning_rate(settings, step, expected):
    assert learning_rate(step, 100, optim(**settings)) == pytest.approx(expected)


def test_learning_rate_never_rises_after_warm_up():
    for schedule in ("constant", "exponential", "linear", "cosine"):
        section = OptimSection(schedule=schedule, warmup_steps=5)
        rates = [learning_rate(step, 50, section) for step in range(5, 50)]
        assert all(later <= earlier for earlier, later in itertools.pairwise(rates)), schedule


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.endswith("-cnn")])
def test_a_cnn_has_as_many_parameters_as_the_capsnet_it_is_compared_with(name):
    sides = {"multimnist": (1, 36, 36), "affnist": (1, 40, 40), "cifar10": (3, 24, 24)}
    shape = sides.get(name.split("-")[0], (1, 28, 28))
    other = {"multimnist-cnn": "multimnist", "cifar10-cnn": "cifar10-paper", "mnist-cnn": "mnist-paper"}
    counts = []
    for each in (name, other.get(name, name.removesuffix("-cnn"))):
        section = load_recipe(each).model
        with torch.device("meta"):
            counts.append(create_model(section.name, image_shape=shape, **section.options).parameter_count())
    assert counts[0] == pytest.approx(counts[1], rel=0.01)
