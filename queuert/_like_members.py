"""Finds unions whose members JSON does not tell from each other, when a job type is defined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from queuert._type_schemas import AROUND, Schema, nodes

_NO_DIFFERENCE = frozenset(("metadata", "ref", "title", "frozen", "extra_fields_behavior"))
"""Entries of a schema that change nothing of how the fields of a member are read."""
_OF_FIELDS = frozenset(("type", "schema", "metadata", "name", "kw_only", "frozen", "serialization_exclude"))
"""Entries of fields of which it is certain what is written and read."""


def find_like_members(schema: Schema) -> Iterator[tuple[str, type, type]]:
    """Yield the path of a union and two of its members, of which the second is always read as the first.

    Only what is certain counts. Of the members that can read a value, pydantic takes the one with most of the fields
    that were written, and of several the one that is named first.
    """
    unions = _Unions(schema)
    waiting: list[tuple[Schema, str]] = [(schema, "")]
    seen: set[int] = set()
    for one, path in waiting:  # grows meanwhile, so that the shortest paths come first
        found = unions.resolved(one)
        if id(found) not in seen:
            seen.add(id(found))
            if found["type"] == "union":
                for first, second in unions.like_members(found):
                    yield path, first, second
            waiting += _inner(found, path)


class _Unions:
    def __init__(self, schema: Schema) -> None:
        self._by_ref = {node["ref"]: node for node in nodes(schema) if "ref" in node}

    def resolved(self, schema: Schema) -> Schema:
        return self._by_ref.get(schema.get("schema_ref", ""), schema)

    def like_members(self, union: Schema) -> Iterator[tuple[type, type]]:
        choices = [choice[0] if isinstance(choice, tuple) else choice for choice in union["choices"]]
        members = [one for one in map(self.resolved, choices) if one["type"] in ("model", "dataclass")]
        for index, member in enumerate(members):
            for other in members[:index]:
                if self._is_read_as(member, other, in_order=union.get("mode") == "left_to_right"):
                    yield other["cls"], member["cls"]
                    break

    def _is_read_as(self, member: Schema, other: Schema, *, in_order: bool) -> bool:
        """Whether all that is written of a member is read as the other one, which is named first."""
        written, read, config = _fields(member), _fields(other), other.get("config") or {}
        if written is None or read is None or not self._is_same(member.get("config") or {}, config):
            return False
        required = {name for name, field in read.items() if field["schema"]["type"] != "default"}
        takes_more = in_order and config.get("extra_fields_behavior") != "forbid"
        if not required <= written.keys() or not (takes_more or written.keys() <= read.keys()):
            return False
        common = written.keys() & read.keys()
        return all(self._is_same(_type(written[name]), _type(read[name])) for name in common)

    def _is_same(self, one: Any, other: Any) -> bool:
        """Whether two types read the same, as far as that is certain: then all of their schemas is equal."""
        if isinstance(one, dict) and isinstance(other, dict):
            one, other = self.resolved(one), self.resolved(other)
            if one.get("type") in ("model", "dataclass", "enum"):
                return one.get("cls") is other.get("cls")
            keys = one.keys() - _NO_DIFFERENCE
            return keys == other.keys() - _NO_DIFFERENCE and all(self._is_same(one[key], other[key]) for key in keys)
        if isinstance(one, list | tuple) and isinstance(other, list | tuple):
            return len(one) == len(other) and all(map(self._is_same, one, other))
        try:
            return type(one) is type(other) and bool(one == other)
        except Exception:
            return False


def _fields(member: Schema) -> dict[str, Schema] | None:
    """Return the fields of a model or dataclass that are written, by name; None if something else may be written."""
    inner = member["schema"]
    if inner["type"] not in ("model-fields", "dataclass-args"):
        return None
    found = inner["fields"] if inner["type"] == "model-fields" else {one["name"]: one for one in inner["fields"]}
    own = member.get("custom_init") or member.get("root_model") or "serialization" in member
    if own or "serialize_by_alias" in (member.get("config") or {}):
        return None
    if not all(_is_certain(field, found) for field in found.values()):
        return None
    return {name: field for name, field in found.items() if not field.get("serialization_exclude")}


def _is_certain(field: Schema, others: dict[str, Schema]) -> bool:
    alias = field.get("validation_alias")
    known = {name for name, value in field.items() if value is not True or name != "init"} - {"serialization_alias"}
    return known - {"validation_alias"} <= _OF_FIELDS and (alias is None or str(alias) not in others)


def _type(field: Schema) -> Schema:
    schema: Schema = field["schema"]
    while schema["type"] == "default":
        schema = schema["schema"]
    return schema


def _inner(schema: Schema, path: str) -> Iterator[tuple[Schema, str]]:
    """Yield the types of the parts of a value with their paths."""
    kind = schema["type"]
    if kind in ("model-fields", "typed-dict"):
        yield from ((field["schema"], f"{path}.{name}") for name, field in schema["fields"].items())
    elif kind in ("dataclass-args", "named-tuple"):
        yield from ((field["schema"], f"{path}.{field['name']}") for field in schema["fields"])
    elif kind == "tuple":
        yield from ((item, f"{path}[{index}]") for index, item in enumerate(schema["items_schema"]))
    elif kind in ("union", "tagged-union"):
        choices = schema["choices"]
        for choice in choices.values() if isinstance(choices, dict) else choices:
            yield (choice[0] if isinstance(choice, tuple) else choice), path
    elif kind == "chain":
        yield from ((step, path) for step in schema["steps"])
    else:
        yield from ((schema[name], path) for name in AROUND if isinstance(schema.get(name), dict))
        parts = (schema.get(name) for name in ("items_schema", "values_schema", "extras_schema"))
        yield from ((part, f"{path}[]") for part in parts if isinstance(part, dict))
