"""Parsers of file formats."""
