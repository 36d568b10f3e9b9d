"""Classifies the columns of a DataFrame: settings of a job, its input, or fields of its input."""

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
    "priority": (lambda given: isinstance(given, _WHOLE), "an integer"),
    "schedule_at": (lambda given: isinstance(given, t.TimestampType), "a timestamp (with time zone)"),
    "blocked_by": (_is_strings, "an array of strings"),
}
"""The columns that are settings of a job; all others are its input."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a DataFrame by their meaning.

    Attributes:
        settings: the columns among ``id``, ``deduplication_key``, ``limit_key``, ``priority``, ``schedule_at`` and
            ``blocked_by`` that the DataFrame has.
        fields: the columns that are fields of the input; empty if there is a column ``input``.
        is_text: whether the column ``input`` is JSON text already.
    """

    settings: frozenset[str]
    fields: tuple[str, ...] = field(default=())
    is_text: bool = False


def find_columns(schema: t.StructType, job_type: JobType[Any, Any] | None) -> Columns:
    """Classify the columns, before anything is written.

    Raises:
        SparkColumnError: two columns have one name, a type has no JSON, the model has no field of that name, or the
            name is that of a setting but for upper and lower case.
    """
    names = schema.fieldNames()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SparkColumnError(f"names of columns must be unique, got {twice[0]!r} twice: rename one")
    settings = frozenset(name for name in names if name in _SETTINGS)
    for name in settings:
        fits, wanted = _SETTINGS[name]
        if not fits(schema[name].dataType):
            raise SparkColumnError(f"column {name!r} must be {wanted}, got {schema[name].dataType.simpleString()}")
    others = [name for name in names if name not in settings]
    _check_case(names, others, job_type)
    if INPUT in others:
        return _with_input(schema, settings, others)
    for name in others:
        check_type(schema[name].dataType, f"column {name!r}")
    _check_fields(others, settings, job_type)
    return Columns(settings, fields=tuple(others))


def _check_case(names: Sequence[str], others: Sequence[str], job_type: JobType[Any, Any] | None) -> None:
    """Refuse ``ID``, as databases and files in capitals have it: as a field of the input it would lose the ids."""
    known = _model_fields(job_type) or ()
    for name in others:
        meant = name.lower()
        if name != meant and name not in known and meant in (*_SETTINGS, INPUT):
            what = "the input" if meant == INPUT else "the setting"
            advice = f"drop it, as there is a column {meant!r} too" if meant in names else "rename it"
            raise SparkColumnError(
                f"column {name!r} must be named {meant!r}, {what} of a job: {advice}. If it is a field of the input, "
                "make one column of the fields, struct(...).alias('input')"
            )


def _with_input(schema: t.StructType, settings: frozenset[str], others: Sequence[str]) -> Columns:
    strangers = [name for name in others if name != INPUT]
    if strangers:
        raise SparkColumnError(
            f"columns beside 'input' must be among {', '.join(_SETTINGS)}, got {', '.join(map(repr, strangers))}"
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
            f"columns must be fields of the input, {', '.join(sorted(known))}, got {', '.join(map(repr, unknown))}"
        )
    meant = sorted(settings & known)
    if meant:
        raise SparkColumnError(
            f"{', '.join(map(repr, meant))} is a field of the input, and a setting of a job by that name: make one "
            "column of the fields, struct(...).alias('input')"
        )


def _model_fields(job_type: JobType[Any, Any] | None) -> frozenset[str] | None:
    """Return the names and aliases of the fields of a model that allows no others; None if unknown."""
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
    """Return the input type of a job type and its limits; any type and the usual limits without one."""
    if job_type is None:
        return Any, DEFAULT_LIMITS
    return job_type.input_annotation, job_type.limits


def check_type(given: t.DataType, what: str, depth: int = 0) -> None:
    """Check that a type has JSON of one meaning.

    Raises:
        SparkColumnError: it does not; the message says what to do.
    """
    if depth > _MAX_DEPTH:
        raise SparkColumnError(f"{what} must be nested at most {_MAX_DEPTH} levels deep")
    if isinstance(given, t.StructType):
        names = given.fieldNames()
        for twice in sorted({name for name in names if names.count(name) > 1})[:1]:
            raise SparkColumnError(f"names of fields of {what} must be unique, got {twice!r} twice: rename one")
        for one in given.fields:
            check_type(one.dataType, f"{what}.{one.name}", depth + 1)
    elif isinstance(given, t.ArrayType):
        check_type(given.elementType, f"{what}[]", depth + 1)
    elif isinstance(given, t.MapType):
        if not isinstance(given.keyType, _STRINGS):
            raise SparkColumnError(
                f"{what} must have keys of type string, as JSON has, got {given.keyType.simpleString()}: cast them"
            )
        check_type(given.valueType, f"{what}{{}}", depth + 1)
    elif isinstance(given, t.TimestampNTZType):
        raise SparkColumnError(f"{what} must be a timestamp with a time zone: cast it to timestamp")
    elif not isinstance(given, (*_PLAIN, t.TimestampType)):
        raise SparkColumnError(
            f"{what} must be of a type that JSON has, got {given.simpleString()}: cast it, or use to_json"
        )
