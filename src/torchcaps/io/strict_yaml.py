"""A strict YAML reader: no aliases, tags, dates, duplicate keys, or numbers beyond 64 bits."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import yaml

MAX_CHARACTERS = 1 << 16  # about a second for PyYAML
MAX_DEPTH = 16
PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map")}


class BadYaml(ValueError):
    """The text is not valid; the message says why."""


def read_yaml(text: str) -> Any:
    """Parse a text into dicts, lists, strings, finite numbers, booleans and None."""
    if len(text) > MAX_CHARACTERS:
        raise BadYaml(f"it has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read")
    try:
        return _Loader(text).get_single_data()
    except BadYaml:
        raise
    except Exception as error:
        # YAMLError, and what Python raises for a value, as ValueError for a number of 5,000 digits
        raise BadYaml(" ".join(str(error).split())[:200] or type(error).__name__) from error


class _Loader(yaml.SafeLoader):
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        where = f" in line {event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            # a few lines of aliases to aliases expand to a billion values
            raise BadYaml(f"there is an anchor or an alias, & or *,{where}: write the value out")
        if self.depth > MAX_DEPTH:
            raise BadYaml(f"it is nested more than {MAX_DEPTH} deep{where}")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        if node is not None and node.tag not in PLAIN:
            raise BadYaml(f"{node.tag.rpartition(':')[2]!r} is not a supported type{where}")
        return node

    def fetch_flow_collection_start(self, kind: type[yaml.Token]) -> None:
        # the scanner looks 1,000 characters ahead for each open bracket, which is quadratic in the number of brackets
        if self.flow_level > MAX_DEPTH:
            raise BadYaml(f"it is nested more than {MAX_DEPTH} deep in line {self.line + 1}")
        super().fetch_flow_collection_start(kind)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise BadYaml(f"{key.value!r} is given twice, the second time in line {key.start_mark.line + 1}")
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number = super().construct_yaml_int(node)
        if not -(2**63) <= number < 2**63:
            raise BadYaml(f"the number in line {node.start_mark.line + 1} has more than 64 bits")
        return number

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        number = super().construct_yaml_float(node)
        if not math.isfinite(number):
            raise BadYaml(f"the number in line {node.start_mark.line + 1} is not finite")
        return number

    def construct_yaml_str(self, node: yaml.ScalarNode) -> str:
        text = str(super().construct_yaml_str(node))
        if any(0xD800 <= ord(c) < 0xE000 for c in text):
            raise BadYaml(f"the text in line {node.start_mark.line + 1} has an unpaired surrogate")
        return text


# Dates stay strings: otherwise 2026-02-30 would be an error, and 2026-02-03 a date object.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in PLAIN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind in ("int", "float", "str"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", getattr(_Loader, f"construct_yaml_{_kind}"))
