"""Converts Arrow columns to JSON text, one text for each row, without a loop over rows.

The result is valid JSON except for numbers that are not finite, and strings that are not Unicode or contain NUL:
:mod:`queuert.spark.write.validation` finds those.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from queuert.spark.arrow import holds_any, pc

_CONTROLS = bytes(range(32))
_ESCAPED = b'"\\' + _CONTROLS
_REPLACED = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


def json_text(array: Any) -> Any:
    """Return the JSON of each value, as strings without nulls: a null is ``null``."""
    return pc.fill_null(_text(array), "null")


def object_text(names: Sequence[str], columns: Sequence[Any], rows: int) -> Any:
    """Return the JSON objects with these columns as fields."""
    if not names:
        return pa.repeat("{}", rows)
    parts: list[Any] = []
    for place, (name, column) in enumerate(zip(names, columns, strict=True)):
        parts += [f"{',' if place else '{'}{json.dumps(name, ensure_ascii=False)}:", json_text(column)]
    return _joined(*parts, "}")


def _joined(*parts: Any) -> Any:
    return pc.binary_join_element_wise(*parts, "")


def _text(array: Any) -> Any:
    """Return the JSON of each value; null where the value is null."""
    kind = array.type
    if pa.types.is_null(kind):
        return pa.nulls(len(array), pa.string())
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return pc.cast(array, pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _quoted(pc.cast(array, pa.string()))
    if pa.types.is_timestamp(kind):
        moments = pc.cast(array, pa.timestamp("us", "UTC"))
        return _joined('"', pc.strftime(moments, "%Y-%m-%dT%H:%M:%S"), 'Z"')
    if pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return _joined('"', pc.cast(array, pa.string()), '"')
    if pa.types.is_struct(kind):
        fields = object_text([field.name for field in kind], array.flatten(), len(array))
        return _where_valid(array, fields)
    if pa.types.is_map(kind):
        entries = _joined(_quoted(pc.cast(array.keys, pa.string())), ":", json_text(array.items))
        return _enclosed("{", array, entries, "}")
    return _enclosed("[", array, json_text(array.values), "]")


def _enclosed(before: str, array: Any, texts: Any, after: str) -> Any:
    """Return lists or maps, from the texts of their entries."""
    offsets = pc.cast(array.offsets, pa.int32())
    return _where_valid(array, _joined(before, pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ","), after))


def _where_valid(array: Any, texts: Any) -> Any:
    return texts if not array.null_count else pc.if_else(pc.is_valid(array), texts, None)


def _quoted(array: Any) -> Any:
    if holds_any(array, _ESCAPED):
        for plain, escaped in _REPLACED:
            array = pc.replace_substring(array, plain, escaped)
        if holds_any(array, _CONTROLS):
            array = pa.array([None if one is None else _escape_controls(one) for one in array.to_pylist()], pa.string())
    return _joined('"', array, '"')


def _escape_controls(text: str) -> str:
    return "".join(f"\\u{ord(char):04x}" if char < " " else char for char in text)
