"""Turns values into those that serialisers other than JSON receive: JSON's types and bytes."""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any

from pydantic_core import to_jsonable_python

from queuert.texts import text_reason

_PLAIN = frozenset({type(None), bool, int, float, bytes})
_LISTS = (list, tuple, set, frozenset, deque)
_BYTES = (bytes, bytearray, memoryview)


class UnfitValueError(Exception):
    """A value that cannot be passed to a serialiser; ``keys`` lead to it, ``reason`` says why."""

    def __init__(self, keys: tuple[object, ...], reason: str) -> None:
        super().__init__(reason)
        self.keys = keys
        self.reason = reason


def native(value: Any, keys: tuple[object, ...] = ()) -> Any:
    """Return a dumped model as None, bool, int, float, str, bytes, list and dict; other values as JSON writes them.

    Raises:
        UnfitValueError: a text that no store can hold, or two keys that are equal as text.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is str:
        return _text(value, keys)
    if isinstance(value, Enum):
        return native(value.value, keys)
    if isinstance(value, dict):
        return _object(value, keys)
    if isinstance(value, _LISTS):
        return [native(item, (*keys, number)) for number, item in enumerate(value)]
    if isinstance(value, _BYTES):
        return bytes(value)
    if isinstance(value, str):
        return _text(str.__str__(value), keys)
    return to_jsonable_python(value)


def _text(value: str, keys: tuple[object, ...]) -> str:
    reason = text_reason(value)
    if reason is not None:
        raise UnfitValueError(keys, f"must not contain {reason}")
    return value


def _object(value: dict[Any, Any], keys: tuple[object, ...]) -> dict[str, Any]:
    found = {_key(key): native(item, (*keys, key)) for key, item in value.items()}
    if len(found) < len(value):
        raise UnfitValueError(keys, "must not have two keys that are equal when written as text")
    return found


def _key(key: Any) -> str:
    if type(key) is str:
        return key
    [text] = to_jsonable_python({key: None})
    assert isinstance(text, str)
    return text


def holds_bytes(value: object) -> bool:
    """Whether a value that a serialiser returned contains bytes."""
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            stack.extend(one.values())
        elif isinstance(one, (list, tuple)):
            stack.extend(one)
        elif isinstance(one, (bytes, bytearray)):
            return True
    return False
