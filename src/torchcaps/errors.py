"""The exception for mistakes that a user can correct."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class UserError(ValueError):
    """A mistake that the user can correct; the message says what was wrong and how to fix it.

    The command line prints the message without a traceback and exits with 2. Messages contain file names and text from
    files, so control characters and line breaks are escaped.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class UnreadableImage(UserError):
    """A file that is not the image it claims to be."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"cannot read the image {path}: {reason}")
        self.path, self.reason = path, reason


class MissingPackage(UserError, ImportError):
    """A package that is not installed; the message names the command that installs it."""

    def __init__(self, message: str, name: str | None) -> None:
        super().__init__(message)
        self.name = name


class LostProcess(UserError):
    """Another process of the run is gone. Rank 0 may be that process, so rank 1 reports it, too."""


MAX_MESSAGE_CHARACTERS = 2000  # a name from a damaged file may have any length


def printable(text: str) -> str:
    """Escape what a terminal cannot print, and cut the middle of long text."""
    shown = (
        text
        if len(text) <= MAX_MESSAGE_CHARACTERS
        else f"{text[: MAX_MESSAGE_CHARACTERS // 2]} … {text[-MAX_MESSAGE_CHARACTERS // 2 :]}"
    )
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return "did you mean 'mnist'?" for the nearest choice, or the list of all choices."""
    known = sorted(choices)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else "choose one of: " + ", ".join(known)
