"""What every test starts from: the same seed, the default backend, an empty data folder, one thread a worker."""

from __future__ import annotations

import os
import sys
import warnings

import hypothesis
import numpy as np
import pytest
import torch
from PIL import Image

hypothesis.settings.register_profile("torchcaps", deadline=None, max_examples=30, derandomize=True, database=None)
hypothesis.settings.load_profile("torchcaps")

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton
if os.environ.get("PYTEST_XDIST_WORKER"):
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # nor do the processes that tests start wait for each other's threads


INTERPRETED = ("test_fused.py", "test_em_fused.py", "test_squash_maps.py", "test_operators.py", "test_local.py")


def pytest_configure(config):
    """On a GPU steps are compiled, and some versions of PyTorch warn of what they do themselves meanwhile."""
    if torch.cuda.is_available():
        config.addinivalue_line("filterwarnings", r"default:::torch\.")


def pytest_collection_modifyitems(items):
    """Slow tests first: one that is started last keeps a single worker busy while the others have nothing to do."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Kernels that Triton interprets take three times as long when coverage watches each of their lines: it does not.

    The mark `no_cover` would not do: in a worker of pytest-xdist coverage is started twice, and it stops but one.
    """
    if item.path.name not in INTERPRETED:
        return (yield)
    watching = sys.gettrace()
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(watching)


@pytest.fixture(autouse=True)
def _same_start(monkeypatch, tmp_path_factory):
    monkeypatch.delenv("TORCHCAPS_BACKEND", raising=False)
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path_factory.mktemp("data")))
    torch.manual_seed(0)


@pytest.fixture
def call(monkeypatch, capsys):
    """call("predict", …) → (exit code, what it printed, what it complained of)"""
    from torchcaps import cli

    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["torchcaps", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed = capsys.readouterr()
        return end.value.code, printed.out, printed.err

    return run


@pytest.fixture(scope="session")
def write_pairs():
    """write_pairs(folder, segments) writes images and masks as files; a class id as the value given for it."""

    def write(root, segments, values=(0, 255)):
        for kind in ("images", "masks"):
            (root / kind).mkdir(parents=True, exist_ok=True)
        for name, image, mask in zip(segments.names, segments.images, segments.masks):
            Image.fromarray(image[0].numpy()).save(root / "images" / f"{name}.png")
            Image.fromarray(np.array(values, dtype=np.uint8)[mask.numpy()]).save(root / "masks" / f"{name}.png")
        return root

    return write


def pytest_terminal_summary(terminalreporter):
    """What was skipped for want of a browser is said once and loudly: a green run without it proves less."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "tests/serve/browser" in report.nodeid]
    missing = [report for report in skipped if "no Chromium" in str(report.longrepr)]
    if missing:
        terminalreporter.write_line(
            f"NOT TESTED IN A BROWSER: {len(missing)} tests need Playwright and Chromium "
            "(pip install playwright; apt-get install chromium)",
            red=True,
            bold=True,
        )
