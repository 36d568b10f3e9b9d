"""What pydantic's schema of a type says of its values: which are read back equal, and what a part is declared as."""

from __future__ import annotations

import typing
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Schema: TypeAlias = Mapping[str, Any]

_EXACT_VALUES = frozenset(("none", "bool", "int", "float", "decimal", "str", "bytes", "date", "timedelta", "uuid"))
"""Types whose values are read back equal. Of a time the seconds of its offset are lost."""
_EXACT_PARTS = {
    "list": ["items_schema"], "set": ["items_schema"], "frozenset": ["items_schema"], "nullable": ["schema"],
    "default": ["schema"], "dict": ["keys_schema", "values_schema"],
}  # fmt: skip
_FOREIGN = frozenset(("metadata", "default", "expected", "serialization"))
"""Entries of a schema that hold values of the user's, or nothing about the parts of a value."""


def class_to_compare(schema: Schema) -> type | None:
    """Return the model whose values are equal if their fields are, or ``object`` if all values are read back equal.

    None: only a comparison of the values can tell. A model is always compared: whoever has made it may have changed it
    since it was validated, and what it leaves out, or its aliases, may change it.
    """
    if schema["type"] == "model":
        return schema["cls"] if _is_flat(schema) else None
    return object if _is_made_of(schema, _is_exact) else None


def _is_flat(model: Schema) -> bool:
    """Whether all that a model holds are fields of Python's own types, which ``==`` compares at once."""
    fields = model["schema"]
    return (
        fields["type"] == "model-fields"
        and not _allows_extras(model)
        and not _allows_extras(fields)
        and all(_is_made_of(field["schema"], _is_simple) for field in fields["fields"].values())
    )


def _allows_extras(schema: Schema) -> bool:
    return "allow" in (schema.get("extra_behavior"), (schema.get("config") or {}).get("extra_fields_behavior"))


def _is_made_of(schema: Schema, fits: Callable[[Schema], bool]) -> bool:
    """Whether a type and all its parts are of certain types, without functions of somebody's own."""
    if "serialization" in schema or schema.get("config"):
        return False
    parts = _EXACT_PARTS.get(schema["type"], ())
    return fits(schema) or (bool(parts) and all(name in schema and _is_made_of(schema[name], fits) for name in parts))


def _is_simple(schema: Schema) -> bool:
    return schema["type"] in {*_EXACT_VALUES, "literal", "datetime", "time"} and not _is_open(schema)


def _is_exact(schema: Schema) -> bool:
    if schema["type"] == "literal":
        # JSON does not tell a member of an enum from its value.
        return all(type(value) in (str, int, bool, type(None)) for value in schema["expected"])
    return schema["type"] in _EXACT_VALUES


AROUND = ("schema", "lax_schema", "strict_schema", "python_schema", "arguments_schema")
"""Where a schema that stands around another one, such as a validator's or a default's, has it."""
_OPEN = frozenset(("any", "union", "tagged-union", "is-instance", "function-plain", "function-wrap", "function-before"))
"""Types that may take a number for something else than a float."""


class Declared:
    """Says what a part of a value is declared as. Parts are followed through unions, references and validators."""

    def __init__(self, schema: Schema) -> None:
        self.root: list[Schema] = [schema]
        found = list(nodes(schema))
        self._by_ref = {node["ref"]: node for node in found if "ref" in node}
        self.has_sequences = any(map(_is_any_sequence, found))
        """Whether some part is a ``Sequence``, for which a list is as good as a tuple."""
        self.has_open_numbers = any(map(_is_open, found))
        """Whether some part may be a float without a type that says so."""
        self.has_ordered_dicts = any(node["type"] == "ordered-dict" or node.get("cls") is OrderedDict for node in found)
        """Whether some part keeps an order of keys."""

    def is_sequence(self, declared: list[Schema], value: object) -> bool:
        """Whether a value may be a sequence of any type there."""
        return self.has_sequences and any(map(_is_any_sequence, self._resolved(declared, value)))

    def part(self, declared: list[Schema], value: object, key: Any) -> list[Schema]:
        """Return what the part of a value is declared as, by what the value is: nothing if nothing is known."""
        if not self.has_sequences:
            return []
        return [part for one in self._resolved(declared, value) for part in _part(one, key)]

    def _resolved(self, declared: Iterable[Schema], value: object) -> Iterator[Schema]:
        """Yield what a value may be declared as, without what only stands around it."""
        waiting, seen = list(declared), set[int]()
        while waiting:
            schema = waiting.pop()
            if id(schema) in seen:
                continue
            seen.add(id(schema))
            kind = schema["type"]
            if kind in ("model", "dataclass") and schema["cls"] is not type(value):
                continue
            if kind == "definition-ref":
                waiting += [self._by_ref[schema["schema_ref"]]] if schema["schema_ref"] in self._by_ref else []
            elif kind == "union":
                waiting += [choice[0] if isinstance(choice, tuple) else choice for choice in schema["choices"]]
            elif kind == "tagged-union":
                waiting += [choice for choice in schema["choices"].values() if isinstance(choice, dict)]
            elif kind == "chain":
                waiting += schema["steps"]
            else:
                yield schema
                inner = [] if schema.get("root_model") else [schema.get(name) for name in AROUND]
                waiting += [part for part in inner if isinstance(part, dict)]


def nodes(schema: Schema) -> Iterator[Schema]:
    """Yield each schema within a schema, and itself."""
    waiting: list[Any] = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if isinstance(one.get("type"), str):
                yield one
            foreign = _FOREIGN if isinstance(one.get("type"), str) else ()
            waiting += [part for name, part in one.items() if name not in foreign]
        elif isinstance(one, list | tuple):
            waiting += one


def _is_open(schema: Schema) -> bool:
    if schema["type"] == "enum":
        return any(isinstance(member.value, float) for member in schema["members"])
    if schema["type"] == "literal":
        return any(isinstance(getattr(value, "value", value), float) for value in schema["expected"])
    return schema["type"] in _OPEN or _allows_extras(schema)


def _is_any_sequence(schema: Schema) -> bool:
    return schema["type"] == "is-instance" and schema.get("cls") in (Sequence, typing.Sequence)


def _part(schema: Schema, key: Any) -> list[Schema]:
    kind = schema["type"]
    if kind in ("model-fields", "typed-dict"):
        field = schema["fields"].get(key) or {"schema": schema.get("extras_schema")}
        found = field["schema"]
    elif kind in ("dataclass-args", "named-tuple", "arguments"):
        own = schema.get("fields") or schema["arguments_schema"]
        named = own[key : key + 1] if isinstance(key, int) else [field for field in own if field["name"] == key]
        found = named[0]["schema"] if named else None
    elif kind == "tuple":
        found = _item(schema, key)
    elif kind == "model" and schema.get("root_model"):
        found = schema["schema"]
    else:
        found = schema.get("values_schema") or schema.get("items_schema")
    return [found] if isinstance(found, dict) else []


def _item(schema: Schema, index: int) -> Schema | None:
    """Return what an item of a tuple is declared as; the last item may stand for any number."""
    items: list[Schema] = schema["items_schema"]
    index = min(index, schema.get("variadic_item_index", index))
    return items[index] if index < len(items) else None
