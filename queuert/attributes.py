"""Attributes of chains: names and values chosen by the caller, by which chains can be listed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from queuert.errors import ConfigurationError, InvalidIdentifierError
from queuert.jobs import Attributes, AttributeValue
from queuert.texts import check_text

GivenAttributes: TypeAlias = Mapping[str, str | int | float | Sequence[str | int | float]]
"""Values as a caller passes them: strings and numbers, or sequences of them."""

MAX_VALUES = 64
"""The most values that one chain may have, all its attributes together."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,63}")
_EXACT = 2**53
_MAX_DIGITS = 300


def checked_attributes(given: GivenAttributes | None) -> Attributes:
    """Return attributes as they are stored: numbers become text, and duplicate values are dropped.

    A whole float is written as the integer that it equals, so that ``17``, ``17.0`` and ``"17"`` find the same chains.

    Raises:
        InvalidIdentifierError: a name is not 1 to 64 characters of ``A-Z a-z 0-9 _ . : / -`` beginning with a letter or
            ``_``; or a value is not 1 to 512 characters.
        ConfigurationError: the attributes are not a mapping, a value is of another type, or there are more than 64
            values.

    Example:
        >>> checked_attributes({"user": 17, "tags": ["a", "b", "a"]})
        {'user': '17', 'tags': ('a', 'b')}
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"attributes must be a mapping of names to values, got {type(given).__name__}")
    checked = {_name(name): _value(name, value) for name, value in given.items()}
    count = sum(1 for _ in pairs_of(checked))
    if count > MAX_VALUES:
        raise ConfigurationError(f"attributes must have at most {MAX_VALUES} values altogether, got {count}")
    return checked


def attribute_filter(given: GivenAttributes | None) -> tuple[tuple[str, str], ...]:
    """Return the pairs of name and value that a chain must have to be listed, each once, in order.

    Raises:
        InvalidIdentifierError: a name or value is not allowed.
        ConfigurationError: as for :func:`checked_attributes`, or a sequence of values is empty.
    """
    checked = checked_attributes(given)
    empty = next((name for name, value in checked.items() if not value), None)
    if empty is not None:
        raise ConfigurationError(
            f"attribute {empty!r} must have at least one value to list by: add one, or leave it out"
        )
    return tuple(pairs_of(checked))


def pairs_of(attributes: Attributes) -> Iterator[tuple[str, str]]:
    """Yields each name with each of its values, as a store indexes them."""
    for name, value in attributes.items():
        for one in (value,) if isinstance(value, str) else value:
            yield name, one


def by_name(pairs: Iterable[tuple[str, str]]) -> dict[str, AttributeValue]:
    """Return the values of each name, the reverse of :func:`pairs_of`.

    >>> by_name([("user", "17"), ("tags", "a"), ("tags", "b")])
    {'user': '17', 'tags': ('a', 'b')}
    """
    found: dict[str, AttributeValue] = {}
    for name, text in pairs:
        known = found.get(name, ())
        found[name] = (*((known,) if isinstance(known, str) else known), text) if known else text
    return found


def attributes_text(attributes: Attributes) -> str | None:
    """Return attributes as JSON text; None if there are none."""
    return json.dumps(attributes, ensure_ascii=False, separators=(",", ":")) if attributes else None


def attributes_of(text: str | bytes | None) -> Attributes:
    """Return attributes from stored JSON text. What cannot be read, such as a manual edit, is left out."""
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: value if isinstance(value, str) else tuple(value) for name, value in found.items() if _is_readable(value)
    }


def _is_readable(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value))


def _name(name: object) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    shown = repr(name) if len(repr(name)) <= 200 else f"one of {len(repr(name))} characters"
    raise InvalidIdentifierError(
        "an attribute name must be 1 to 64 characters of A-Z a-z 0-9 _ . : / - and begin with a letter or _, "
        f"got {shown}"
    )


def _value(name: str, value: object) -> AttributeValue:
    if isinstance(value, list | tuple):
        return tuple(dict.fromkeys(_text(name, one) for one in value))
    return _text(name, value)


def _text(name: str, value: object) -> str:
    if isinstance(value, str):
        return check_text(value, what=f"value of attribute {name!r}")
    number: Any = value
    if type(value) is float and math.isfinite(value):
        return str(int(value)) if value.is_integer() and abs(value) <= _EXACT else repr(value)
    if type(value) is int and abs(number) < 10**_MAX_DIGITS:
        return str(value)
    raise ConfigurationError(
        f"values of attribute {name!r} must be strings, finite numbers, or a list of them, got {type(value).__name__}"
    )
