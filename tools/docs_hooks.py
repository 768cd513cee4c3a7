"""MkDocs hooks: add the pages that are made from the code, and make links work in the repository and on the site.

Generated pages cannot go stale, and none of them is committed:

- index, contributing, changelog and derivations/*: the Markdown files of the repository that lie outside docs/;
- reference/*: every name of tests/api.txt, rendered by mkdocstrings;
- commands: every command and option of the typer application;
- recipes: every key of the pydantic model `Recipe`, and every shipped recipe.
"""

from __future__ import annotations

import html
import importlib
import inspect
import io
import json
import pkgutil
import posixpath
import re
import tokenize
from pathlib import Path
from typing import Any

import griffe
import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel

from torchcaps.cli import app
from torchcaps.train import recipe as recipes

ROOT = Path(__file__).parent.parent
REPOSITORY = "https://github.com/torchcaps/torchcaps"
# Markdown files outside docs/, by the page they become.
OUTSIDE = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
OUTSIDE |= {
    f"derivations/{path.parent.name}.md": path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "src" / "torchcaps" / "ops").glob("*/README.md"))
}
# What a page generated from code replaces as the target of a link.
MADE_FROM = {"src/torchcaps/train/recipe.py": "recipes.md", "src/torchcaps/cli.py": "commands.md"}
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=(?:#[^)\s]*)?\))")
# What a link may start with instead of a path: the address of a file, as text or as a picture, in the repository.
ADDRESS = re.compile(rf"{REPOSITORY}/(?:blob|raw)/main/")
# An entry of an `Args:` section that describes several arguments at once.
SHARED = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Split `x, y: description` in docstrings into an entry for each argument; omit undescribed `self.x = …`."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        made = cls.members.get("__init__")
        for name, member in list(cls.members.items()):
            inside = made and not made.is_alias and not member.is_alias and member.is_attribute and member.lineno
            if inside and made.lineno <= member.lineno <= made.endlineno and not member.docstring:
                del cls.members[name]

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = SHARED.sub(
                lambda found: "\n".join(f"{found[1]}{name}: {found[3]}" for name in found[2].split(", ")),
                obj.docstring.value,
            )


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace the folders that mkdocs.yml names in its navigation by the pages that are generated there."""
    generated = {
        "derivations/": [page for page in OUTSIDE if page.startswith("derivations/")],
        "reference/": [{name: page} for page, name in reference_pages().items()],
    }

    def filled(items: list[Any]) -> list[Any]:
        for item in items:
            for title, value in item.items() if isinstance(item, dict) else ():
                item[title] = filled(value) if isinstance(value, list) else generated.get(value, value)
        return items

    filled(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    made = {page: (ROOT / path).read_text(encoding="utf-8") for page, path in OUTSIDE.items()}
    made |= {page: reference_page(module) for page, module in reference_pages().items()}
    made |= {"commands.md": commands_page(), "recipes.md": recipes_page()}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links to files of the repository at their pages, or at the repository where they have none."""
    here = page.file.src_uri
    source = OUTSIDE.get(here, f"docs/{here}")

    def replaced(match: re.Match[str]) -> str:
        address = ADDRESS.match(match[1])
        folder = "" if address else posixpath.dirname(source)
        path = posixpath.normpath(posixpath.join(folder, match[1][address.end() if address else 0 :]))
        if not (ROOT / path).is_file():
            return match[1]  # another site, or a mistake that MkDocs reports
        target = ({path: name for name, path in OUTSIDE.items()} | MADE_FROM).get(path)
        if target is None and path.startswith("docs/"):
            target = path.removeprefix("docs/")
        if target is None:
            return f"{REPOSITORY}/blob/main/{path}"
        return posixpath.relpath(target, posixpath.dirname(here) or ".")

    return LINK.sub(replaced, markdown)


def public_names() -> dict[str, list[str]]:
    """The public names of each public module, as tests/api.txt has them; without methods and properties."""
    names: dict[str, list[str]] = {}
    lines = (ROOT / "tests" / "api.txt").read_text(encoding="utf-8").splitlines()
    classes = set()
    for line in lines:
        name = re.split(r"[(:]", line, maxsplit=1)[0]
        module, _, last = name.rpartition(".")
        if module not in classes:
            names.setdefault(module, []).append(last)
        if not line.endswith(": module"):
            classes.add(name)
    return names


def reference_pages() -> dict[str, str]:
    """The public module that each reference page shows."""
    names = public_names()
    modules = list(names) + [
        f"torchcaps.{name}"
        for name in names["torchcaps"]
        if f"torchcaps.{name}" not in names and inspect.ismodule(getattr(importlib.import_module("torchcaps"), name))
    ]
    return {f"reference/{module}.md": module for module in modules}


def reference_page(module: str) -> str:
    """Every public name of a module; one that has a page of its own, or that another module defines, is a link."""
    names = public_names()
    loaded = importlib.import_module(module)
    submodules = {each.name for each in pkgutil.iter_modules(getattr(loaded, "__path__", []))}
    lines = [f"# {module}", "", f"::: {module}", "    options: {show_root_heading: false, members: false}", ""]
    for name in names.get(module) or sorted(loaded.__all__):
        value = getattr(loaded, name)
        if inspect.ismodule(value):
            lines += [f"## {name} {{#{module}.{name}}}", "", f"The module [{module}.{name}]({module}.{name}.md).", ""]
            continue
        homes = [other for other in names if other != module and getattr(value, "__name__", "") in names[other]]
        if module == "torchcaps" and homes:
            home = f"{homes[0]}.{name}"
            lines += [f"## {name} {{#{module}.{name}}}", "", f"The same as [`{home}`][{home}].", ""]
        elif name in submodules:  # which hides the function of this name
            lines += [f'<a id="{module}.{name}"></a>', "", f"::: {value.__module__}.{name}", ""]
        else:
            lines += [f"::: {module}.{name}", ""]
    return "\n".join(lines)


def commands_page() -> str:
    """Every command with its arguments and options."""
    group: Any = typer.main.get_command(app)
    lines = ["# Command line", "", plain(group.help or ""), ""]
    for name, command in group.commands.items():
        usage = [f"{each.name.upper()}{'…' if each.nargs < 0 else ''}" for each in command.params if not options(each)]
        required = [f"{each.opts[0]} {kind(each)}" for each in command.params if options(each) and each.required]
        lines += [f"## torchcaps {name}", "", f"    torchcaps {' '.join([name, *usage, *required])} [OPTIONS]", ""]
        lines += [plain(command.help or ""), "", "| name | value | default | what it does |", "|---|---|---|---|"]
        for each in command.params:
            shown = ", ".join(f"`{option}`" for option in (options(each) or [each.name.upper()]))
            unset = each.default is None or each.default is False
            default = "required" if each.required else "" if unset else f"`{each.default}`"
            lines.append(f"| {shown} | {kind(each)} | {default} | {cell(each.help or '')} |")
        lines.append("")
    return "\n".join(lines)


def options(parameter: Any) -> list[str]:
    """The option strings of a parameter; none for an argument."""
    return [each for each in (*parameter.opts, *parameter.secondary_opts) if each.startswith("-")]


def kind(parameter: Any) -> str:
    """What value a parameter takes."""
    if parameter.metavar:
        return str(parameter.metavar)
    if getattr(parameter, "is_flag", False):
        return "flag"
    shown = re.sub(r".*\.|\]|list\[|<class '|'>", "", str(parameter.type_descriptor.annotation)).lower()
    low, high = parameter.min, parameter.max
    bounds = "" if low is None else f", at least {low}" if high is None else f", {low} to {high}"
    return f"{shown}{bounds}{', may be repeated' * (parameter.multiple or parameter.nargs < 0)}"


def recipes_page() -> str:
    """Every key of a recipe, and every recipe of the package."""
    lines = ["# Recipes", "", "A recipe is a YAML file with everything that decides a result. Any key can be set on"]
    lines += ["the command line: `--set train.epochs=50`. `torchcaps train NAME` trains a shipped recipe. A file with"]
    lines += [
        "`extends: NAME` takes every setting from that recipe and replaces those that it names itself; a",
        "`model`",
    ]
    lines += ["with a name of its own replaces the whole section. Name, description and claim are not inherited.", ""]
    for section, model in {"": recipes.Recipe, **sections()}.items():
        lines += [f"## {section or 'Top level'}", "", inspect.cleandoc(model.__doc__ or ""), ""]
        lines += ["| key | value | default | description |", "|---|---|---|---|"]
        comments = trailing_comments(model)
        for name, schema in model.model_json_schema()["properties"].items():
            if section or name not in sections():
                key = f"{section}.{name}" if section else name
                default = f"`{json.dumps(schema['default'])}`" if "default" in schema else "required"
                text = schema.get("description") or comments.get(name, "")
                lines.append(f"| `{key}` | {cell(value_of(schema))} | {default} | {cell(text)} |")
        lines.append("")
    lines += ["## Shipped recipes", "", "| recipe | model | data | epochs | description |", "|---|---|---|---|---|"]
    for name in recipes.list_recipes():
        each = recipes.load_recipe(name)
        about = cell(each.description)
        lines.append(f"| `{name}` | {each.model.name} | {each.data.source} | {each.train.epochs} | {about} |")
    return "\n".join(lines) + "\n"


def sections() -> dict[str, type[BaseModel]]:
    """The models of a recipe's sections, by name."""
    found = {}
    for name, field in recipes.Recipe.model_fields.items():
        for each in getattr(field.annotation, "__args__", (field.annotation,)):
            if inspect.isclass(each) and issubclass(each, BaseModel):
                found[name] = each
    return found


def value_of(schema: dict[str, Any]) -> str:
    """What a JSON schema allows, in a few words."""
    if "anyOf" in schema:
        return " or ".join(value_of(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        fixed = schema.get("prefixItems")
        return f"[{', '.join(map(value_of, fixed))}]" if fixed else f"list of {value_of(schema['items'])}"
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {schema[name]:g}" for name, sign in bounds.items() if name in schema]
    return " ".join([schema.get("type", "any"), *limits])


def trailing_comments(model: type[BaseModel]) -> dict[str, str]:
    """The comment at the end of each field's line: there the source describes the fields that it describes."""
    found: dict[str, str] = {}
    name = ""
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(model)).readline):
        if token.type == tokenize.NAME and token.start[1] == 4:
            name = token.string
        elif token.type == tokenize.COMMENT and token.line.strip() != token.string:
            found[name] = token.string.lstrip("# ")
    return found


def plain(text: str) -> str:
    return inspect.cleandoc(text.replace("\b", ""))


def cell(text: str) -> str:
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")
