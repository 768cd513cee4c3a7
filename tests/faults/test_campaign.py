"""A short campaign of faults; `make faults` is the long one."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_nothing_is_lost():
    asked = ["--kills", "3", "--damaged", "4", "--full", "1"]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("campaign.py")), *asked],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kills in" in done.stdout
    assert "4 spoiled checkpoints: 0 lost, 4 fell back on the one before and said so" in done.stdout
    assert "0 corrupted, 0 lost" in done.stdout
