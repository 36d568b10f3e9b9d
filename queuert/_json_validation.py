"""Finds what is wrong with a payload, and where: the slow, exact half of :mod:`queuert.payloads`.

Nothing here runs for a payload that the quick search has cleared, and nothing recurses, so that no payload can exhaust
the stack.
"""

from __future__ import annotations

import json
import math
import re
import typing
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import pydantic_core
from pydantic import BaseModel

# Folding digits onto "0" and braces onto brackets turns "is any number too long" into a plain substring search.
FOLD = bytes.maketrans(b"123456789E{", b"000000000e[")
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Possessive, so that a text without a closing quote costs one pass and no more.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_EXPONENT = re.compile(rb"[0-9]e([+-]?[0-9]+)")
_LONG_NUMBER = re.compile(rb"([0-9.]++)(?:[eE]([+-]?[0-9]++))|[0-9.]{100,}+")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

# The longest decimal expansion of a finite double (5e-324) takes 326 characters; Postgres writes numbers out in full.
DOUBLE_CHARS = 360
_DOUBLE_EXPONENT = 400
# ... and so it turns seven bytes, "5e-324,", into 328: fewer than this many times as much.
MAX_EXPANSION = 64

_Trail = tuple[Any, object]  # (the trail of the parent, or (), and the key in the parent)
_Place = tuple[object, _Trail | tuple[()], int]
_Pair = tuple[object, object, _Trail | tuple[()]]


def written_size(data: bytes, most: int) -> int:
    """Return the bytes of JSON text with its floats written out in full; exact only if they may exceed ``most``."""
    if len(data) * MAX_EXPANSION <= most or len(data) > most:
        return len(data)
    return len(data) + sum(abs(int(exponent)) for exponent in _EXPONENT.findall(_STRING.sub(b" ", data)))


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
        children = _children(value)
        if children is None:
            reason = _number_reason(value, max_digits) if numbers_only else _leaf_reason(value, max_digits)
        elif depth == max_depth:
            return _too_deep(root, _keys(trail), max_depth)
        else:
            items = list(children)
            reason = next(filter(None, (_key_reason(key, max_digits) for key, _ in items)), None)
            stack.extend((child, (trail, key), depth + 1) for key, child in reversed(items))
        if reason is not None:
            return _keys(trail), reason
    return None


def class_read_back_equal(schema: Mapping[str, Any]) -> type | None:
    """Return the class whose values are all read back equal, by pydantic's schema; ``object``: those of any class.

    None: only a comparison can tell. So it is for models inside others, which may be of a subclass; for unions, whose
    members may look the same in JSON; and wherever somebody's own function writes or reads.
    """
    if schema["type"] == "model":
        own = schema.get("root_model") or schema.get("post_init") or schema.get("custom_init") or not _is_exact(schema)
        return None if own or not _are_exact_fields(schema["schema"]) else schema["cls"]
    return object if _is_exact_value(schema) else None


_EXACT_VALUES = {
    "none", "bool", "int", "float", "decimal", "str", "bytes", "literal",
    "date", "time", "datetime", "timedelta", "uuid",
}  # fmt: skip
_EXACT_PARTS = {
    "list": ["items_schema"], "set": ["items_schema"], "frozenset": ["items_schema"], "nullable": ["schema"],
    "default": ["schema"], "dict": ["keys_schema", "values_schema"],
}  # fmt: skip
_OF_CONFIG = frozenset(("title", "str_max_length", "str_min_length", "str_strip_whitespace", "strict", "frozen"))
"""What a model's configuration may say without changing what is written and read."""


def _is_exact(schema: Mapping[str, Any]) -> bool:
    return "serialization" not in schema and _OF_CONFIG.issuperset(schema.get("config") or ())


def _is_exact_value(schema: Mapping[str, Any]) -> bool:
    if not _is_exact(schema):
        return False
    if schema["type"] in _EXACT_VALUES:
        return True
    parts = _EXACT_PARTS.get(schema["type"], ())
    return bool(parts) and all(name in schema and _is_exact_value(schema[name]) for name in parts)


def _are_exact_fields(schema: Mapping[str, Any]) -> bool:
    if schema["type"] != "model-fields" or schema.get("extras_schema") or schema.get("extra_behavior") == "allow":
        return False
    own = schema["fields"].values()
    return all(not field.get("serialization_exclude") and _is_exact_value(field["schema"]) for field in own)


def takes_any_sequence(schema: object) -> bool:
    """Whether a type has a part that is a ``Sequence``, by pydantic's schema: then a list is as good as a tuple."""
    if isinstance(schema, Mapping):
        if schema.get("type") == "is-instance" and schema.get("cls") in (Sequence, typing.Sequence):
            return True
        return any(takes_any_sequence(part) for part in schema.values() if isinstance(part, dict | list))
    return isinstance(schema, list) and any(takes_any_sequence(part) for part in schema)


def find_difference(
    given: object, read: object, *, any_sequence: bool = False
) -> tuple[tuple[object, ...], str] | None:
    """Return the first part of a value that is read back as another one, as (path of keys, reason).

    What a model leaves out on purpose (``exclude=True``, private attributes) may differ, and so may objects of which
    nothing says whether they are equal; and with ``any_sequence`` a tuple and a list of the same parts.
    """
    stack: list[_Pair] = [(given, read, ())]
    while stack:
        value, other, trail = stack.pop()
        if is_equal(value, other):
            continue
        if any_sequence and type(value) is tuple and type(other) is list:
            value = list(value)
        pairs, reason = _pairs(value, other)
        if reason is not None:
            return _keys(trail), reason
        stack.extend((child, twin, (trail, key)) for key, child, twin in reversed(pairs))
    return None


def is_equal(value: object, other: object) -> bool:
    """Whether two values are equal, or cannot be compared and are of one type."""
    try:
        return bool(value == other)
    except Exception:  # An array, say, which has no truth value.
        return type(value) is type(other)


def _pairs(value: Any, other: Any) -> tuple[list[tuple[object, object, object]], str | None]:
    """Return the parts of two unequal values with their keys, or why they differ."""
    names = f"{_a(value)} is read back as {_a(other)}"
    if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        if type(value) is not type(other):
            if isinstance(value, type(other)):
                return [], f"{names}: what its class adds would be lost; declare that class"
            union = isinstance(other, BaseModel) or is_dataclass(other)
            return [], f"{names}: {'give the union a discriminator' if union else 'declare its type'}"
        return [(name, getattr(value, name, None), getattr(other, name, None)) for name in _stored_fields(value)], None
    if isinstance(value, dict) and isinstance(other, dict):
        for key in value:
            if key not in other:
                return [], f"the key {_shown_key(key)} is read back as another one"
        return [(key, child, other[key]) for key, child in value.items()], None
    if isinstance(value, list | tuple | deque) and type(value) is type(other) and len(value) == len(other):
        return [(index, child, twin) for index, (child, twin) in enumerate(zip(value, other, strict=True))], None
    if type(value) is not type(other):
        return [], names
    if isinstance(value, datetime) and value.tzinfo and other.tzinfo and value.timestamp() == other.timestamp():
        # By itself a time that a change of clocks repeats or leaves out equals none of another zone.
        return [], None
    kind: Any = type(value)
    if kind.__eq__ is object.__eq__:
        return [], None
    return [], f"{_a(value)} is read back as another one"


def _a(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[:1] in "aeiouAEIOU" else f"a {name}"


def _stored_fields(value: Any) -> list[str]:
    if isinstance(value, BaseModel):
        stored = [name for name, field in type(value).model_fields.items() if not field.exclude]
        return [*stored, *(value.model_extra or ())]
    return [field.name for field in fields(value) if field.compare]


def _shown_key(key: object) -> str:
    return repr(key[:50]) if isinstance(key, str) else f"{str(key)[:50]} ({type(key).__name__})"


def step(key: object) -> str:
    """Return a key as one step of a path: ``[3]``, ``.name`` or ``["any other"]``."""
    if isinstance(key, int):
        return f"[{key}]"
    text = str(key)
    if _NAME.fullmatch(text):
        return f".{text[:100]}"
    return f"[{json.dumps(text[:100])}]"


def text_reason(text: str) -> str | None:
    """Return what in the text no store can hold, or None."""
    if text.isascii() and "\x00" not in text:
        return None
    found = UNSTORABLE.search(text)
    if found is None:
        return None
    return "a NUL character" if found[0] == "\x00" else "a lone surrogate, which is not Unicode text"


def _children(value: object) -> Iterable[tuple[object, object]] | None:
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
        value = next(child for other, child in _children(value) or () if other is key or other == key)
        if id(value) in seen:
            return keys[:count], "must not refer to itself"
        seen.add(id(value))
    return keys, f"must not be nested deeper than {max_depth}"


def _keys(trail: _Trail | tuple[()]) -> tuple[object, ...]:
    keys: list[object] = []
    while trail:
        trail, key = trail
        keys.append(key)
    return tuple(reversed(keys))
