"""The interfaces of serialisers and codecs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Place:
    """The context of a payload that a codec encodes or decodes.

    Attributes:
        job_type: the name of the job type.
        field: ``"input"`` or ``"output"``.
        note: the codec's :attr:`Codec.note` at the time when the payload was written.
        before: the names of the steps before this one, the serialiser first.
        max_bytes: how many bytes ``decode`` may return at most. Raise if there would be more.
    """

    job_type: str
    field: str
    note: str
    before: tuple[str, ...]
    max_bytes: int


class Serde(ABC):
    """Serialises values as bytes.

    Values consist of None, bool, int, float, str, bytes, list, and dict with str as keys. Values that JSON writes as
    text (times, UUIDs, decimals) are passed as that text, bytes as bytes. The model of the job type validates what
    ``loads`` returns.

    It is called from several threads at once, and from the event loop, so it must be fast. It must be picklable if its
    job type is sent to other processes.

    Attributes:
        name: is stored with each payload: lower-case letters, digits and ``-``. It must never change.
    """

    name: str

    @abstractmethod
    def dumps(self, value: Any) -> bytes:
        """Return the value as bytes."""

    @abstractmethod
    def loads(self, data: bytes) -> Any:
        """Return the value from bytes. Whatever it raises, the payload counts as unreadable."""


class Codec(ABC):
    """Encodes bytes as other bytes: compression, encryption.

    It is called from several threads at once, and from the event loop, so it must be fast. It must be picklable if its
    job type is sent to other processes.

    Attributes:
        name: is stored with each payload: lower-case letters, digits and ``-``. It must never change.
    """

    name: str

    @property
    def note(self) -> str:
        """A text that is stored with each payload, in plain text: the id of a key, a level. Empty if there is none."""
        return ""

    @abstractmethod
    def encode(self, data: bytes, place: Place) -> bytes:
        """Return the bytes as they are to be stored."""

    @abstractmethod
    def decode(self, data: bytes, place: Place) -> bytes:
        """Return the bytes that ``encode`` received. Whatever it raises, the payload counts as unreadable."""
