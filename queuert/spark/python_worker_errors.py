"""Finds the error that a Python worker of Spark raised, in the traceback inside the text of Spark's error.

That text also contains texts of rows, and of errors of user functions, which can be anything. So an error is accepted
only in positions where the worker itself writes: after Spark's own words at the beginning, and after lines of a
traceback of this package.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

_SPARKS_WORDS = re.compile(
    r"\s*(?:An exception was thrown from the Python worker\. Please see the stack trace below\.\n)?"
    r"(?:\([\w.$]+\) )?"
    r"(?:\[STREAM_FAILED\] Query \[[^\]\n]*\] terminated with exception: )?"
    r"(?:Job aborted due to stage failure: Task \d+ in stage [\d.]+ failed \d+ times, most recent failure: "
    r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^)\n]*\): )?"
    r"(?:org\.apache\.spark\.(?:sql\.|api\.python\.)?\w+: )?"
    r"(?:\[(?:STREAMING_)?PYTHON_\w+\] (?:Failed [^\n:]*: |Streaming Runner initialization failed, [^\n:]*: )?)?"
    r"(?:An exception was thrown from the Python worker:\s+)?"
)
_HEADER = "Traceback (most recent call last):\n"
_FRAMES = re.compile(r"(?:[ \t][^\n]*\n)+")
_OUR_FRAME = re.compile(r'^  File "[^"\n]*\bqueuert[/\\](?:spark|state)[/\\][^"\n]*"', re.MULTILINE)
_CAUSED = "The above exception was the direct cause of the following exception:\n\n" + _HEADER
_OURS = re.compile(r"queuert\.[\w.]+\.(\w+)(?:: ([^\n]*))?(?!\S)")
_SUFFIX = re.compile(r"(?:\s*SQLSTATE: \w{5})+\s*$")
_MOST_CAUSES = 20


def reported_error(error: BaseException) -> tuple[str, str] | None:
    """Return the class and the message, in one line, of this package's error inside Spark's error."""
    for text in islice(_messages(error), _MOST_CAUSES):
        found = _in_text(text)
        if found is not None:
            return found
    return None


def _messages(error: Any) -> Iterator[str]:
    """Yield the message of an error of Spark, and then those of its causes."""
    while error is not None:
        java = getattr(error, "java_exception", None)
        if java is not None:
            yield from _java_messages(java)
            return
        description = getattr(error, "_desc", None)
        yield description if isinstance(description, str) and description else str(error)
        error = getattr(error, "_cause", None) or error.__cause__


def _java_messages(java: Any) -> Iterator[str]:
    while java is not None:
        yield str(java.getMessage())
        java = java.getCause()


def _in_text(text: str) -> tuple[str, str] | None:
    words = _SPARKS_WORDS.match(text)
    if words is None or not words.group().strip():
        return None
    start = words.end()
    if not text.startswith(_HEADER, start):
        # With SPARK_HIDE_TRACEBACK there is only the last line.
        return _ours_at(text, start)
    frames = _FRAMES.match(text, start + len(_HEADER))
    if frames is None or not _OUR_FRAME.search(frames.group()):
        return None
    found = _ours_at(text, frames.end())
    if found is not None or not text.startswith("psycopg.", frames.end()):
        return found
    # Spark wraps every error of the driver: the last one is the original.
    frames = _FRAMES.match(text, at + len(_CAUSED)) if (at := text.rfind(_CAUSED)) > 0 else None
    return None if frames is None else _ours_at(text, frames.end())


def _ours_at(text: str, start: int) -> tuple[str, str] | None:
    line = _OURS.match(text, start)
    return None if line is None else (line.group(1), _SUFFIX.sub("", line.group(2) or ""))
