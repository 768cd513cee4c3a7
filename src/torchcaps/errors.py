"""The one exception for what a user can put right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake the user can put right; its message says what was wrong and what to do.

    The command line prints the message without a traceback and exits with 2.
    """


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """ " Did you mean 'mnist'?" for the nearest of the choices, or the list of them all."""
    known = sorted(choices)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else "choose one of: " + ", ".join(known)
