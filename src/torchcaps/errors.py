"""The one exception for what a user can put right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class UserError(ValueError):
    """A mistake the user can put right; its message says what was wrong and what to do.

    The command line prints the message without a traceback and exits with 2. Names of files and words from them are
    part of messages, so what could move the cursor of a terminal, or end a line, is written as its escape.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class UnreadableImage(UserError):
    """A file that is not the image it claims to be."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"cannot read the image {path}: {reason}")
        self.path, self.reason = path, reason


class LostProcess(UserError):
    """Another process of the run is gone: the first of them may be, so the second says it, too."""


MAX_MESSAGE_CHARACTERS = 2000  # characters of a message: a name from a damaged file may have any length


def printable(text: str) -> str:
    """One line of what every terminal and every encoding can show as it is meant."""
    shown = (
        text
        if len(text) <= MAX_MESSAGE_CHARACTERS
        else f"{text[: MAX_MESSAGE_CHARACTERS // 2]} … {text[-MAX_MESSAGE_CHARACTERS // 2 :]}"
    )
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """ " Did you mean 'mnist'?" for the nearest of the choices, or the list of them all."""
    known = sorted(choices)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else "choose one of: " + ", ".join(known)
