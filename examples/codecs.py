"""Payloads in MessagePack, which has bytes, and compressed; plain JSON that was stored before stays readable.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.codecs``.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

import msgpack

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors
from queuert.codecs import PayloadFormat, Serde, ZlibCodec


class MsgpackSerde(Serde):
    name = "msgpack"

    def dumps(self, value: Any) -> bytes:
        return bytes(msgpack.packb(value))

    def loads(self, data: bytes) -> Any:
        return msgpack.unpackb(data)


@dataclass
class Picture:
    title: str
    pixels: bytes


compact = PayloadFormat(MsgpackSerde(), [ZlibCodec()])
negative = JobType("negative", input=Picture, output=Picture, format=compact)
length = JobType("length", input=str, output=int, format=compact)
job_types = JobTypes(negative, length)
processors = Processors(job_types)

# What a program of the time before the format was introduced has: the same name, and plain JSON.
length_before = JobType("length", input=str, output=int)


@processors.handles(negative)
async def invert(attempt: Attempt[Picture, Picture]) -> Outcome[Picture]:
    picture = attempt.input
    return Picture(title=f"not {picture.title}", pixels=bytes(255 - one for one in picture.pixels))


@processors.handles(length)
async def measure(attempt: Attempt[str, int]) -> Outcome[int]:
    return len(attempt.input)


async def main() -> None:
    url = os.environ["QUEUERT_URL"]
    async with AsyncClient.from_url(url, JobTypes(length_before)) as before:
        old = await before.start_chain(length_before, "written as plain JSON")

    async with AsyncClient.from_url(url, job_types) as client, InProcessWorker(client, processors):
        chain = await client.start_chain(negative, Picture(title="white", pixels=b"\xff" * 1_000))
        picture = await chain.result(timeout=30)
        print(picture.title, picture.pixels[:3])
        print(await (await client.get_chain(old.id, length)).result(timeout=30))

    # Whoever lacks the format sees which steps lead back to the payload.
    async with AsyncClient.from_url(url, JobTypes()) as stranger:
        stored = (await stranger.get_job(chain.id)).input
        print(stored["queuert.codec"], len(stored["queuert.payload"]) < 100)


if __name__ == "__main__":
    asyncio.run(main())
