"""Texts that any store can hold: identifiers and names are checked, error messages are made storable."""

from __future__ import annotations

import re

from queuert.errors import ConfigurationError, InvalidIdentifierError

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_STEP_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,127}", re.ASCII)
_MAX_REASON = 2_000
_MAX_TEXT_BYTES = 1_000  # Two of them fit into one entry of a Postgres index (2,704 bytes).


def text_reason(text: str) -> str | None:
    """Return what in the text no store can hold, or None."""
    if text.isascii() and "\x00" not in text:
        return None
    found = _UNSTORABLE.search(text)
    if found is None:
        return None
    return "a NUL character" if found[0] == "\x00" else "a lone surrogate, which is not Unicode text"


def check_text(value: object, *, what: str, max_chars: int = 512, max_bytes: int = _MAX_TEXT_BYTES) -> str:
    """Return the value, if it can serve as an identifier: an id, a deduplication key, a worker's name.

    All characters are allowed (quotes, newlines, all of Unicode) except NUL and lone surrogates, which no store takes.

    Args:
        value: the value to check.
        what: its name in the error, such as ``"deduplication key"``.
        max_chars: the most characters that it may have.
        max_bytes: the most bytes that it may have in UTF-8; by default as many as fit into an index.

    Raises:
        InvalidIdentifierError: it is not a string, is empty or too long, or has a character that is not allowed.

    Example::

        check_text("order 17 / «été»", what="deduplication key")
    """
    if not isinstance(value, str):
        raise InvalidIdentifierError(f"{what} must be a string, got {type(value).__name__}")
    if not value:
        raise InvalidIdentifierError(f"{what} must not be empty")
    if len(value) > max_chars:
        raise InvalidIdentifierError(f"{what} must have at most {max_chars} characters, got {len(value)}")
    reason = text_reason(value)
    if reason is not None:
        raise InvalidIdentifierError(f"{what} must not contain {reason}")
    if len(value) > max_bytes // 4 and len(value.encode()) > max_bytes:
        raise InvalidIdentifierError(f"{what} must have at most {max_bytes} bytes in UTF-8, got {len(value.encode())}")
    return value


def check_step_name(name: object, *, what: str) -> str:
    """Return the name of a step, a phase or an event.

    Raises:
        ConfigurationError: it is not valid.
    """
    if not isinstance(name, str) or _STEP_NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"the name of {what} must be 1 to 128 characters of A-Z a-z 0-9 _ . : / - and begin with a letter or _, "
            f"got {name!r:.200}"
        )
    return name


def checked_reason(reason: object) -> str:
    """Return a reason that somebody gives, made storable and shortened to 2,000 characters.

    Raises:
        ConfigurationError: it is no string.
    """
    if not isinstance(reason, str):
        raise ConfigurationError(f"reason must be a string, got {type(reason).__name__}")
    return safe_text(reason, _MAX_REASON)


def safe_text(text: str, max_chars: int) -> str:
    """Return the text made storable: an error message or traceback must never keep a failure from being recorded.

    NUL characters and lone surrogates become ``\ufffd``. If the text is longer than ``max_chars``, its beginning and
    end are kept, as the last line of a traceback says what happened. Never raises; the result never exceeds
    ``max_chars``.

    Example::

        safe_text("bad byte \\x00 here", 1000)      # 'bad byte \ufffd here'
    """
    if len(text) > max_chars:
        marker = f"\n... [{len(text)} characters in all] ...\n"
        room = max_chars - len(marker)
        text = text[: max(max_chars, 0)] if room < 2 else text[: room // 3] + marker + text[-(room - room // 3) :]
    return _UNSTORABLE.sub("\ufffd", text)


def printable(text: str, *, keep: str = "") -> str:
    r"""Return the text with what is not printable written as backslash sequences, except the characters in ``keep``.

    >>> printable("no" + chr(9) + "answer")
    'no\\tanswer'
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode("ascii") for one in text
    )
