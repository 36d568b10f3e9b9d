"""The Spark schemas of the tables that can be read. Every column may be null; times are in UTC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from queuert.spark.errors import SparkOptionError
from queuert.spark.read.columns import ATTEMPTS, CHAINS, EVENTS, JOBS, WORKERS, Column, Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TYPES: dict[Kind, DataType] = {
    Kind.TEXT: StringType(),
    Kind.JSON: StringType(),
    Kind.INT: IntegerType(),
    Kind.LONG: LongType(),
    Kind.MOMENT: TimestampType(),
    Kind.TEXTS: ArrayType(StringType()),
}


def schema_of(columns: Sequence[Column]) -> StructType:
    """Return the schema of columns."""
    return StructType([StructField(column.name, _TYPES[column.kind]) for column in columns])


JOBS_SCHEMA: StructType = schema_of(JOBS)
"""The table ``jobs``: a row for each job. Payloads, ``error``, ``failures`` and ``attributes`` are JSON."""

CHAINS_SCHEMA: StructType = schema_of(CHAINS)
"""The table ``chains``: a row for each chain, with the input of its first job and the output of its last."""

ATTEMPTS_SCHEMA: StructType = schema_of(ATTEMPTS)
"""The table ``attempts``: a row for each attempt that is in the event log."""

EVENTS_SCHEMA: StructType = schema_of(EVENTS)
"""The table ``events``, and the stream: a row for each transition of a job."""

WORKERS_SCHEMA: StructType = schema_of(WORKERS)
"""The table ``workers``: a row for each worker that is alive, or was until recently."""


_JSON = ("input", "output", "error", "failures", "attributes")


def check_schema(columns: Sequence[Column], given: StructType) -> None:
    """Check that a user's schema has the types of the columns.

    Raises:
        SparkOptionError: a type differs.
    """
    for column, params in zip(columns, given.fields, strict=True):
        if params.dataType != _TYPES[column.kind]:
            raise SparkOptionError(
                f"schema: {column.name} is {_TYPES[column.kind].simpleString()}, not {params.dataType.simpleString()}: "
                "cast it after reading"
            )


def with_variants(df: DataFrame, *names: str) -> DataFrame:
    """Convert columns of JSON text to VARIANT, by ``try_parse_json``: null if Spark cannot represent the JSON.

    Without names: those of ``input``, ``output``, ``error``, ``failures`` and ``attributes`` that the DataFrame has.
    Numbers lose trailing zeros (``1.50`` becomes 1.5); keep the text where that matters. VARIANT cannot be grouped,
    sorted or compared: extract values with ``variant_get``.

    Example::

        jobs = with_variants(spark.read.format("queuert").load(), "input")
        jobs.selectExpr("id", "variant_get(input, '$.width', 'int') AS width")
    """
    from pyspark.sql import functions

    parse: Any = functions.try_parse_json
    chosen = names or [name for name in _JSON if name in df.columns]
    return df.withColumns({name: parse(functions.col(name)) for name in chosen})
