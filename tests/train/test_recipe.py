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


def test_a_recipe_extends_another_setting_by_setting(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "description: the base\nclaim: {result: error}\n"
        "model: {name: capsnet_small, channels: 3}\noptim: {lr: 0.5, clip: 1.0}\n"
    )
    (tmp_path / "child.yaml").write_text("extends: base.yaml\noptim: {lr: 0.25}\ntrain: {epochs: 3}\n")
    child = load_recipe(str(tmp_path / "child.yaml"))
    assert (child.name, child.description, child.claim) == ("child", "", None)
    assert (child.optim.lr, child.optim.clip, child.train.epochs) == (0.25, 1.0, 3)
    assert child.model.options == {"channels": 3}
    (tmp_path / "other.yaml").write_text("extends: child.yaml\nmodel: {name: matched_cnn}\n")
    other = load_recipe(str(tmp_path / "other.yaml"))
    assert (other.model.name, other.model.options, other.optim.lr) == ("matched_cnn", {}, 0.25)
    assert "extends" not in other.to_yaml()  # a run's recipe.yaml stands alone


def test_a_recipe_can_extend_a_shipped_one(tmp_path):
    (tmp_path / "mine.yaml").write_text("extends: mnist-few-10\ndata: {per_class: 3}\n")
    mine, shipped = load_recipe(str(tmp_path / "mine.yaml")), load_recipe("mnist-few-10")
    assert mine.data.per_class == 3
    assert (mine.model, mine.optim, mine.train) == (shipped.model, shipped.optim, shipped.train)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: a.yaml\n", "extends itself"),
        ("extends: mnsit\n", "did you mean 'mnist'"),
        ("extends: missing.yaml\n", "missing.yaml"),
        ("extends: [1]\n", "no recipe called"),
    ],
)
def test_a_recipe_that_extends_what_is_not_there(tmp_path, text, message):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        load_recipe(str(tmp_path / "a.yaml"))
