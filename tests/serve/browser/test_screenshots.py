"""The screenshots of the documentation: the script takes all of them, and none is empty."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from driver import serving
from PIL import Image

ROOT = Path(__file__).parents[3]
PAGES = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/explorer.md"))


@pytest.mark.slow
def test_every_screenshot_of_the_documentation_is_taken(browser, server, tmp_path):
    spec = importlib.util.spec_from_file_location("make_screenshots", ROOT / "docs" / "make_screenshots.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.take_all(browser, server, tmp_path)
    with serving("posecaps-digits") as address:
        script.take_poses(browser, address, tmp_path)
    taken = {path.name: np.asarray(Image.open(path).convert("L")) for path in tmp_path.iterdir()}
    assert set(taken) == set(re.findall(r"pictures/(explorer-[a-z]+\.png)", PAGES))
    for name, grey in taken.items():
        with Image.open(ROOT / "docs" / "pictures" / name) as kept:
            width, height = kept.size
        assert grey.shape[1] == width == (720 if "phone" in name else 1770)
        assert abs(grey.shape[0] - height) <= 0.1 * height  # fonts differ between machines
        assert (np.abs(grey - np.median(grey)) > 40).mean() > 0.03  # the image is not empty
