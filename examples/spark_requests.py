"""A request for each row of a DataFrame, and the responses as another, in one call.

Needs ``queuert[spark]`` and a Java. Run it from the root of the repository, after ``queuert migrate up``:
``QUEUERT_URL=... python -m examples.spark_requests``.
"""

from __future__ import annotations

import asyncio
import os
import sys

from pydantic import BaseModel

from queuert import AsyncClient, Attempt, Client, InProcessWorker, JobType, JobTypes, Outcome, PostgresState, Processors
from queuert.errors import Unrecoverable
from queuert.spark import ProgressLine, local_session, request


class Question(BaseModel):
    country: str


class Answer(BaseModel):
    capital: str
    letters: int


ask = JobType("ask", input=Question, output=Answer)
job_types = JobTypes(ask)
processors = Processors(job_types)
CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Peru": "Lima"}


@processors.handles(ask)
async def answer(attempt: Attempt[Question, Answer]) -> Outcome[Answer]:
    capital = CAPITALS.get(attempt.input.country)
    if capital is None:
        raise Unrecoverable(f"there is no {attempt.input.country}")
    return Answer(capital=capital, letters=len(capital))


def drive() -> None:
    """What a driver does: it has a client and a session, and no handlers."""
    spark = local_session(2, settings={"spark.log.level": "OFF"})
    rows = [("q1", "France"), ("q2", "Japan"), ("q3", "Atlantis"), ("q4", "Peru")]
    questions = spark.createDataFrame(rows, "id string, country string")
    with Client(PostgresState(os.environ["QUEUERT_URL"]), job_types) as client:
        answers = request(
            questions, ask, client=client, output=Answer, timeout=120, on_progress=ProgressLine(sys.stderr)
        )
    joined = questions.join(answers, questions.id == answers.chain_id).orderBy("id")
    for row in joined.select("country", "status", "output.capital", "output.letters", "error").collect():
        print(row.country, row.status, row.capital or row.error.partition(": ")[2], row.letters or "")
    spark.stop()


async def main() -> None:
    client = AsyncClient(PostgresState(os.environ["QUEUERT_URL"]), job_types)
    async with client, InProcessWorker(client, processors):  # elsewhere, as a rule
        await asyncio.to_thread(drive)


if __name__ == "__main__":
    asyncio.run(main())
