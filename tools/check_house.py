#!/usr/bin/env python3
"""Measure the source: modules, long functions, checks of kind, replaced names, lines. Exit with 1 if a bound is broken.

tools/check_house.py [--base COMMIT]    with --base, the source must be smaller than at that commit
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "torchcaps"
MAX_TRAIN_MODULES = 20
MAX_FUNCTION_LINES = 60
MAX_KIND_CHECKS = 12
KIND_FOLDERS = ("src/torchcaps/train", "src/torchcaps/commands", "src/torchcaps/explain", "tools")
DEVICES = ("auto", "cpu", "cuda", "mps")
KERNELS = ("kernels.py", "*_kernels.py", "products.py")  # Triton kernels, which may be long

# Names that were replaced. Modules by path, without .py.
OLD_MODULES = ("*/team", "*/shards", "*/pieces", "*/sharpness", "*/divergence", "*/guard", "*/bounded", "*/debate")
OLD_MODULES += ("train/watch", "train/step", "models/plan", "serve/turns", "serve/exhibits", "bench*/house")
OLD_MODULES += ("*/likeness", "*/overlap", "*/scores", "data/*pairs", "data/*resident", "data/*batches", "data/*crops")
# Identifiers and recipe keys that must not occur at all.
OLD_NAMES = re.compile(
    r"Team|first_says|in_pieces|Uphill|blame_layer|duel|rival|likeness|exhibits?|Exhibits?|PixelModel|Segments"
    r"|found_in|presence_of|debate|Debate|_book|_shelf|_HOMES|_ROOMS|MOST_\w+|(?:LONGEST|LARGEST|DEEPEST)(?:_\w+)?"
)
# Common words: no function and no class may be called so.
OLD_DEFINITIONS = re.compile(r"first|leave|together|there|blame|please|turns|mistakes")
OLD_OF_TRAINING = "sharpness"  # what is now sam_rho; pose capsules have another sharpness


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def long_functions() -> list[str]:
    found = []
    for path, tree in trees():
        if any(fnmatch(path.name, kernels) for kernels in KERNELS):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    found.append(f"{where(path, node)} {node.name}: {lines} lines")
    return found


def kind_checks() -> tuple[list[str], int]:
    """Checks of what kind of model, data, task or result a value is; and how many others ask for a type.

    The others ask for types that are not of this package: an exception, a tensor, a value of a parsed file.
    """
    own = {node.name for _, tree in trees() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found, others = [], 0
    for folder in KIND_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if asks_for_kind(node, own):
                    found.append(f"{where(path, node)} {ast.unparse(node)[:90]}")
                else:
                    others += isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
    return found, others


def asks_for_kind(node: ast.AST, own: set[str]) -> bool:
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
        named = {ast.unparse(each).rpartition(".")[2] for each in ast.walk(node.args[1])}
        return any(name in own and not name.endswith("Error") for name in named)
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) == "hasattr"
    if isinstance(node, ast.Compare):
        sides = [ast.unparse(each) for each in (node.left, *node.comparators)]
        asked = any(re.fullmatch(r"type\(.*\)|(.*\.)?kind", side) for side in sides)
        return asked and not any(side.strip("'") in DEVICES for side in sides)
    return isinstance(node, ast.MatchClass)


def old_names() -> list[str]:
    found = []
    for folder in (SOURCE, ROOT / "benchmarks", ROOT / "tools"):
        for path in sorted(folder.rglob("*.py")):
            module = path.relative_to(SOURCE if folder is SOURCE else ROOT).with_suffix("").as_posix()
            found += [f"module {module}" for old in OLD_MODULES if fnmatch(module, old) or f"*/{module}" == old]
    for path, tree in trees():
        for node in ast.walk(tree):
            name = identifier(node)
            defined = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
            training = name == OLD_OF_TRAINING and "train" in path.relative_to(SOURCE).parts
            if training or OLD_NAMES.fullmatch(name) or (defined and OLD_DEFINITIONS.fullmatch(name)):
                found.append(f"{where(path, node)} {name}")
    for path in sorted((SOURCE / "recipes").glob("*.yaml")):
        for key in re.findall(r"(\w+):", path.read_text(encoding="utf-8")):
            if OLD_NAMES.fullmatch(key) or key == OLD_OF_TRAINING:
                found.append(f"{path.relative_to(ROOT)} {key}")
    return found


def identifier(node: ast.AST) -> str:
    """The name that a node gives or uses."""
    for field in ("id", "attr", "arg", "name"):
        if isinstance(name := getattr(node, field, None), str):
            return name.rpartition(".")[2]
    return ""


def where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def lines_now(folder: str) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (ROOT / folder).rglob("*.py"))


def lines_at(commit: str, folder: str) -> int:
    archive = subprocess.run(["git", "archive", commit, folder], cwd=ROOT, capture_output=True)
    if archive.returncode:
        return 0  # the folder did not exist yet
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        files = [tar.extractfile(each) for each in tar if each.name.endswith(".py")]
        return sum(file.read().count(b"\n") for file in files if file)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--base", help="the commit that the source must be smaller than")
    base = options.parse_args().base
    failed = False

    def check(what: str, found: list[str], allowed: int) -> None:
        nonlocal failed
        failed |= len(found) > allowed
        print(f"{'FAILED' if len(found) > allowed else 'ok    '}  {what}: {len(found)}, at most {allowed}")
        for each in found if len(found) > allowed else []:
            print(f"          {each}")

    modules = [path.stem for path in (SOURCE / "train").glob("*.py") if path.stem != "__init__"]
    check("modules at the top level of train", sorted(modules), MAX_TRAIN_MODULES)
    check(f"functions of more than {MAX_FUNCTION_LINES} lines", long_functions(), 0)
    kinds, others = kind_checks()
    check(f"checks of kind in {', '.join(KIND_FOLDERS)}", kinds, MAX_KIND_CHECKS)
    print(f"        checks of other types there (exceptions, tensors, parsed values): {others}, not limited")
    check("names that were replaced", old_names(), 0)
    now, tools = lines_now("src"), lines_now("tools")
    print(f"        lines of Python: {now:,} in src, {tools:,} in tools")
    if base:
        then = lines_at(base, "src")
        failed |= now >= then
        print(
            f"{'FAILED' if now >= then else 'ok    '}  at {base}: {then:,} in src, {lines_at(base, 'tools'):,} in tools"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
