"""What the documents show runs as it is written there."""

import re
from pathlib import Path

import pytest

from torchcaps.layers.routings import ROUTINGS

DOCS = Path(__file__).parents[1] / "docs"


def test_a_routing_of_ones_own_is_made_as_the_page_says():
    example = re.findall(r"```python\n(.*?)```", (DOCS / "routing.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    try:
        exec(compile(example, "docs/routing.md", "exec"), {})
    finally:
        ROUTINGS.pop("winner", None)


@pytest.mark.parametrize("name", sorted(ROUTINGS))
def test_every_routing_is_in_the_table(name):
    assert f"| `{name}` |" in (DOCS / "routing.md").read_text(encoding="utf-8")
