"""Formats the traceback of an exception, from the handler on, fast enough for thousands of failures.

The standard library reads the source and parses the line of each frame again, which takes longer than all else that a
worker does for an attempt. Most failures happen in the same few locations, so the text of a location is cached. The
worker's own frames at the beginning are left out, since they are the same for all attempts.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from itertools import groupby
from os import sep
from pathlib import Path
from types import CodeType, TracebackType

_WORKER_DIRECTORY = f"{Path(__file__).parent}{sep}"
_HEAD = "Traceback (most recent call last):\n"
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"

_MAX_LOCATIONS = 1_000
"""Locations whose text is cached."""

_MAX_LOCATION_CHARACTERS = 2_000
"""The longest text that is cached: a line of generated code can have any length."""

_MAX_REPEATS = 3
"""How often a location of a recursion is repeated."""

_locations: dict[tuple[int, int, int], tuple[CodeType, str]] = {}
"""The texts, by identity of the code, instruction and line. The code is kept, so that its identity is not reused."""


def text_of(exception: BaseException, max_characters: int) -> str:
    """Return the traceback as text, with the exceptions that it was raised from, as ``traceback`` formats it.

    A longer text is cut at its beginning, since the end says where the exception was raised. Errors of ``__str__`` and
    the like are not caught.
    """
    parts: list[str] = []
    remaining = max_characters
    for part in _from_the_end(exception):
        parts.append(part)
        remaining -= len(part)
        if remaining < 0:
            break
    text = "".join(reversed(parts))
    return text if len(text) <= max_characters else "... " + text[-(max_characters - 4) :]


def left_the_worker(exception: BaseException) -> bool:
    """Return whether the exception passed through code that is not the worker's, such as a handler."""
    return any(
        not trace.tb_frame.f_code.co_filename.startswith(_WORKER_DIRECTORY) for trace in _walk(exception.__traceback__)
    )


def _from_the_end(exception: BaseException) -> Iterator[str]:
    """Yield the parts of the text, the last one first, so that no more are formatted than are kept."""
    seen: set[int] = set()
    current: BaseException | None = exception
    while current is not None:
        seen.add(id(current))
        trace = _from_the_handler(current.__traceback__)
        if isinstance(current, BaseExceptionGroup):
            # Formatted as a tree, with all that it was raised from; its locations are not cached.
            yield "".join(traceback.format_exception(type(current), current, trace))
            return
        yield "".join(traceback.format_exception_only(type(current), current))
        if trace is not None:
            yield from _frames_from_the_end(trace)
            yield _HEAD
        origin, separator = _raised_from(current)
        if origin is None or id(origin) in seen:
            return
        yield separator
        current = origin


def _raised_from(exception: BaseException) -> tuple[BaseException | None, str]:
    if exception.__cause__ is not None:
        return exception.__cause__, _CAUSE
    return (None if exception.__suppress_context__ else exception.__context__), _CONTEXT


def _from_the_handler(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the worker's own frames at the beginning; all of it, if there are no others."""
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(_WORKER_DIRECTORY):
        rest = rest.tb_next
    return trace if rest is None else rest


def _frames_from_the_end(trace: TracebackType) -> Iterator[str]:
    groups = [(location, list(frames)) for location, frames in groupby(_walk(trace), key=_location)]
    for location, frames in reversed(groups):
        more = len(frames) - _MAX_REPEATS
        if more > 0:
            yield f"  [Previous line repeated {more} more time{'s' if more > 1 else ''}]\n"
        yield _format_location(location, frames[0]) * min(len(frames), _MAX_REPEATS)


def _walk(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _location(trace: TracebackType) -> tuple[int, int, int]:
    return id(trace.tb_frame.f_code), trace.tb_lasti, trace.tb_lineno


def _format_location(location: tuple[int, int, int], trace: TracebackType) -> str:
    cached = _locations.get(location)
    if cached is not None:
        return cached[1]
    text = traceback.format_tb(trace, 1)[0]
    if len(text) <= _MAX_LOCATION_CHARACTERS:
        if len(_locations) >= _MAX_LOCATIONS:
            _locations.clear()
        _locations[location] = trace.tb_frame.f_code, text
    return text
