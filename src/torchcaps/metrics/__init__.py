"""Metrics: classification, segmentation, objects, detection of the unfamiliar, equivariance, similarity of images."""

from __future__ import annotations

from typing import Any


def rounded(value: Any) -> float:
    """Round a metric to the six digits that result files store."""
    return round(float(value), 6)
