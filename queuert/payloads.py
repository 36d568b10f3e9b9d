"""Encodes payloads as JSON text and decodes them, with errors that name the path of the problem.

The model of an input or output turns it into JSON. Values that a store could refuse, silently change or never read back
are refused here, before anything is written: NUL characters, lone surrogates, NaN, very long numbers, deep nesting, and
large payloads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaSerializer, SchemaValidator, to_json
from pydantic_core.core_schema import ErrorType

from queuert import envelope
from queuert._json_validation import (
    DOUBLE_CHARS,
    FOLD,
    LARGE_FLOAT,
    MAX_EXPANSION,
    deeper_than,
    find_fault,
    number_fault,
    step,
    with_points,
    written_size,
)
from queuert._like_members import find_like_members
from queuert._read_back import Fault, find_difference, find_lost_order, find_secret, is_equal
from queuert._type_schemas import Declared, class_to_compare
from queuert.errors import CodecError, ConfigurationError, DefinitionError, PayloadDecodeError, PayloadError
from queuert.texts import safe_text

if TYPE_CHECKING:
    from typing_extensions import TypeForm

# What a number or a key turns into when JSON has no word for it.
_ODD_NUMBER = rb'0{%d}|e[+-]000|NaN|nfinity|"None"|"nan"|inf"'
# All that may be wrong with a short text shows by one of these letters: in NaN, Infinity, None, null, an exponent, an
# escape, or the mark of an envelope. Nesting and endless numbers are long.
_INNOCENT = bytes(set(range(256)) - set(b"EeNn\\"))
# jsonb adds a space after each comma and colon, so that what was stored comes back longer than it went in.
_READ_FACTOR = 4
# The messages of all other kinds of error may repeat the value, or be the words of a validator that does.
_DISCREET = frozenset(get_args(ErrorType)) - {
    "assertion_error",
    "bytes_invalid_encoding",
    "date_from_datetime_parsing",
    "date_parsing",
    "datetime_from_date_parsing",
    "datetime_object_invalid",
    "datetime_parsing",
    "get_attribute_error",
    "iteration_error",
    "mapping_type",
    "time_delta_parsing",
    "time_parsing",
    "timezone_offset",
    "union_tag_invalid",
    "url_parsing",
    "url_syntax_violation",
    "uuid_parsing",
    "value_error",
}


@dataclass(frozen=True, slots=True)
class PayloadLimits:
    """Limits of a payload's size, depth and digits. The defaults are generous, and far from the limits of any store.

    Keep large data elsewhere and pass its address. Raising a limit is safe at any time; after lowering one, rows that
    were written before may be refused when they are read.

    Attributes:
        max_bytes: size of the JSON text in UTF-8, 1 MiB by default, at most 64 MiB. Floats count as Postgres writes
            them, in full: ``1e+300`` is 301 bytes.
        max_depth: lists and objects inside each other, 64 by default, at most 128. A bare number has depth 0.
        max_digits: digits of an integer or a ``Decimal``, written out in full, 300 by default, at most 4,000. Every
            finite ``float`` is allowed.

    Raises:
        ConfigurationError: a limit is out of these ranges.
    """

    max_bytes: int = 1024 * 1024
    max_depth: int = 64
    max_digits: int = 300

    def __post_init__(self) -> None:
        for name, most in (("max_bytes", 64 * 1024 * 1024), ("max_depth", 128), ("max_digits", 4_000)):
            if not 1 <= getattr(self, name) <= most:
                raise ConfigurationError(f"{name} must be between 1 and {most:,}, got {getattr(self, name)}")

    @property
    def max_read_bytes(self) -> int:
        """The bytes that a payload may have when it is read: more than ``max_bytes``, as stores may reformat JSON."""
        return self.max_bytes * _READ_FACTOR


DEFAULT_LIMITS = PayloadLimits()


class PayloadCodec:
    """Encodes values of one type as JSON text and decodes them, within limits.

    ``annotation`` is whatever a pydantic ``TypeAdapter`` takes; ``job_type`` and ``field`` appear in errors only::

        codec = PayloadCodec(list[int], job_type="sum", field="input")
        codec.encode([1, 2])        # '[1,2]'
        codec.decode("[1, 2]")      # [1, 2]

    With ``read_as_same`` false, what is read back need not be equal: whoever reads it has another type for it.

    Field names are written as the model's configuration says; both names and aliases are read. The subclass
    :class:`queuert.codecs.payloads.FormattedPayloadCodec` stores payloads in other formats.

    Raises:
        DefinitionError: pydantic has no schema for the annotation.
    """

    _discreet = False
    """Whether errors of encoding hide what the model says of the value, as those of decoding always do."""
    _keeps_order = False
    """Whether the store keeps the order of keys, as it does not in plain JSON."""

    def __init__(
        self,
        annotation: TypeForm[object],
        *,
        job_type: str,
        field: str,
        limits: PayloadLimits = DEFAULT_LIMITS,
        read_as_same: bool = True,
    ) -> None:
        self._read_as_same = read_as_same
        self.job_type = job_type
        self.field = field
        self.limits = limits
        self._adapter = self._build(annotation)
        self._short = min(limits.max_depth, limits.max_digits, limits.max_bytes // MAX_EXPANSION)
        self._endless = "0" * (limits.max_digits + 1)
        self._odd_number = re.compile(_ODD_NUMBER % (limits.max_digits + 1))
        self._endless_stored = "0" * (max(limits.max_digits, DOUBLE_CHARS) + 1)

    def warnings(self) -> list[str]:
        """Say which unions have members that are read back as another one, unless the type is not complete yet."""
        if not self._adapter.pydantic_complete:
            return []
        found = find_like_members(self._adapter.core_schema)
        return [self._warning(path, one.__name__, other.__name__) for path, other, one in found]

    def _warning(self, path: str, name: str, other: str) -> str:
        kind = name.lower()
        return (
            f"{self.field}{path} of job type {self.job_type!r}: an instance of {name} would be read back as one "
            f"of {other}, and is refused: give each member of the union a field such as kind: Literal[{kind!r}] = "
            f"{kind!r}, and the union a discriminator: Annotated[{other} | {name}, Field(discriminator='kind')]"
        )

    def encode(self, value: object) -> str:
        """Return the value as JSON text, valid for the type and for every store.

        Raises:
            PayloadError: it is not valid for the type, or exceeds the limits. ``path`` and ``reason`` say where and
                why; nothing was written.
        """
        text = self._json(value)
        if envelope.MARK in text and envelope.found(text) is not None:
            raise self._error(PayloadError, (), f"the key {envelope.MARK} is reserved: use another one")
        return text

    def _json(self, value: object) -> str:
        valid, stage = value, ""
        try:
            valid = self._validator.validate_python(value, by_alias=True, by_name=True)
            data = self._serializer.to_json(valid, round_trip=True, warnings=False)
            text = data.decode()
            if (len(data) > self._short or data.translate(None, _INNOCENT)) and not self._is_plain(data, text):
                self._inspect(valid, data)
            # Models change after they were checked, and serialisers are not always the inverse of validators. What no
            # worker could read must not be written.
            stage = "would not be read back: "
            read = self._validator.validate_json(data, by_alias=True, by_name=True)
            compared = self._class_to_compare
            if compared is not object and (type(valid) is not compared or valid.__dict__ != read.__dict__):
                self._check_read_back(valid, read)
            if compared is None and LARGE_FLOAT in text and self._declared.has_open_numbers:
                return with_points(text, data)
            return text
        except (PayloadError, DefinitionError):
            raise
        except ValidationError as error:
            raise self._misfit(PayloadError, error, stage) from None
        except Exception as error:
            raise self._broken(valid, error) from None

    def decode(self, text: str | bytes) -> Any:
        """Return the value from stored JSON text.

        Raises:
            PayloadDecodeError: the text is not JSON, exceeds the limits, is not valid for the type, or was written in a
                format or with a key that is not known here. The error names the path, never the value.
        """
        try:
            return self._read(text.encode() if isinstance(text, str) else text)
        except ValidationError as error:
            raise self._misfit(PayloadDecodeError, error) from None
        except CodecError as error:
            raise self._error(PayloadDecodeError, (), str(error)) from None
        except (DefinitionError, PayloadDecodeError):
            raise
        except Exception as error:
            # Whatever a row or a model's validator does, the worker sees one kind of error.
            raise self._error(PayloadDecodeError, (), f"decoding it raised {type(error).__name__}") from None

    def shown(self, stored: Any) -> Any:
        """Return stored JSON for display: decoded by its format if that can read it, and not validated."""
        return stored

    def _read(self, data: bytes) -> Any:
        """Return the value of the stored bytes; the caller turns errors into a PayloadDecodeError."""
        if len(data) <= self._short and not data.translate(None, _INNOCENT):
            return self._validator.validate_json(data, by_alias=True, by_name=True)
        if envelope.MARK_BYTES in data and (found := envelope.found(data)) is not None:
            raise CodecError(f"it was written as {envelope.shown(found)}, but the job type has no format that reads it")
        return self._read_json(data)

    def _read_json(self, data: bytes) -> Any:
        reason = self._stored_fault(data)
        if reason is not None:
            raise self._error(PayloadDecodeError, (), reason)
        return self._validator.validate_json(data, by_alias=True, by_name=True)

    # Construction: models that refer to later ones are completed at first use.

    def _build(self, annotation: Any) -> TypeAdapter[Any]:
        if isinstance(annotation, str):
            raise DefinitionError(
                f"{self.field} of job type {self.job_type!r} must be a type, got its name as a string"
            )
        try:
            return TypeAdapter(annotation)
        except Exception as error:
            reason = f"{self.field} of job type {self.job_type!r}: pydantic has no schema for {annotation!r}: {error}"
            raise DefinitionError(reason) from error

    @cached_property
    def _completed(self) -> TypeAdapter[Any]:
        try:
            self._adapter.rebuild(raise_errors=True)
        except Exception as error:
            raise DefinitionError(f"{self.field} of job type {self.job_type!r}: {error}") from error
        return self._adapter

    @cached_property
    def _class_to_compare(self) -> type | None:
        return class_to_compare(self._completed.core_schema)

    @cached_property
    def _declared(self) -> Declared:
        return Declared(self._completed.core_schema)

    @cached_property
    def _serializer(self) -> SchemaSerializer:
        serializer = self._completed.serializer
        assert isinstance(serializer, SchemaSerializer)
        return serializer

    @cached_property
    def _validator(self) -> SchemaValidator:
        validator = self._completed.validator
        assert isinstance(validator, SchemaValidator)
        return validator

    # Encoding

    def _is_plain(self, data: bytes, text: str) -> bool:
        """Whether a quick search of the text finds nothing that needs inspection, as for nearly all payloads."""
        folded = data.translate(FOLD).decode("latin-1")  # searching a str is several times as fast as searching bytes
        return not (
            len(data) * MAX_EXPANSION > self.limits.max_bytes
            or folded.count("[") > self.limits.max_depth
            or self._endless in folded
            or "e+000" in folded
            or "e-000" in folded
            or "null" in text
            or "\\u0000" in text
            or "NaN" in text
            or "nfinity" in text
            or '"None"' in text
            or '"nan"' in text
            or 'inf"' in text
        )

    def _inspect(self, valid: object, data: bytes) -> None:
        """Check a payload in full. Most that the quick search could not clear are valid."""
        limits = self.limits
        size = written_size(data, limits.max_bytes)
        if size > limits.max_bytes:
            raise self._error(PayloadError, (), f"must be at most {limits.max_bytes} bytes of JSON, got {size}")
        # A model writes NaN as null, a Decimal as text and any key as text. Before that, each is still what it was.
        plain = self._serializer.to_python(valid, round_trip=True, warnings=False)
        seen = to_json(plain, inf_nan_mode="constants", bytes_mode="base64", serialize_unknown=True)
        if self._odd_number.search(seen.translate(FOLD)):
            self._search(plain, numbers_only=True)
        if (
            self._endless in data.translate(FOLD).decode("latin-1")
            or b"\\u0000" in data
            or deeper_than(data, limits.max_depth)
        ):
            self._search(self._serializer.to_python(valid, mode="json", round_trip=True, warnings=False))

    def _search(self, value: object, *, numbers_only: bool = False) -> None:
        fault = self._fault(value, numbers_only=numbers_only)
        if fault is not None:
            raise fault

    def _fault(
        self, value: object, *, numbers_only: bool = False, kind: type[PayloadError] = PayloadError
    ) -> PayloadError | None:
        limits = self.limits
        fault = find_fault(value, max_depth=limits.max_depth, max_digits=limits.max_digits, numbers_only=numbers_only)
        return None if fault is None else self._error(kind, *fault)

    def _broken(self, value: object, error: Exception) -> PayloadError:
        """Return the error for a value that pydantic could not serialise, with its path if a search finds it."""
        return self._fault(value) or self._error(PayloadError, (), self._reported(error))

    def _reported(self, error: Exception) -> str:
        name = type(error).__name__
        return f"encoding it raised {name}" if self._discreet else safe_text(f"{name}: {error}", 500)

    def _check_read_back(self, given: object, read: object) -> None:
        """Raise an error unless what is read back is what was given, in all that its model stores.

        Raises:
            PayloadError: a worker would get another value than the caller gave, without any notice.
        """
        fault: Fault | None = None
        if not self._read_as_same:
            fault = find_secret(given, read)
        elif not is_equal(given, read):
            fault = find_difference(given, read, self._declared)
        if fault is None and self._read_as_same and self._declared.has_ordered_dicts and not self._keeps_order:
            fault = find_lost_order(read)
        if fault is not None:
            raise self._error(PayloadError, fault[0], f"would change on the way: {fault[1]}")

    # Decoding

    def _stored_fault(self, data: bytes) -> str | None:
        limits = self.limits
        if len(data) > limits.max_read_bytes:
            return f"must be at most {limits.max_read_bytes} bytes of JSON when read, got {len(data)}"
        folded = data.translate(FOLD).decode("latin-1")
        if folded.count("[") > limits.max_depth and deeper_than(data, limits.max_depth):
            return f"must not be nested deeper than {limits.max_depth}"
        if (
            self._endless_stored in folded
            or "0e000" in folded
            or "0e+000" in folded
            or "0e-000" in folded
            or "NaN" in folded
            or "nfinity" in folded
        ):
            return number_fault(data, limits.max_digits)
        return None

    # Errors

    def _misfit(self, kind: type[PayloadError], error: ValidationError, stage: str = "") -> PayloadError:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        first = found[0]
        reported = first["type"] in _DISCREET or (kind is PayloadError and not self._discreet)
        reason = first["msg"] if reported else "the model does not allow the value"
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return self._error(kind, first["loc"], f"{stage}{safe_text(reason, 500)} [{first['type']}]{more}")

    def _error(self, kind: type[PayloadError], keys: tuple[object, ...], reason: str) -> PayloadError:
        path = self.field + "".join(map(step, keys))
        return kind(job_type=self.job_type, field=self.field, path=safe_text(path, 500), reason=reason)
