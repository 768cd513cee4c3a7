"""Which implementation of a routing runs."""

from __future__ import annotations

import os

from torchcaps.errors import UserError, did_you_mean

BACKENDS = ("reference", "chunked")


def backend() -> str:
    """`chunked`, unless the environment variable TORCHCAPS_BACKEND names another (for tests and comparisons)."""
    name = os.environ.get("TORCHCAPS_BACKEND") or "chunked"
    if name not in BACKENDS:
        raise UserError(f"TORCHCAPS_BACKEND={name} is not a backend: {did_you_mean(name, BACKENDS)}")
    return name
