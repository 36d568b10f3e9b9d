"""Payloads in other formats than plain JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import to_json

from queuert import envelope
from queuert.codecs.base import Serde
from queuert.codecs.formats import PayloadFormat
from queuert.codecs.values import UnfitValueError, holds_bytes, native
from queuert.errors import CodecError, DefinitionError, PayloadDecodeError, PayloadError
from queuert.payloads import PayloadCodec, PayloadLimits

if TYPE_CHECKING:
    from typing_extensions import TypeForm


def payload_codec(
    annotation: TypeForm[object],
    *,
    job_type: str,
    field: str,
    limits: PayloadLimits,
    format: PayloadFormat | None,
    read_as_same: bool = True,
) -> PayloadCodec:
    """Return the codec that encodes values of a type as the JSON text that is stored, and decodes them.

    Raises:
        DefinitionError: pydantic has no schema for the annotation, or ``format`` is not a ``PayloadFormat``.
    """
    if format is None:
        return PayloadCodec(annotation, job_type=job_type, field=field, limits=limits, read_as_same=read_as_same)
    if not isinstance(format, PayloadFormat):
        raise DefinitionError(f"format of job type {job_type!r} must be a PayloadFormat, got {type(format).__name__}")
    return FormattedPayloadCodec(
        annotation, job_type=job_type, field=field, limits=limits, format=format, read_as_same=read_as_same
    )


class FormattedPayloadCodec(PayloadCodec):
    """Encodes values of one type with a format other than plain JSON, as JSON text, and decodes them.

    Values follow the rules of plain JSON, so that a format can be removed again, except that a serde may receive bytes.
    If there are codecs, errors do not repeat what models say of a value.
    """

    def __init__(
        self,
        annotation: TypeForm[object],
        *,
        job_type: str,
        field: str,
        limits: PayloadLimits,
        format: PayloadFormat,
        read_as_same: bool = True,
    ) -> None:
        super().__init__(annotation, job_type=job_type, field=field, limits=limits, read_as_same=read_as_same)
        self.format = format
        self._discreet = bool(format.codecs)
        self._keeps_order = not format.writes_plain

    # Encoding

    def encode(self, value: object) -> str:
        """Return the value as JSON text: an envelope with the encoded bytes.

        Raises:
            PayloadError: it is not valid for the type, exceeds the limits, or the format cannot encode it; nothing was
                written.
        """
        if self.format.writes_plain:
            return super().encode(value)
        data = self._json(value).encode() if self.format.serde is None else self._dumped(value, self.format.serde)
        try:
            text = self.format.sealed(
                data, job_type=self.job_type, field=self.field, max_bytes=self.limits.max_read_bytes
            )
        except CodecError as error:
            raise self._error(PayloadError, (), str(error)) from None
        if len(text) > self.limits.max_bytes:
            raise self._error(
                PayloadError, (), f"must be at most {self.limits.max_bytes} bytes as stored, got {len(text)}"
            )
        return text

    def _dumped(self, value: object, serde: Serde) -> bytes:
        stage = ""
        try:
            valid = self._validator.validate_python(value, by_alias=True, by_name=True)
            plain = self._serializer.to_python(valid, round_trip=True, warnings=False)
            self._search(plain, numbers_only=True)
            data = serde.dumps(native(plain))
            if len(data) > self.limits.max_bytes:
                raise self._error(PayloadError, (), f"must be at most {self.limits.max_bytes} bytes, got {len(data)}")
            stage = "would not be read back: "
            read = self._loaded(data, serde)
            self._check_read_back(valid, read)
            return data
        except PayloadDecodeError as error:
            raise PayloadError(
                job_type=self.job_type, field=self.field, path=error.path, reason=stage + error.reason
            ) from None
        except (PayloadError, DefinitionError):
            raise
        except UnfitValueError as error:
            raise self._error(PayloadError, error.keys, error.reason) from None
        except ValidationError as error:
            raise self._misfit(PayloadError, error, stage) from None
        except Exception as error:
            raise self._error(PayloadError, (), stage + self._reported(error)) from None

    # Decoding

    def shown(self, stored: Any) -> Any:
        """Return stored JSON for display: decoded by its format if that can read it, and not validated."""
        if not envelope.is_envelope(stored):
            return stored
        try:
            serde, data = self._opened(stored)
            return json.loads(data) if serde is None else serde.loads(data)
        except Exception:
            return stored

    def _read(self, data: bytes) -> Any:
        most = self.limits.max_read_bytes
        if len(data) > most:
            raise CodecError(f"must be at most {most} bytes of JSON when read, got {len(data)}")
        found = envelope.found(data) if envelope.MARK_BYTES in data else None
        if found is not None:
            serde, inner = self._opened(found)
            return self._read_json(inner) if serde is None else self._loaded(inner, serde)
        if not self.format.reads_plain:
            raise CodecError("it is plain JSON, which the job type's format does not read: add PLAIN to also_reads")
        return self._read_json(data)

    def _opened(self, found: dict[str, Any]) -> tuple[Serde | None, bytes]:
        return self.format.opened(found, job_type=self.job_type, field=self.field, max_bytes=self.limits.max_read_bytes)

    def _loaded(self, data: bytes, serde: Serde) -> Any:
        value = serde.loads(data)
        fault = self._fault(value, numbers_only=True, kind=PayloadDecodeError)
        if fault is not None:
            raise fault
        # Only the rules for JSON let a strict model read a time from text; but JSON has no bytes.
        if holds_bytes(value):
            return self._validator.validate_python(value, by_alias=True, by_name=True)
        return self._validator.validate_json(to_json(value), by_alias=True, by_name=True)
