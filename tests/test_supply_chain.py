"""What is imported is named, and what is installed was chosen; what is shipped says its types; an audit that did not
happen says so."""

from __future__ import annotations

import ast
import functools
import json
import re
import runpy
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import torchcaps

ROOT = Path(__file__).parent.parent
SKIPPED = "NOT AUDITED: the vulnerability service cannot be reached; run `make audit` elsewhere\n"
PIN = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)


def pins(name: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for package, version in PIN.findall((ROOT / name).read_text(encoding="utf-8")):
        found.setdefault(re.sub(r"[-_.]+", "-", package).lower(), set()).add(version)
    return found


def test_the_lock_names_the_versions_of_the_constraints():
    chosen, locked = pins("constraints.txt"), pins("requirements.lock")
    differing = {
        name: (locked[name], chosen[name]) for name in chosen.keys() & locked.keys() if locked[name] - chosen[name]
    }
    assert not differing, "run `make lock`"
    assert {"torch", "numpy", "pillow", "safetensors", "pyyaml", "pytest"} <= locked.keys()
    assert len(locked.keys() & chosen.keys()) > 100


def test_every_file_of_the_lock_has_a_checksum():
    entries = re.split(r"\n(?=[\w.-]+==)", (ROOT / "requirements.lock").read_text(encoding="utf-8"))[1:]
    assert len(entries) > 100
    assert [entry.split()[0] for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)] == []


def named():
    """Requirements by the extra that they are in; those of everybody by ""."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 cannot read pyproject.toml by itself")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {extra: [Requirement(each) for each in wanted] for extra, wanted in groups.items()}


@functools.cache
def imported(path):
    """Modules that a file imports anywhere but for its types, and the extras it tells its user to install.

    Those imported by name are among them: import_extra("convert", "h5py"), files("fastapi_swagger.resources").
    """
    modules, extras = set(), {"serve"} & {path.parent.name}
    left = [ast.parse(path.read_text(encoding="utf-8"))]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            left += node.orelse
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            modules |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module)
        elif isinstance(node, ast.Call):
            words = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if ast.unparse(node.func) == "import_extra":
                extras.add(words[0])
                modules |= set(words[1:])
            elif ast.unparse(node.func) == "resources.files":
                modules |= set(words)
    return {name.partition(".")[0] for name in modules}, extras


def unnamed(groups, homes):
    """module and file of each import that the requirements do not answer for"""
    found = []
    for path in sorted((ROOT / "src" / "torchcaps").rglob("*.py")):
        modules, extras = imported(path)
        here = {canonicalize_name(each.name) for extra in ("", *extras) for each in groups[extra]}
        for module in (
            modules - set(sys.stdlib_module_names) - {"torchcaps", "triton"}
        ):  # torch brings it, or it is idle
            if here.isdisjoint(map(canonicalize_name, homes.get(module, [module]))):
                found.append((module, path.name))
    return found


def test_whatever_is_imported_is_named_in_the_dependencies():
    groups, homes = named(), packages_distributions()
    assert unnamed(groups, homes) == []
    for extra, missing, where in (
        ("", "filelock", ("filelock", "failures.py")),  # torch needs it as well, so no environment lacks it
        ("serve", "anyio", ("anyio", "middleware.py")),
        ("serve", "fastapi-swagger", ("fastapi_swagger", "files.py")),
        ("convert", "h5py", ("h5py", "keras.py")),
    ):
        fewer = groups | {extra: [each for each in groups[extra] if each.name != missing]}
        assert where in (found := unnamed(fewer, homes))
        assert {module for module, _ in found} == {where[0]}


def test_the_lock_has_what_the_project_names_and_all_that_needs():
    """As far as it is installed here; `.ci/lock check` asks pip for all platforms' files, by the network."""
    locked, groups = pins("requirements.lock"), named()
    left = [
        (each, "")
        for extra in ("", "serve", "export", "convert", "datasets", "ray", "mlflow", "wandb", "docs", "dev")
        for each in groups[extra]
    ]
    seen, wrong = set(), []
    while left:
        wanted, extra = left.pop()
        name = canonicalize_name(wanted.name)
        if name == "torchcaps" or (wanted.marker and not wanted.marker.evaluate({"extra": extra})):
            continue
        if not any(wanted.specifier.contains(version, prereleases=True) for version in locked.get(name, ())):
            wrong.append(str(wanted))
        elif (name, *wanted.extras) not in seen:
            seen.add((name, *wanted.extras))
            further = [Requirement(each) for each in distribution(name).requires or ()]
            left += [(each, extra) for each in further for extra in ("", *wanted.extras)]
    assert not wrong, "run `make lock`"
    assert len(seen) > 80


@pytest.mark.slow
def test_a_type_checker_sees_the_types_from_outside(tmp_path):
    (tmp_path / "user.py").write_text(
        "import torchcaps\n"
        "from torchcaps.ops import squash\n"
        "model = torchcaps.load('capsnet-digits')\n"
        "reveal_type(model)\n"
        "reveal_type(torchcaps.list_models())\n"
        "squash('not a tensor')\n"
    )
    # With the settings of `make check`, whose cache knows PyTorch already: that alone takes ten seconds.
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--cache-dir", str(ROOT / ".mypy_cache"), "--no-error-summary", str(tmp_path / "user.py")]
    told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout
    assert (Path(torchcaps.__file__).parent / "py.typed").is_file()
    assert 'Revealed type is "torchcaps.models.base.ImageModel"' in told
    assert 'Revealed type is "list[str]"' in told.replace("builtins.", "")
    assert re.search(r'user.py:6: error: Argument 1 to "squash" has incompatible type "str"', told)


@pytest.fixture
def audit(monkeypatch, capsys):
    """audit(output, complaint) runs the script with what pip-audit is made to say."""
    script = runpy.run_path(str(ROOT / ".ci" / "audit"))

    def run(output, complaint=""):
        done = subprocess.CompletedProcess([], int(bool(complaint)), stdout=output, stderr=complaint)
        monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: done)
        return script["main"](), "".join(capsys.readouterr())

    return run


@pytest.mark.parametrize(
    "complaint",
    [
        "ERROR:pip_audit._cli:Could not connect to PyPI's vulnerability feed\nERROR:pip_audit._cli:Tip: your",
        "Traceback (most recent call last):\n  …\nrequests.exceptions.ProxyError: HTTPSConnectionPool(host='pypi.org')",
        "Traceback (most recent call last):\n  …\nrequests.exceptions.ConnectionError: Failed to resolve 'pypi.org'",
        "requests.exceptions.HTTPError: 503 Server Error: …\n\npip_audit._service.interface.ServiceError",
    ],
    ids=["timeout", "proxy", "no name", "out of order"],
)
def test_an_audit_without_the_network_is_not_taken_for_a_good_one(complaint, audit):
    assert audit("", complaint) == (0, SKIPPED)


def test_an_audit_without_answers_is_not_taken_for_a_good_one(audit):
    assert audit(json.dumps({"dependencies": [{"name": "a", "skip_reason": "not found"}]})) == (0, SKIPPED)


@pytest.mark.parametrize(
    ("output", "complaint"),
    [
        ("", "/bin/python: No module named pip_audit"),
        ("", "ERROR:pip_audit._cli:invalid requirements input: requirements.lock"),
        ("", "Traceback (most recent call last):\n  …\nTypeError: 'NoneType' object is not iterable"),
        ("", ""),
        ("[]", ""),
    ],
    ids=["not installed", "no lock", "a bug", "silence", "another format"],
)
def test_an_audit_that_breaks_off_fails_with_what_it_said(output, complaint, audit):
    code, told = audit(output, complaint)
    assert code == 1
    assert told == f"{output}{complaint}\npip-audit broke off, exit code {int(bool(complaint))}\n"


def test_a_known_vulnerability_fails_the_audit(audit):
    flaw = {"id": "PYSEC-1", "fix_versions": ["2.0"]}
    packages = [{"name": "a", "version": "1.0", "vulns": [flaw]}, {"name": "b", "version": "1.0", "vulns": []}]
    code, told = audit(json.dumps({"dependencies": packages}))
    assert code == 1
    assert "a 1.0: PYSEC-1, mended in 2.0" in told
    code, told = audit(json.dumps({"dependencies": packages[1:]}))
    assert (code, told) == (0, "audited 1 of 1 packages: 0 known vulnerabilities\n")
