"""Recipes that are made to do harm, or that say something else than they seem to."""

import pytest
import yaml

from torchcaps.errors import UserError
from torchcaps.io.strict_yaml import MAX_CHARACTERS, MAX_DEPTH, BadYaml, _Loader, read_yaml
from torchcaps.train.recipe import list_recipes, load_recipe

LAUGHS = "a0: &a0 [ha, ha]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "an anchor or an alias.* in line 1"),
        ("train: {epochs: *e}", "an anchor or an alias"),
        ("a: &a [*a]", "an anchor or an alias"),
        ("a: " + "[" * 50_000, f"nested more than {MAX_DEPTH} deep in line 1"),
        ("a:\n" + "".join(" " * i + "- \n" for i in range(1, 60)), "nested more than|expected"),
        ("train:\n  seed: 1\n  seed: 2", "'seed' is given twice, the second time in line 3"),
        ("name: a\nname: b", "'name' is given twice"),
        ("train: {seed: " + "9" * 5000 + "}", "digits"),
        ("train: {seed: 18446744073709551616}", "line 1 has more than 64 bits"),
        ("train: {seed: 0x" + "f" * 20 + "}", "more than 64 bits"),
        ("model: {x: .inf}", "not finite"),
        ("model: {x: .nan}", "not finite"),
        ("model: {x: !!timestamp foo}", "'timestamp' is not a supported type"),
        ("model: {x: !!binary aGk=}", "'binary' is not a supported type"),
        ("model: {x: !!python/object/apply:os.getcwd []}", "is not a supported type"),
        ("model: {x: !!set {a, b}}", "'set' is not a supported type"),
        ("name: !!bool maybe", "maybe"),
        ("name: !!int many", "many"),
        ("? [a]\n: b", "unhashable key"),
        ('name: "\\ud800"', "unpaired surrogate"),
        ("name: \x01", "unacceptable character"),
        ("name: x\n---\nname: y", "expected a single document"),
        ("#" * (MAX_CHARACTERS + 1), "65,537 characters"),
    ],
)
def test_a_hostile_recipe_is_one_line_that_names_it(tmp_path, text, message):
    path = tmp_path / "odd.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=f"recipe .*odd.yaml cannot be read: .*{message}") as caught:
        load_recipe(str(path))
    assert str(caught.value).isprintable()


def test_brackets_are_not_looked_at_further_than_they_may_nest():
    """Found by fuzzing: a thousand of them in a line cost PyYAML's scanner a million steps before the first value."""
    loader = _Loader("a: " + "[" * 1000)
    with pytest.raises(BadYaml, match="nested more than"):
        loader.get_single_data()
    assert loader.flow_level <= MAX_DEPTH + 1
    assert read_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None


def test_a_file_too_large_to_be_a_recipe_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 34)
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(UserError, match="huge.yaml cannot be read: it has more than"):
        load_recipe(str(path))


def test_the_message_about_many_mistakes_is_short(tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text("\n".join(f"setting{i}: {'x' * 500}" for i in range(50)))
    with pytest.raises(UserError, match="setting0 is not a setting.* and 45 more") as caught:
        load_recipe(str(path))
    assert len(str(caught.value)) <= 2100
    path.write_text("also: " + "x" * 60_000)
    with pytest.raises(UserError) as caught:
        load_recipe(str(path))
    assert len(str(caught.value)) < 300


def test_overrides_are_read_as_strictly():
    for text in ("[" * 2000, "&a [*a]", "99999999999999999999", "!!binary aGk="):
        with pytest.raises(UserError, match="--set model.x=.* is not a value"):
            load_recipe("digits", [f"model.x={text}"])


def test_what_yaml_says_of_plain_values_is_what_is_read():
    plain = "a: [1, -2.5, true, no, null, ~, 'x: y', 0x1f, 1_000, 1e3, 1.0e+3, '', é]\nb: {c: {d: e}}"
    assert read_yaml(plain) == yaml.safe_load(plain)
    assert read_yaml("2026-02-30") == "2026-02-30"
    assert read_yaml("2026-02-03") == "2026-02-03"  # a date to YAML, which no setting is
    assert read_yaml("") is None
    for name in list_recipes():
        assert load_recipe(name).name == name
