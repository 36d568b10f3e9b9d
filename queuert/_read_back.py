"""Finds which part of a payload is read back as another value, and says why.

Nothing here runs for a value that is read back equal. Nothing recurses.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import BaseModel, Secret, SecretBytes, SecretStr, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_json

from queuert._json_validation import Trail, children, keys_of
from queuert._type_schemas import Declared, Schema

_Pair = tuple[object, object, Trail | tuple[()], list[Schema]]
_Part = tuple[object, object, object]
"""The key of a part, the part, and what it is read back as."""
Fault = tuple[tuple[object, ...], str]
"""The path of keys to a part, and what is wrong with it."""


def is_equal(value: object, other: object) -> bool | None:
    """Whether two values are equal; None if they cannot be compared, as arrays have no truth value."""
    try:
        return bool(value == other)
    except Exception:
        return None


def find_difference(given: object, read: object, declared: Declared) -> Fault | None:
    """Return the first part of a value that is read back as another one, as (path of keys, reason).

    What a class leaves out on purpose (``exclude=True``, private attributes) may differ, and so may objects of which
    nothing says whether they are equal; and where a ``Sequence`` is declared, a list is as good as a tuple.
    """
    stack: list[_Pair] = [(given, read, (), declared.root)]
    while stack:
        value, other, trail, types = stack.pop()
        equal = is_equal(value, other)
        if equal:
            continue
        if type(other) is list and isinstance(value, Sequence) and declared.is_sequence(types, value):
            value = list(value)
        parts, reason = _parts(value, other, equal)
        if reason is not None:
            return keys_of(trail), reason
        for key, child, twin in reversed(parts):
            stack.append((child, twin, (trail, key), declared.part(types, value, key)))
    return None


def find_secret(given: object, read: object) -> Fault | None:
    """Return the first secret of pydantic's that is written as stars, as (path of keys, reason).

    Its type need not be known: its stars are among what is read back.
    """
    stack: list[tuple[object, Trail | tuple[()]]] = [(given, ())]
    while stack:
        value, trail = stack.pop()
        if isinstance(value, Secret | SecretStr | SecretBytes) and str(value) and to_json(str(value)) in to_json(read):
            return keys_of(trail), "only stars are written of a secret: pass get_secret_value()"
        stack.extend((child, (trail, key)) for key, child in reversed(list(children(value) or ())))
    return None


def find_lost_order(read: object) -> Fault | None:
    """Return the first ``OrderedDict`` whose order a store may not keep, as (path of keys, reason)."""
    stack: list[tuple[object, Trail | tuple[()]]] = [(read, ())]
    while stack:
        value, trail = stack.pop()
        if isinstance(value, OrderedDict) and len(value) > 1:
            return keys_of(trail), "Postgres keeps no order of keys: declare a dict, or a list of pairs"
        stack.extend((child, (trail, key)) for key, child in reversed(list(children(value) or ())))
    return None


def _parts(value: Any, other: Any, equal: bool | None) -> tuple[list[_Part], str | None]:
    """Return the parts of two values that are not known to be equal, or why they differ; neither if they do not."""
    if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        return _fields(value, other)
    if isinstance(value, dict) and isinstance(other, dict):
        lost = [key for key in value if key not in other]
        if lost or len(value) != len(other):
            return [], f"the key {_shown_key(lost[0])} is read back as another one" if lost else _another(value)
        return [(key, child, other[key]) for key, child in value.items()], None
    if type(value) is not type(other):
        return [], _names(value, other)
    if not isinstance(value, list | tuple | deque | set | frozenset):
        return [], None if _is_alike(value, other, equal) else _another(value)
    if len(value) != len(other):
        return [], _another(value)
    if isinstance(value, set | frozenset):
        return _members(value, other), None
    return [(index, child, twin) for index, (child, twin) in enumerate(zip(value, other, strict=True))], None


def _fields(value: Any, other: Any) -> tuple[list[_Part], str | None]:
    if type(value) is type(other):
        found = _model_fields(value, other) if isinstance(value, BaseModel) else _dataclass_fields(value, other)
        return found, None
    union = isinstance(other, BaseModel) or is_dataclass(other)
    remedy = "give the union a discriminator" if union else "declare its type"
    if isinstance(value, type(other)):
        remedy = "what its class adds would be lost; declare that class, or give the union a discriminator"
    return [], f"{_names(value, other)}: {remedy}"


def _members(value: Any, other: Any) -> list[_Part]:
    """Pair the members of two sets that are not in both, in the order of their JSON text."""
    own = [(index, member) for index, member in enumerate(value) if member not in other]
    own.sort(key=lambda one: _text(one[1]))
    twins = sorted((member for member in other if member not in value), key=_text)
    return [(index, member, twin) for (index, member), twin in zip(own, twins, strict=True)]


def _text(value: object) -> bytes:
    return to_json(value, round_trip=True, inf_nan_mode="constants", bytes_mode="base64", serialize_unknown=True)


def _model_fields(value: BaseModel, other: BaseModel) -> list[_Part]:
    own, read, parts = vars(value), vars(other), []
    for name, field in type(value).model_fields.items():
        child, twin = own.get(name), read.get(name)
        if not field.exclude:
            unset = name not in value.model_fields_set
            parts.append((name, _as_declared(value, name, child, twin) if unset else child, twin))
    more = other.model_extra or {}
    return [*parts, *((name, child, more.get(name)) for name, child in (value.model_extra or {}).items())]


def _dataclass_fields(value: Any, other: Any) -> list[_Part]:
    parts: list[_Part] = []
    for field in fields(value):
        own = _info(type(value), field.name)
        default = field.default.default if isinstance(field.default, FieldInfo) else field.default
        # Neither pydantic nor a caller gives a value to a field that only the class itself sets.
        is_derived = not field.init and (default is MISSING or default is PydanticUndefined)
        if field.compare and not is_derived and not (own and own.exclude):
            child, twin = getattr(value, field.name, None), getattr(other, field.name, None)
            given = _as_declared(value, field.name, child, twin) if child is default else child
            parts.append((field.name, given, twin))
    return parts


def _info(cls: type, name: str) -> FieldInfo | None:
    """Return what pydantic knows of a field of a dataclass."""
    own: dict[str, FieldInfo] = getattr(cls, "__pydantic_fields__", {})
    extras = (extra for extra in get_args(_annotations(cls).get(name)) if isinstance(extra, FieldInfo))
    return own.get(name) or next(extras, None)


def _annotations(cls: type) -> dict[str, Any]:
    try:
        return get_type_hints(cls, include_extras=True)
    except Exception:
        return {}


def _as_declared(owner: object, name: str, child: object, twin: object) -> object:
    """Return a default as its type validates it: pydantic validates it when it is read, and not before."""
    if is_equal(child, twin):
        return child
    try:
        cls: Any = type(owner)
        return _adapter(cls, name).validate_python(child)
    except Exception:
        return child


@lru_cache(maxsize=256)
def _adapter(cls: Any, name: str) -> TypeAdapter[Any]:
    own: dict[str, FieldInfo] = getattr(cls, "__pydantic_fields__", {})
    if name not in own:
        return TypeAdapter(_annotations(cls)[name])
    declared: Any = own[name].annotation
    for metadata in own[name].metadata:
        declared = Annotated[declared, metadata]
    return TypeAdapter(declared)


def _is_alike(value: Any, other: Any, equal: bool | None) -> bool:
    """Whether two values without parts, of one type, that are not known to be equal may be so."""
    if equal is None:
        return _has_equal_items(value, other)
    if isinstance(value, datetime) and value.tzinfo and other.tzinfo:
        # By itself a time that a change of clocks repeats or leaves out equals none of another zone.
        return bool(value.timestamp() == other.timestamp())
    kind: Any = type(value)
    return kind.__eq__ is object.__eq__


def _has_equal_items(value: Any, other: Any) -> bool:
    """Whether two arrays or tables hold the same; true of whatever else has no truth value."""
    if getattr(value, "shape", None) != getattr(other, "shape", None):
        return False
    try:
        same = (value == other) | ((value != value) & (other != other))  # NaN is read back, and equals nothing
        for _ in "rows", "columns":
            same = same.all()
        return bool(same)
    except Exception:
        return True


def _names(value: object, other: object) -> str:
    return f"{_a(value)} is read back as {_a(other)}"


def _another(value: object) -> str:
    return f"{_a(value)} is read back as another one"


def _a(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[:1] in "aeiouAEIOU" else f"a {name}"


def _shown_key(key: object) -> str:
    return repr(key[:50]) if isinstance(key, str) else f"{str(key)[:50]} ({type(key).__name__})"
