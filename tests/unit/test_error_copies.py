"""Each of several that raise one error gets a copy: what one does to it is not seen by the others."""

from __future__ import annotations

from typing import Any

import pytest

from queuert._error_copies import copy_of


def _caught(error: Exception) -> Exception:
    try:
        try:
            raise KeyError("before")
        except KeyError as before:
            raise error from before
    except Exception as caught:
        return caught


def test_a_copy_says_the_same() -> None:
    error = _caught(ValueError("no", 1))
    error.add_note("of all")
    copied: Any = copy_of(error)
    assert copied is not error
    assert (type(copied), copied.args, copied.__notes__) == (ValueError, ("no", 1), ["of all"])
    assert copied.__cause__ is error.__cause__
    assert copied.__context__ is error.__context__
    assert copied.__suppress_context__
    assert copied.__traceback__ is error.__traceback__


def test_what_is_done_to_a_copy_is_not_done_to_the_error() -> None:
    error: Any = _caught(ValueError("no"))
    error.add_note("of all")
    place = error.__traceback__
    copied = copy_of(error)
    copied.add_note("of one")
    with pytest.raises(ValueError, match="no"):
        raise copied
    assert error.__notes__ == ["of all"]
    assert error.__traceback__ is place


def test_one_without_notes_gets_none() -> None:
    assert not hasattr(copy_of(ValueError("no")), "__notes__")


class _Picky(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


class _Other(Exception):
    def __copy__(self) -> str:
        return "other"


@pytest.mark.parametrize("error", [_Picky(code=1), _Other()])
def test_one_that_cannot_be_copied_stays(error: Exception) -> None:
    assert copy_of(error) is error
