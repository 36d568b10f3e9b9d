"""The Spark type of the JSON of a pydantic type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

if TYPE_CHECKING:
    from pyspark.sql.types import DataType
    from typing_extensions import TypeForm

_Schema = Mapping[str, Any]


def spark_type(annotation: TypeForm[Any]) -> DataType:
    """Return the Spark type with which the JSON of a pydantic type can be parsed.

    Models become structs, lists become arrays, dictionaries become maps of strings. Types without one type in Spark
    (unions, Any, recursive models, decimals of any size) stay JSON text, as a string.

    Example::

        spark_type(Published).simpleString()        # 'struct<address:string,bytes:bigint>'
    """
    schema = TypeAdapter[Any](annotation).json_schema(mode="serialization")
    return _type_of(schema, schema.get("$defs", {}), ())


def _type_of(schema: _Schema, definitions: _Schema, inside: tuple[str, ...]) -> DataType:
    from pyspark.sql import types

    name = schema.get("$ref", "").rpartition("/")[2]
    if name:
        if name in inside:
            return types.StringType()
        return _type_of(definitions[name], definitions, (*inside, name))
    if "anyOf" in schema:
        others = [one for one in schema["anyOf"] if one.get("type") != "null"]
        return _type_of(others[0], definitions, inside) if len(others) == 1 else types.StringType()
    return _of_kind(schema, definitions, inside)


def _of_kind(schema: _Schema, definitions: _Schema, inside: tuple[str, ...]) -> DataType:
    from pyspark.sql import types

    match schema.get("type"):
        case "integer":
            return types.LongType()
        case "number":
            return types.DoubleType()
        case "boolean":
            return types.BooleanType()
        case "string":
            formats = {"date-time": types.TimestampType(), "date": types.DateType()}
            return formats.get(str(schema.get("format")), types.StringType())
        case "array" if isinstance(schema.get("items"), Mapping):
            return types.ArrayType(_type_of(schema["items"], definitions, inside))
        case "object" if "properties" in schema:
            fields = schema["properties"].items()
            return types.StructType(
                [types.StructField(name, _type_of(one, definitions, inside)) for name, one in fields]
            )
        case "object" if isinstance(schema.get("additionalProperties"), Mapping):
            values = _type_of(schema["additionalProperties"], definitions, inside)
            return types.MapType(types.StringType(), values)
        case _:
            return types.StringType()
