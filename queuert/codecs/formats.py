"""Payload formats: a serialiser, the codecs after it, and the other formats that can be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from queuert import envelope
from queuert.codecs.base import Codec, Place, Serde
from queuert.errors import CodecError, ConfigurationError

P = ParamSpec("P")
T = TypeVar("T")

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_NOTE = re.compile(r"[\x20-\x7e]{0,100}")
_JSON = "json"


class PayloadFormat:
    """Says how the inputs and outputs of a job type are stored: ``JobType(..., format=PayloadFormat(...))``.

    Share one object between job types. Limits apply to the payload and to its stored text, which encryption makes a
    third longer.

    To change the format while jobs are in flight, first deploy a format that reads both and writes the old one, then
    one that reads both and writes the new one::

        new = PayloadFormat(codecs=[encryption])
        first = PayloadFormat(also_reads=[new])     # writes plain JSON, as before, and reads both

    Args:
        serde: turns values into bytes; by default the JSON of the job type's model.
        codecs: encode these bytes, in this order. Without a serde and codecs the payload is plain JSON.
        also_reads: the formats of payloads that were written before, distinguished by the names of their steps; by
            default plain JSON. With ``()`` plain JSON is refused, so that nobody can replace an encrypted payload by
            it.

    Attributes:
        serde: the serialiser; None for the JSON of the model.
        codecs: the codecs, in the order of encoding.
        writes_plain: whether payloads are written as plain JSON.
        reads_plain: whether plain JSON is read.

    Raises:
        ConfigurationError: a name is not allowed, or two of the formats have the same steps.
    """

    __slots__ = ("_kinds", "_readers", "codecs", "reads_plain", "serde", "writes_plain")

    def __init__(
        self,
        serde: Serde | None = None,
        codecs: Sequence[Codec] = (),
        *,
        also_reads: Sequence[PayloadFormat] | None = None,
    ) -> None:
        self.serde = serde
        self.codecs = tuple(codecs)
        self._kinds: tuple[str, ...] = (
            _JSON if serde is None else _checked_serde(serde),
            *map(_checked_codec, self.codecs),
        )
        self.writes_plain = self._kinds == (_JSON,)
        others = [] if also_reads is None else [_checked_format(one) for one in also_reads]
        self.reads_plain = self.writes_plain or also_reads is None or any(one.writes_plain for one in others)
        self._readers: dict[tuple[str, ...], PayloadFormat] = {self._kinds: self}
        for other in others:
            if self._readers.setdefault(other._kinds, other) is not other:
                raise ConfigurationError(
                    f"formats in also_reads must differ in their steps, got {', '.join(other._kinds)} twice"
                )

    def __repr__(self) -> str:
        parts = [] if self.serde is None else [repr(self.serde)]
        if self.codecs:
            parts.append(f"codecs={list(self.codecs)!r}")
        return f"PayloadFormat({', '.join(parts)})"

    def sealed(self, data: bytes, *, job_type: str, field: str, max_bytes: int) -> str:
        """Return serialised bytes as the JSON text that is stored.

        Raises:
            CodecError: a codec raised an error.
        """
        steps = [self._kinds[0]]
        for number, codec in enumerate(self.codecs, 1):
            name = self._kinds[number]
            note = _guarded(name, _note_of, codec)
            place = Place(job_type, field, note, self._kinds[:number], max_bytes)
            data = _bytes(name, _guarded(name, codec.encode, data, place))
            steps.append(f"{name}:{note}" if note else name)
        return envelope.written(steps, data)

    def opened(self, found: dict[str, Any], *, job_type: str, field: str, max_bytes: int) -> tuple[Serde | None, bytes]:
        """Return the serialiser of an envelope (None for JSON), and its serialised bytes.

        Raises:
            CodecError: no known format wrote it, or a codec refuses it.
        """
        steps, data = envelope.parts(found)
        named = [step.partition(":") for step in steps]
        kinds = tuple(name for name, _, _ in named)
        reader = self._readers.get(kinds)
        if reader is None or reader.writes_plain:
            raise CodecError(
                f"it was written as {envelope.shown(found)}, which the job type's format does not read: "
                "add that format to also_reads"
            )
        for number in range(len(kinds) - 1, 0, -1):
            codec, step = reader.codecs[number - 1], envelope.shown_text(steps[number])
            place = Place(job_type, field, named[number][2], kinds[:number], max_bytes)
            data = _bytes(step, _guarded(step, codec.decode, data, place))
        return reader.serde, data


def _guarded(step: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a step; replace its errors by a CodecError that does not reveal the payload."""
    try:
        return work(*args, **kwargs)
    except CodecError as error:
        raise CodecError(f"{step}: {error}") from None
    except Exception as error:
        raise CodecError(f"{step}: it raised {type(error).__name__}") from None


def _bytes(step: str, data: object) -> bytes:
    if not isinstance(data, bytes):
        raise CodecError(f"{step}: it returned {type(data).__name__}, not bytes")
    return data


def _note_of(codec: Codec) -> str:
    note: object = codec.note
    if isinstance(note, str) and _NOTE.fullmatch(note):
        return note
    raise CodecError("its note must be at most 100 printable ASCII characters")


def _checked_serde(serde: object) -> str:
    if not isinstance(serde, Serde):
        raise ConfigurationError(f"serde must be a queuert.codecs.Serde, got {type(serde).__name__}")
    name = _checked_name(serde)
    if name == _JSON:
        raise ConfigurationError(
            f"name of {type(serde).__name__} must not be {_JSON!r}, which is the JSON of the models: choose another one"
        )
    return name


def _checked_codec(codec: object) -> str:
    if not isinstance(codec, Codec):
        raise ConfigurationError(f"codecs must be queuert.codecs.Codec objects, got {type(codec).__name__}")
    return _checked_name(codec)


def _checked_name(one: Serde | Codec) -> str:
    name = getattr(one, "name", None)
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise ConfigurationError(f"name of {type(one).__name__} must be 1 to 40 lower-case letters, digits and -")


def _checked_format(one: object) -> PayloadFormat:
    if not isinstance(one, PayloadFormat):
        raise ConfigurationError(f"also_reads must contain PayloadFormat objects, got {type(one).__name__}")
    return one


PLAIN = PayloadFormat()
"""Plain JSON, the default format: add it to ``also_reads`` when you list other formats there."""
