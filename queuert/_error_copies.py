"""Copies of an exception, for several callers that each raise one."""

from __future__ import annotations

import copy
from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def copy_of(error: E) -> E:
    """Return the error for one of several that raise it, with where it was raised, its cause and its notes.

    Raising an error changes it: its traceback grows, its context is what the caller was just handling, and callers add
    notes. That is no business of the others, some of which may serve other users.
    """
    try:
        copied = copy.copy(error)
    except Exception:
        return error  # Its constructor does not take its arguments; none of ours is so.
    if copied is error or type(copied) is not type(error):
        return error  # A copy method of its own.
    copied.__cause__, copied.__context__ = error.__cause__, error.__context__
    copied.__suppress_context__ = error.__suppress_context__
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        copied.__notes__ = list(notes)  # The copy has the same list.
    return copied.with_traceback(error.__traceback__)
