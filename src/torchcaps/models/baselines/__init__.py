"""Networks without capsules, to compare with."""
