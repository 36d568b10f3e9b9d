"""Work that keeps a processor busy, in a process that is killed when it takes too long.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.processes``.
"""

from __future__ import annotations

import asyncio
import os

from examples.processes_work import busy, job_types, processors
from queuert import AsyncClient, InProcessWorker
from queuert.errors import JobFailedError


async def main() -> None:
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    async with client, InProcessWorker(client, processors, concurrency=2):
        quick, endless = await client.start_chain(busy, 1000), await client.start_chain(busy, -1)
        print(await quick.result(timeout=60))
        try:
            await endless.result(timeout=60)
        except JobFailedError:
            error = (await endless.refresh()).error
            print(f"the endless one has failed: {error.kind if error else None}")


if __name__ == "__main__":
    asyncio.run(main())
