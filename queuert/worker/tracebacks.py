"""The text of an exception's traceback, from the handler on: a flood of failures must not cost the others their time.

The standard library reads the source and parses the line of each frame anew, which takes longer than all else that a
worker does for an attempt. A flood fails in the same few places: the text of a place is made once. What leads from the
worker to the handler is left out, since it is the same for all.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from itertools import groupby
from os import sep
from pathlib import Path
from types import CodeType, TracebackType

_OURS = f"{Path(__file__).parent}{sep}"
_HEAD = "Traceback (most recent call last):\n"
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"

_MOST_PLACES = 1_000
_LONGEST_PLACE = 2_000
"""Places whose text is kept, and its characters: a line of generated code can be endless."""

_SAME_LINES = 3
"""Times that a place is shown which calls itself again and again."""

_places: dict[tuple[int, int, int], tuple[CodeType, str]] = {}
"""The texts, by the identity of the code, the instruction and the line. The code is kept, so that its identity is."""


def text_of(exception: BaseException, most: int) -> str:
    """The traceback as text, with what the exception was raised from before it; ``most`` characters from the end on.

    The end says where it happened. What raises while it is formatted is not caught.
    """
    parts: list[str] = []
    room = most
    for part in _from_the_end(exception):
        parts.append(part)
        room -= len(part)
        if room < 0:
            break
    text = "".join(reversed(parts))
    return text if len(text) <= most else "... " + text[-(most - 4) :]


def _from_the_end(exception: BaseException) -> Iterator[str]:
    """The parts of the text, the last one first, so that nobody makes more than will be kept."""
    seen: set[int] = set()
    one: BaseException | None = exception
    while one is not None:
        seen.add(id(one))
        trace = _from_the_handler(one.__traceback__)
        if isinstance(one, BaseExceptionGroup):
            # Drawn as a tree, with all that it was raised from: nothing to be kept of it.
            yield "".join(traceback.format_exception(type(one), one, trace))
            return
        yield "".join(traceback.format_exception_only(type(one), one))
        if trace is not None:
            yield from _frames_from_the_end(trace)
            yield _HEAD
        before, between = _raised_from(one)
        if before is None or id(before) in seen:
            return
        yield between
        one = before


def _raised_from(exception: BaseException) -> tuple[BaseException | None, str]:
    if exception.__cause__ is not None:
        return exception.__cause__, _CAUSE
    return (None if exception.__suppress_context__ else exception.__context__), _CONTEXT


def _from_the_handler(trace: TracebackType | None) -> TracebackType | None:
    """Without the worker's own frames at the beginning; all of it, if there are no others."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_OURS):
        found = found.tb_next
    return trace if found is None else found


def _frames_from_the_end(trace: TracebackType) -> Iterator[str]:
    alike = [(place, list(frames)) for place, frames in groupby(_walk(trace), key=_place)]
    for place, frames in reversed(alike):
        more = len(frames) - _SAME_LINES
        if more > 0:
            yield f"  [Previous line repeated {more} more time{'s' if more > 1 else ''}]\n"
        yield _shown(place, frames[0]) * min(len(frames), _SAME_LINES)


def _walk(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _place(trace: TracebackType) -> tuple[int, int, int]:
    return id(trace.tb_frame.f_code), trace.tb_lasti, trace.tb_lineno


def _shown(place: tuple[int, int, int], trace: TracebackType) -> str:
    known = _places.get(place)
    if known is not None:
        return known[1]
    text = traceback.format_tb(trace, 1)[0]
    if len(text) <= _LONGEST_PLACE:
        if len(_places) >= _MOST_PLACES:
            _places.clear()
        _places[place] = trace.tb_frame.f_code, text
    return text
