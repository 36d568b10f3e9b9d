"""A job waits for children of its own type, which wait for children of theirs: how large is a tree of folders?

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.recursive_children``.
"""

from __future__ import annotations

import asyncio
import os

from queuert import AsyncChain, AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, NewChain, Outcome, Processors
from queuert.chain_trees import ChainTree

FOLDERS = {"/": ["a.txt", "/docs", "/src"], "/docs": ["b.txt"], "/src": ["c.txt", "/src/lib"], "/src/lib": ["d.txt"]}

folder = JobType("folder", input=str, output=int, blockers=("folder", ...))
job_types = JobTypes(folder)
processors = Processors(job_types)


@processors.handles(folder)
async def measure(attempt: Attempt[str, int]) -> Outcome[int]:
    folders = [name for name in FOLDERS[attempt.input] if name in FOLDERS]
    if folders and not attempt.blockers:
        return attempt.wait_for(*(NewChain(folder, path) for path in folders))
    return len(FOLDERS[attempt.input]) - len(folders) + sum(attempt.outputs_of(folder))


def show(tree: ChainTree[AsyncChain[int]], indent: str = "") -> None:
    print(f"{indent}{tree.chain.input}: {tree.chain.output}")
    for below in tree.blockers:
        show(below, indent + "  ")


async def main() -> None:
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    async with client, InProcessWorker(client, processors):
        chain = await client.start_chain(folder, "/")
        print(await chain.result(timeout=30), "files")
        show(await chain.tree())


if __name__ == "__main__":
    asyncio.run(main())
