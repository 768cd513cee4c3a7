"""DDP and FSDP2 on two real processes, which run all cases once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cases import every
from two_ranks import KINDS, WORLD

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("two_ranks.py")
    started = [
        subprocess.Popen([sys.executable, script, str(rank), folder], stderr=subprocess.PIPE, text=True)
        for rank in range(WORLD)
    ]
    try:
        errors = [process.communicate(timeout=300)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * WORLD, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]


@every
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_agree_with_one(found, kind, name):
    assert [rank[f"{kind} {name}"] for rank in found] == [""] * WORLD
