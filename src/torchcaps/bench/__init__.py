"""Timings that a correctness check stands before: `torchcaps bench`."""
