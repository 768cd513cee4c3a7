"""Suites that measure models on changed images."""
