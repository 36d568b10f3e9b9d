"""Attributes of chains: names and values of the caller's own, by which chains are found again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from queuert.errors import ConfigurationError, InvalidIdentifierError
from queuert.payloads import check_text

AttributeValue: TypeAlias = str | tuple[str, ...]
"""As kept: text, or several texts, each of which finds the chain."""

Attributes: TypeAlias = Mapping[str, AttributeValue]
"""As kept, by name."""

GivenAttributes: TypeAlias = Mapping[str, str | int | float | Sequence[str | int | float]]
"""As given: strings and numbers, or sequences of them."""

MAX_VALUES = 64
"""Values of one chain, of all its attributes together."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,63}")
_EXACT = 2**53
_MAX_DIGITS = 300


def checked_attributes(given: GivenAttributes | None) -> Attributes:
    """Attributes as they are kept: numbers become text, and a value that is given twice is there once.

    A whole float is written as the integer that it equals, so that ``17``, ``17.0`` and ``"17"`` find the same chains.

    Raises:
        InvalidIdentifierError: a name takes 1 to 64 characters of ``A-Z a-z 0-9 _ . : / -`` and begins with a letter or
            ``_``; a value takes 1 to 512 characters.
        ConfigurationError: they are no mapping, a value is of another kind, or there are more than 64 of them.

    Example:
        >>> checked_attributes({"user": 17, "tags": ["a", "b", "a"]})
        {'user': '17', 'tags': ('a', 'b')}
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"attributes are {type(given).__name__}: a mapping of names to values")
    checked = {_name(name): _value(name, value) for name, value in given.items()}
    count = sum(1 for _ in pairs_of(checked))
    if count > MAX_VALUES:
        raise ConfigurationError(f"there are {count} values of attributes; the limit is {MAX_VALUES}")
    return checked


def attribute_filter(given: GivenAttributes | None) -> tuple[tuple[str, str], ...]:
    """What chains must have to be found: pairs of a name and a value, each once, in order.

    Raises:
        InvalidIdentifierError: no attribute can have such a name or value.
        ConfigurationError: as for :func:`checked_attributes`, or a sequence is empty, which asks for nothing.
    """
    checked = checked_attributes(given)
    empty = next((name for name, value in checked.items() if not value), None)
    if empty is not None:
        raise ConfigurationError(f"no value of the attribute {empty!r} is asked for: leave it out, or name one")
    return tuple(pairs_of(checked))


def pairs_of(attributes: Attributes) -> Iterator[tuple[str, str]]:
    """Each name with each of its values: what an index of chains holds."""
    for name, value in attributes.items():
        for one in (value,) if isinstance(value, str) else value:
            yield name, one


def attributes_text(attributes: Attributes) -> str | None:
    """Attributes as JSON text; None for none."""
    return json.dumps(attributes, ensure_ascii=False, separators=(",", ":")) if attributes else None


def attributes_of(text: str | bytes | None) -> Attributes:
    """Attributes that were kept as JSON text."""
    if not text:
        return {}
    return {name: value if isinstance(value, str) else tuple(value) for name, value in json.loads(text).items()}


def _name(name: object) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    shown = repr(name) if len(repr(name)) <= 200 else f"of {len(repr(name))} characters"
    raise InvalidIdentifierError(
        f"the attribute name {shown} is not allowed: it takes 1 to 64 characters of A-Z a-z 0-9 _ . : / -, "
        "and begins with a letter or _"
    )


def _value(name: str, value: object) -> AttributeValue:
    if isinstance(value, list | tuple):
        return tuple(dict.fromkeys(_text(name, one) for one in value))
    return _text(name, value)


def _text(name: str, value: object) -> str:
    if isinstance(value, str):
        return check_text(value, what=f"value of the attribute {name!r}")
    number: Any = value
    if type(value) is float and math.isfinite(value):
        return str(int(value)) if value.is_integer() and abs(value) <= _EXACT else repr(value)
    if type(value) is int and abs(number) < 10**_MAX_DIGITS:
        return str(value)
    raise ConfigurationError(
        f"a value of the attribute {name!r} is of type {type(value).__name__}: "
        "use strings, finite numbers, or a list of them"
    )
