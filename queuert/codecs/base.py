"""What a serialiser and a codec are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from queuert.errors import QueuertError


class CodecError(QueuertError, ValueError):
    """A serialiser or codec cannot write or read a payload: raise it with a reason that does not repeat the payload.

    Callers see a ``PayloadError`` or ``PayloadDecodeError`` with this reason. Of any other exception they see the name
    of its class only.
    """


@dataclass(frozen=True, slots=True)
class Place:
    """Where a payload belongs.

    Attributes:
        job_type: the name of the job type.
        field: ``"input"`` or ``"output"``.
        note: what the codec's :attr:`Codec.note` was when the payload was written.
        before: the names of the steps before this one, the serialiser first.
        max_bytes: how many bytes a codec may release when it reads. Refuse what would be longer.
    """

    job_type: str
    field: str
    note: str
    before: tuple[str, ...]
    max_bytes: int


class Serde(ABC):
    """Turns values into bytes and back.

    Values are made of None, bool, int, float, str, bytes, list, and dict with str as keys. What JSON would write as
    text (times, UUIDs, decimals) comes as that text; bytes come as bytes. What ``loads`` returns is read by the model
    of the job type.

    It is called from several threads at once, and from the event loop: it must be quick. To be sent to other processes
    with its job type, it must be picklable.

    Attributes:
        name: stands beside each payload: lower-case letters, digits and ``-``. It must not change.
    """

    name: str

    @abstractmethod
    def dumps(self, value: Any) -> bytes:
        """The value as bytes."""

    @abstractmethod
    def loads(self, data: bytes) -> Any:
        """The value that bytes stand for. Whatever it raises, the payload counts as unreadable."""


class Codec(ABC):
    """Turns bytes into other bytes and back: compression, encryption.

    It is called from several threads at once, and from the event loop: it must be quick. To be sent to other processes
    with its job type, it must be picklable.

    Attributes:
        name: stands beside each payload: lower-case letters, digits and ``-``. It must not change.
    """

    name: str

    @property
    def note(self) -> str:
        """What stands beside each payload in plain text, after the name: the id of a key, a level. Empty for none."""
        return ""

    @abstractmethod
    def encode(self, data: bytes, place: Place) -> bytes:
        """The bytes as they are to be stored."""

    @abstractmethod
    def decode(self, data: bytes, place: Place) -> bytes:
        """What ``encode`` was given. Whatever it raises, the payload counts as unreadable."""
