"""Encrypted payloads, and a new key while jobs are in flight.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.encryption``.
"""

from __future__ import annotations

import asyncio
import os

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors
from queuert.codecs import EncryptionCodec, EncryptionKey, PayloadFormat, parse_keys

# A deployment sets this variable. A function is asked for the keys when they are first needed, so that the definitions
# can be imported without them.
os.environ.setdefault("PAYLOAD_KEYS", EncryptionKey.generate("2030-01").to_text())


def keys() -> list[EncryptionKey]:
    return parse_keys(os.environ["PAYLOAD_KEYS"])


def definitions() -> tuple[JobType[str, str], JobTypes]:
    """A module of definitions, as each program of a fleet imports it when it starts."""
    encryption = EncryptionCodec(keys)
    letter = JobType("letter", input=str, output=str, format=PayloadFormat(codecs=[encryption]))
    return letter, JobTypes(letter, required_codecs=[encryption])


async def start(text: str) -> str:
    """A producer that is started anew."""
    letter, job_types = definitions()
    async with AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types) as client:
        chain = await client.start_chain(letter, text)
    return chain.id


async def work(*ids: str) -> None:
    """A worker that is started anew."""
    letter, job_types = definitions()
    processors = Processors(job_types)

    @processors.handles(letter)
    async def answer(attempt: Attempt[str, str]) -> Outcome[str]:
        return f"re: {attempt.input}"

    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    async with client, InProcessWorker(client, processors):
        for id in ids:
            print(await (await client.get_chain(id, letter)).result(timeout=30))


async def main() -> None:
    first = await start("with the old key")
    new = EncryptionKey.generate("2030-02").to_text()

    # First everybody gets the new key, to read with, and then to write with.
    os.environ["PAYLOAD_KEYS"] += "," + new
    second = await start("with the old key still")
    os.environ["PAYLOAD_KEYS"] = ",".join([new, os.environ["PAYLOAD_KEYS"].partition(",")[0]])
    third = await start("with the new key")
    await work(first, second, third)

    # Whoever has no key sees which one is needed, and nothing of the letter.
    async with AsyncClient.from_url(os.environ["QUEUERT_URL"], JobTypes()) as stranger:
        for id in (first, second, third):
            print((await stranger.get_job(id)).input["queuert.codec"])


if __name__ == "__main__":
    asyncio.run(main())
