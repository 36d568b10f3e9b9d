"""Formats: a serialiser and the codecs after it, and which others may be met when reading."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from queuert.codecs import envelope
from queuert.codecs.base import Codec, CodecError, Place, Serde
from queuert.errors import ConfigurationError

P = ParamSpec("P")
T = TypeVar("T")

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_NOTE = re.compile(r"[\x20-\x7e]{0,100}")
_JSON = "json"


class PayloadFormat:
    """How the inputs and outputs of a job type are stored: ``JobType(..., format=PayloadFormat(...))``.

    Share one object between job types. Limits hold for the payload and for what is stored of it, which encryption makes
    a third longer.

    To change the format while jobs are in flight, deploy first what reads both and writes the old one, then what reads
    both and writes the new one::

        new = PayloadFormat(codecs=[encryption])
        first = PayloadFormat(also_reads=[new])     # writes plain JSON, as before, and reads both

    Args:
        serde: turns values into bytes; by default the JSON of the job type's model.
        codecs: what these bytes go through, in this order. Without a serde and codecs the payload is plain JSON.
        also_reads: the formats of payloads that were written before, told apart by the names of their steps; by default
            plain JSON. With ``()`` plain JSON is refused, so that nobody can put it in the place of what is encrypted.

    Attributes:
        serde: as given.
        codecs: as given.
        writes_plain: whether payloads are written as plain JSON.
        reads_plain: whether plain JSON is read.

    Raises:
        ConfigurationError: a name is not allowed, or two formats to be read have the same steps.
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
                raise ConfigurationError(f"two formats to be read have the steps {', '.join(other._kinds)}")

    def __repr__(self) -> str:
        parts = [] if self.serde is None else [repr(self.serde)]
        if self.codecs:
            parts.append(f"codecs={list(self.codecs)!r}")
        return f"PayloadFormat({', '.join(parts)})"

    def sealed(self, data: bytes, *, job_type: str, field: str, max_bytes: int) -> str:
        """Serialised bytes as the JSON text that is stored.

        Raises:
            CodecError: a codec raised something.
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
        """The serialised bytes of an envelope, and the serialiser that reads them; None is JSON.

        Raises:
            CodecError: no format that is known wrote it, or a codec refuses it.
        """
        steps, data = envelope.parts(found)
        named = [step.partition(":") for step in steps]
        kinds = tuple(name for name, _, _ in named)
        reader = self._readers.get(kinds)
        if reader is None or reader.writes_plain:
            raise CodecError(f"it was written as {envelope.shown(found)}, which the job type's format does not read")
        for number in range(len(kinds) - 1, 0, -1):
            codec, step = reader.codecs[number - 1], envelope.shown_text(steps[number])
            place = Place(job_type, field, named[number][2], kinds[:number], max_bytes)
            data = _bytes(step, _guarded(step, codec.decode, data, place))
        return reader.serde, data


def _guarded(step: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a step does; what it raises says no more than it should."""
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
        raise ConfigurationError(f"serde is {type(serde).__name__}: a subclass of queuert.codecs.Serde")
    name = _checked_name(serde)
    if name == _JSON:
        raise ConfigurationError(f"the name {_JSON!r} of {type(serde).__name__} belongs to the JSON of the models")
    return name


def _checked_codec(codec: object) -> str:
    if not isinstance(codec, Codec):
        raise ConfigurationError(f"codecs hold {type(codec).__name__}: subclasses of queuert.codecs.Codec")
    return _checked_name(codec)


def _checked_name(one: Serde | Codec) -> str:
    name = getattr(one, "name", None)
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise ConfigurationError(f"the name of {type(one).__name__} must be 1 to 40 lower-case letters, digits and -")


def _checked_format(one: object) -> PayloadFormat:
    if not isinstance(one, PayloadFormat):
        raise ConfigurationError(f"also_reads holds {type(one).__name__}: PayloadFormat objects")
    return one


PLAIN = PayloadFormat()
"""Plain JSON, which is the default: to be named among ``also_reads`` beside other formats."""
