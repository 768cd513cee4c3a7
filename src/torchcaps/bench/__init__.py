"""Benchmarks that check correctness before they time anything: `torchcaps bench`."""
