"""Capsule networks for PyTorch at the speed of a CNN."""
