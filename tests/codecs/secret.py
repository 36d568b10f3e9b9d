"""Formats and job types for tests of formats; handlers that run in processes import them too."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgpack
from pydantic import BaseModel

from queuert import Attempt, JobType, JobTypes, NewChain, Outcome
from queuert.codecs import EncryptionCodec, EncryptionKey, PayloadFormat, Serde, ZlibCodec

OLD_KEY = EncryptionKey("2030-01", b"o" * 32)
NEW_KEY = EncryptionKey("2030-02", b"n" * 32)
WORD = "Rumpelstilzchen"
"""What nobody may find in the store."""


class MsgpackSerde(Serde):
    """MessagePack, which has bytes."""

    name = "msgpack"

    def dumps(self, value: Any) -> bytes:
        data = msgpack.packb(value)
        assert isinstance(data, bytes)
        return data

    def loads(self, data: bytes) -> Any:
        return msgpack.unpackb(data)


class Patient(BaseModel):
    """A model with a bit of everything that JSON has no word for."""

    name: str
    scan: bytes = b""
    number: UUID | None = None
    born: datetime | None = None
    fee: Decimal = Decimal(0)


def keys() -> list[EncryptionKey]:
    """The keys, as a function of a module: it is sent by name."""
    return [NEW_KEY, OLD_KEY]


encryption = EncryptionCodec(keys)
SECRET = PayloadFormat(codecs=[ZlibCodec(), encryption])
BINARY = PayloadFormat(MsgpackSerde(), [encryption])

heal = JobType("heal", input=Patient, output=Patient, format=BINARY)
examine = JobType("examine", input=Patient, output=str, continues_with=heal, format=BINARY)
whisper = JobType("whisper", input=str, output=str, format=SECRET)
gather = JobType("gather", input=str, output=list[str], format=SECRET)
job_types = JobTypes(heal, examine, whisper, gather, required_codecs=[encryption])


def heal_in_a_process(attempt: Attempt[Patient, Patient]) -> Outcome[Patient]:
    """The patient, with more of everything."""
    return attempt.input.model_copy(update={"scan": attempt.input.scan * 2})


def examine_in_a_process(attempt: Attempt[Patient, str | Patient]) -> Outcome[str | Patient]:
    """Goes on, and keeps what it found."""
    return attempt.continue_with(heal, attempt.input, output=f"found {attempt.input.name}")


def gather_in_a_process(attempt: Attempt[str, list[str]]) -> Outcome[list[str]]:
    """Waits for what it starts."""
    if not attempt.blockers:
        return attempt.wait_for(NewChain(whisper, attempt.input), NewChain(whisper, attempt.input * 2))
    return attempt.outputs_of(whisper)
