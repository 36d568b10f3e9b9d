"""Text from elsewhere, made fit for a line of a log."""

from __future__ import annotations

import json

from queuert.texts import printable

MAX_LENGTH = 2_000
"""Of an escaped text, in characters, before the note on what was cut."""


def escape(text: str, *, keep: str = "") -> str:
    """The text with all that is not printable written as backslash sequences, except the characters in ``keep``.

    So an id with line breaks cannot forge a log entry, nor one with terminal codes or text direction marks change how
    others look. Beyond ``MAX_LENGTH`` characters it is cut, with a note.
    """
    if len(text) > MAX_LENGTH:
        text = f"{text[:MAX_LENGTH]}... ({len(text)} characters)"
    return printable(text, keep=keep)


def escape_json(text: str) -> str:
    """JSON with its line breaks, and all else in it that is not printable written as JSON's own escapes.

    ``json.dumps`` leaves marks of text direction, line ends of Unicode and a terminal's controls above 127 as they are.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)
