"""Chains over HTTP: an application of FastAPI with the queue's own routes mounted in it.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.http_api``. The requests are made
in the same process; ``uvicorn examples.http_api:app`` would serve them.
"""

from __future__ import annotations

import asyncio
import os
from uuid import uuid4

import httpx
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import Request

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors
from queuert.web import NO_ACCESS, Access, WebApp


class Text(BaseModel):
    words: list[str]


count = JobType("count_given_words", input=Text, output=int)
job_types = JobTypes(count)
processors = Processors(job_types)


@processors.handles(count)
async def count_words(attempt: Attempt[Text, int]) -> Outcome[int]:
    return len(attempt.input.words)


USERS = {"ada": Access(["start", "read", "read_payloads"], principal="ada"), "bob": Access(["read"], principal="bob")}


def access(request: Request) -> Access:
    return USERS.get(request.headers.get("x-user", ""), NO_ACCESS)  # your own sessions or tokens say who it is


client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
app = FastAPI()
app.mount("/queue", WebApp(client, access=access))


async def main() -> None:
    async with client, InProcessWorker(client, processors), httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://example.test", headers={"x-user": "ada"}
    ) as web:  # fmt: skip
        key = {"Idempotency-Key": str(uuid4())}
        body = {"type": "count_given_words", "input": {"words": ["at", "least", "once"]}}
        started = await web.post("/queue/chains", json=body, headers=key)
        print(started.status_code, "started")
        repeated = await web.post("/queue/chains", json=body, headers=key)
        print(repeated.status_code, "the same chain:", repeated.json()["id"] == started.json()["id"])
        result = await web.get(started.json()["links"]["result"], params={"wait": 30})
        print(result.status_code, "output:", result.json()["output"])
        wrong = await web.post("/queue/chains", json={"type": "count_given_words", "input": {"words": 3}})
        print(wrong.status_code, wrong.json()["detail"])
        for user in ("bob", "nobody"):
            refused = await web.post("/queue/chains", json=body, headers={"x-user": user})
            print(refused.status_code, refused.json()["detail"])


if __name__ == "__main__":
    asyncio.run(main())
