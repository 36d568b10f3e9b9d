"""Finds what is wrong with a payload, and where: the slow, exact half of :mod:`queuert.payloads`.

Nothing here runs for a payload that the quick search has cleared, and nothing recurses, so that no payload can exhaust
the stack.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any

import pydantic_core
from pydantic import BaseModel

from queuert.texts import text_reason

# Folding digits onto "0" and braces onto brackets turns "is any number too long" into a plain substring search.
FOLD = bytes.maketrans(b"123456789E{", b"000000000e[")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Possessive, so that a text without a closing quote costs one pass and no more.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_EXPONENT = re.compile(rb"[0-9]e([+-]?[0-9]+)")
_LONG_NUMBER = re.compile(rb"([0-9.]++)(?:[eE]([+-]?[0-9]++))|[0-9.]{100,}+")
# Stands in each float of 1e16 or more that pydantic writes; older versions leave out the plus.
LARGE_FLOAT = pydantic_core.to_json(1e16).decode()[1:].rstrip("16")
_TEXT_OR_LARGE_FLOAT = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?[0-9.]++e\+?[0-9]++', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

# The longest decimal expansion of a finite double (5e-324) takes 326 characters; Postgres writes numbers out in full.
DOUBLE_CHARS = 360
_DOUBLE_EXPONENT = 400
# ... and so it turns seven bytes, "5e-324,", into 328: fewer than this many times as much.
MAX_EXPANSION = 64

Trail = tuple[Any, object]  # (the trail of the parent, or (), and the key in the parent)
_Place = tuple[object, Trail | tuple[()], int]


def written_size(data: bytes, most: int) -> int:
    """Return the bytes of JSON text with its floats written out in full; exact only if they may exceed ``most``."""
    if len(data) * MAX_EXPANSION <= most or len(data) > most:
        return len(data)
    return len(data) + sum(abs(int(exponent)) for exponent in _EXPONENT.findall(_STRING.sub(b" ", data)))


def with_points(text: str, data: bytes) -> str:
    """Return JSON text, of which ``data`` is the UTF-8, with its large floats in full, and with a point.

    Postgres stores ``1e+23`` as 1 with 23 zeros. Where no type says that it is a float, that is read as an integer, and
    most floats of this size are not equal to the integer of their digits.
    """
    if f"0{LARGE_FLOAT}0" not in data.translate(FOLD).decode("latin-1"):
        return text
    return _TEXT_OR_LARGE_FLOAT.sub(lambda found: found[0] if found[0][0] == '"' else _in_full(found[0]), text)


def _in_full(number: str) -> str:
    digits = f"{Decimal(number):f}"
    return digits if "." in digits else f"{digits}.0"


def deeper_than(data: bytes, depth: int) -> bool:
    """Whether lists and objects of well-formed JSON text are nested deeper than ``depth``."""
    if data.count(b"[") + data.count(b"{") <= depth:
        return False
    brackets = _STRING.sub(b"", data).translate(None, _NOT_BRACKETS)
    while brackets and depth:
        depth -= 1
        brackets = brackets.replace(b"[]", b"()").replace(b"{}", b"()").replace(b"()", b"")
    return bool(brackets)


def number_fault(data: bytes, max_digits: int) -> str | None:
    """Return what is wrong with the numbers in JSON text: not finite, or longer than ``max_digits`` and any double."""
    bare = _STRING.sub(b" ", data)
    if b"NaN" in bare or b"Infinity" in bare:
        return "must not contain NaN or Infinity"
    for match in _LONG_NUMBER.finditer(bare):
        if not _is_readable(match[0], match[2] or b"0", max_digits):
            return f"must not contain a number of more than {max_digits} digits"
    return None


def _is_readable(number: bytes, exponent: bytes, max_digits: int) -> bool:
    if exponent == b"0" and len(number) <= max_digits:
        return True
    if len(number) > DOUBLE_CHARS or abs(int(exponent)) > _DOUBLE_EXPONENT:
        return False
    try:
        return math.isfinite(float(number))
    except ValueError:  # "1.2.3" and the like: the parser will name the place
        return True


def find_fault(
    root: object, *, max_depth: int, max_digits: int, numbers_only: bool = False
) -> tuple[tuple[object, ...], str] | None:
    """Return the first part of a value that JSON or a store cannot hold, as (path of keys, reason).

    ``numbers_only`` checks only numbers and keys, for values that have not been turned into JSON's types.
    """
    stack: list[_Place] = [(root, (), 0)]
    while stack:
        value, trail, depth = stack.pop()
        parts = children(value)
        if parts is None:
            reason = _number_reason(value, max_digits) if numbers_only else _leaf_reason(value, max_digits)
        elif depth == max_depth:
            return _too_deep(root, keys_of(trail), max_depth)
        else:
            items = list(parts)
            reason = next(filter(None, (_key_reason(key, max_digits) for key, _ in items)), None)
            stack.extend((child, (trail, key), depth + 1) for key, child in reversed(items))
        if reason is not None:
            return keys_of(trail), reason
    return None


def step(key: object) -> str:
    """Return a key as one step of a path: ``[3]``, ``.name`` or ``["any other"]``."""
    if isinstance(key, int):
        return f"[{key}]"
    text = str(key)
    if _NAME.fullmatch(text):
        return f".{text[:100]}"
    return f"[{json.dumps(text[:100])}]"


def children(value: object) -> Iterable[tuple[object, object]] | None:
    """Return the parts of a value with their keys; None if it has none."""
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list | tuple | set | frozenset | deque):
        return enumerate(value)
    if isinstance(value, BaseModel):
        return {**vars(value), **(value.model_extra or {})}.items()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}.items()
    return None


def _leaf_reason(value: object, max_digits: int) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        reason = text_reason(value)
        return reason and f"must not contain {reason}"
    if isinstance(value, int | float | Decimal):
        return _number_reason(value, max_digits)
    try:
        pydantic_core.to_json(value)
    except Exception:
        return f"a {type(value).__name__} cannot be written as JSON"
    return None


def _number_reason(value: object, max_digits: int) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else "must be a finite number, as JSON has no others"
    if isinstance(value, int):
        too_long = abs(value) >= 10**max_digits
    elif isinstance(value, Decimal):
        if not value.is_finite():
            return "must be a finite number, as JSON has no others"
        too_long = _decimal_digits(value) > max_digits
    else:
        return None
    return f"must be a number of at most {max_digits} digits" if too_long else None


def _decimal_digits(value: Decimal) -> int:
    """Return the number of digits of a finite decimal, written out in full."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    return max(len(digits) + exponent, 1) + max(-exponent, 0)


def _key_reason(key: object, max_digits: int) -> str | None:
    if key is None:
        return "a key must not be None, which would be read back as text"
    if isinstance(key, str):
        reason = text_reason(key)
        return reason and f"a key must not contain {reason}"
    reason = _number_reason(key, max_digits)
    return reason and f"a key {reason}"


def _too_deep(root: object, keys: tuple[object, ...], max_depth: int) -> tuple[tuple[object, ...], str]:
    """Return the error of a value that is nested too deep: it contains itself, or exceeds the limit."""
    value, seen = root, {id(root)}
    for count, key in enumerate(keys, 1):
        value = next(child for other, child in children(value) or () if other is key or other == key)
        if id(value) in seen:
            return keys[:count], "must not refer to itself"
        seen.add(id(value))
    return keys, f"must not be nested deeper than {max_depth}"


def keys_of(trail: Trail | tuple[()]) -> tuple[object, ...]:
    """Return the keys on the way from the root."""
    keys: list[object] = []
    while trail:
        trail, key = trail
        keys.append(key)
    return tuple(reversed(keys))
