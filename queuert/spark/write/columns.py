"""Which columns of a DataFrame are what: settings of a job, its input, or fields of its input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pyspark.sql import types as t

from queuert.job_types import JobType
from queuert.payloads import DEFAULT_LIMITS, PayloadLimits
from queuert.spark.errors import SparkColumnError

INPUT = "input"

_STRINGS = (t.StringType, t.CharType, t.VarcharType)
_WHOLE = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_PLAIN = (*_STRINGS, *_WHOLE, t.NullType, t.BooleanType, t.FloatType, t.DoubleType, t.DecimalType, t.DateType)
_MAX_DEPTH = 60


def _is_strings(given: t.DataType) -> bool:
    return isinstance(given, t.ArrayType) and isinstance(given.elementType, _STRINGS)


_SETTINGS: dict[str, tuple[Callable[[t.DataType], bool], str]] = {
    "id": (lambda given: isinstance(given, _STRINGS), "a string"),
    "deduplication_key": (lambda given: isinstance(given, _STRINGS), "a string"),
    "limit_key": (lambda given: isinstance(given, _STRINGS), "a string"),
    "priority": (lambda given: isinstance(given, _WHOLE), "a whole number"),
    "schedule_at": (lambda given: isinstance(given, t.TimestampType), "a timestamp (with time zone)"),
    "blocked_by": (_is_strings, "an array of strings"),
}
"""The columns that say how a job is started; all others are its input."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a DataFrame by what they are.

    Attributes:
        settings: those among ``id``, ``deduplication_key``, ``limit_key``, ``priority``, ``schedule_at`` and
            ``blocked_by`` that are there.
        fields: the columns that are fields of the input; empty where there is a column ``input``.
        is_text: whether the column ``input`` is JSON text already.
    """

    settings: frozenset[str]
    fields: tuple[str, ...] = field(default=())
    is_text: bool = False


def find_columns(schema: t.StructType, job_type: JobType[Any, Any] | None) -> Columns:
    """Tell the columns apart, before anything is written.

    Raises:
        SparkColumnError: there are two of one name, one is of a type that has no JSON, or no field of the model is
            called so.
    """
    names = schema.fieldNames()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SparkColumnError(f"two columns are called {twice[0]!r}: rename one")
    settings = frozenset(name for name in names if name in _SETTINGS)
    for name in settings:
        fits, wanted = _SETTINGS[name]
        if not fits(schema[name].dataType):
            raise SparkColumnError(f"column {name!r} is {schema[name].dataType.simpleString()}: {wanted}")
    others = [name for name in names if name not in settings]
    if INPUT in others:
        return _with_input(schema, settings, others)
    for name in others:
        check_type(schema[name].dataType, f"column {name!r}")
    _check_fields(others, settings, job_type)
    return Columns(settings, fields=tuple(others))


def _with_input(schema: t.StructType, settings: frozenset[str], others: Sequence[str]) -> Columns:
    strangers = [name for name in others if name != INPUT]
    if strangers:
        raise SparkColumnError(
            f"beside a column 'input' there may be {', '.join(_SETTINGS)}, and not {', '.join(map(repr, strangers))}"
        )
    given = schema[INPUT].dataType
    check_type(given, "column 'input'")
    return Columns(settings, is_text=isinstance(given, _STRINGS))


def _check_fields(names: Sequence[str], settings: frozenset[str], job_type: JobType[Any, Any] | None) -> None:
    known = _model_fields(job_type)
    if known is None:
        return
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SparkColumnError(
            f"the input has no field {', '.join(map(repr, unknown))}; its fields: {', '.join(sorted(known))}"
        )
    meant = sorted(settings & known)
    if meant:
        raise SparkColumnError(
            f"{', '.join(map(repr, meant))} is a field of the input, and a setting of a job by that name: make one "
            "column of the fields, struct(...).alias('input')"
        )


def _model_fields(job_type: JobType[Any, Any] | None) -> frozenset[str] | None:
    """The names and aliases of the fields of a model that allows no others; None where nothing is known of them."""
    model, _ = declared_input(job_type)
    if not (isinstance(model, type) and issubclass(model, BaseModel)) or model.model_config.get("extra") == "allow":
        return None
    names: set[str] = set()
    for name, info in model.model_fields.items():
        if info.validation_alias is not None and not isinstance(info.validation_alias, str):
            return None
        names |= {name, *filter(None, (info.alias, info.validation_alias))}
    return frozenset(names)


def declared_input(job_type: JobType[Any, Any] | None) -> tuple[Any, PayloadLimits]:
    """What a job type declares of its input, as it tells whoever pickles it: the type, and the limits."""
    if job_type is None:
        return Any, DEFAULT_LIMITS
    _, (_, options) = job_type.__reduce__()
    return options["input"], options["limits"]


def check_type(given: t.DataType, what: str, depth: int = 0) -> None:
    """Refuse types that have no JSON of one meaning.

    Raises:
        SparkColumnError: the type is one; the message says what to do.
    """
    if depth > _MAX_DEPTH:
        raise SparkColumnError(f"{what} is nested deeper than {_MAX_DEPTH}")
    if isinstance(given, t.StructType):
        names = given.fieldNames()
        for twice in sorted({name for name in names if names.count(name) > 1})[:1]:
            raise SparkColumnError(f"{what} has two fields that are called {twice!r}: rename one")
        for one in given.fields:
            check_type(one.dataType, f"{what}.{one.name}", depth + 1)
    elif isinstance(given, t.ArrayType):
        check_type(given.elementType, f"{what}[]", depth + 1)
    elif isinstance(given, t.MapType):
        if not isinstance(given.keyType, _STRINGS):
            raise SparkColumnError(f"{what} has keys of {given.keyType.simpleString()}: JSON has strings; cast them")
        check_type(given.valueType, f"{what}{{}}", depth + 1)
    elif isinstance(given, t.TimestampNTZType):
        raise SparkColumnError(f"{what} has no time zone, so it is no moment: cast it to timestamp")
    elif not isinstance(given, (*_PLAIN, t.TimestampType)):
        raise SparkColumnError(f"{what} is {given.simpleString()}, which has no JSON: cast it, or use to_json")
