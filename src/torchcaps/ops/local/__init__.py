"""Convolutional capsules with routing at each position (LaLonde & Bagci 2018)."""
