"""Comparison of two answers of the explorer."""

import numpy as np
from bodies import pixels_of

TOLERANCE = 1e-4


def compare(expected, found, path):
    """Compare numbers within TOLERANCE, angles the shorter way round, and pictures within one grey level."""
    if isinstance(expected, dict):
        assert set(expected) == set(found), path
        for name, value in expected.items():
            compare(value, found[name], f"{path}.{name}")
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(found), path
        for index, (one, other) in enumerate(zip(expected, found)):
            compare(one, other, f"{path}[{index}]")
    elif isinstance(expected, float):
        gap = abs(expected - found)
        assert (min(gap, abs(360 - gap)) if "angle" in path else gap) <= TOLERANCE, (path, expected, found)
    elif isinstance(expected, str) and expected.startswith("data:"):
        assert np.abs(pixels_of(expected) - pixels_of(found)).max() <= 1, path
    else:
        assert expected == found, (path, expected, found)
