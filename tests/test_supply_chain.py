"""What is installed is what was chosen; what is shipped says its types; an audit that did not happen says so."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import torchcaps

ROOT = Path(__file__).parent.parent
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
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--ignore-missing-imports",
        "--follow-imports=silent",
        "--no-error-summary",
    ]
    command += ["--cache-dir", str(tmp_path / "cache"), str(tmp_path / "user.py")]
    told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout
    assert (Path(torchcaps.__file__).parent / "py.typed").is_file()
    assert 'Revealed type is "torchcaps.models.base.ImageModel"' in told
    assert 'Revealed type is "list[str]"' in told.replace("builtins.", "")
    assert re.search(r'user.py:6: error: Argument 1 to "squash" has incompatible type "str"', told)


@pytest.fixture
def audit(monkeypatch, capsys):
    """audit(packages) runs the script with what the service is made to answer."""
    script = runpy.run_path(str(ROOT / ".ci" / "audit"))

    def run(output):
        done = subprocess.CompletedProcess([], 0, stdout=output, stderr="")
        monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: done)
        return script["main"](), "".join(capsys.readouterr())

    return run


def test_an_audit_without_answers_is_not_taken_for_a_good_one(audit):
    skipped = json.dumps({"dependencies": [{"name": "a", "skip_reason": "not found"}]})
    for output in (skipped, "", "no route to host"):
        code, told = audit(output)
        assert code == 0
        assert told.startswith("NOT AUDITED")
        assert told.count("\n") == 1


def test_a_known_vulnerability_fails_the_audit(audit):
    flaw = {"id": "PYSEC-1", "fix_versions": ["2.0"]}
    packages = [{"name": "a", "version": "1.0", "vulns": [flaw]}, {"name": "b", "version": "1.0", "vulns": []}]
    code, told = audit(json.dumps({"dependencies": packages}))
    assert code == 1
    assert "a 1.0: PYSEC-1, mended in 2.0" in told
    code, told = audit(json.dumps({"dependencies": packages[1:]}))
    assert (code, told) == (0, "audited 1 of 1 packages: 0 known vulnerabilities\n")
