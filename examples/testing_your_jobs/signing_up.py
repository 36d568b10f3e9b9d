"""Who signs up gets a welcome, and a reminder a week later if they have not come back by then."""

from __future__ import annotations

from typing import Any

import psycopg
from pydantic import BaseModel

from queuert import AsyncClient, Attempt, JobType, JobTypes, Outcome, Processors, after


class Mail(BaseModel):
    to: str
    text: str


send_mail = JobType("send_mail", input=Mail, output=bool)
remind = JobType("remind", input=str, output=bool, continues_with=send_mail)
job_types = JobTypes(send_mail, remind)
processors = Processors(job_types)


async def sign_up(client: AsyncClient, connection: psycopg.AsyncConnection[Any], address: str) -> None:
    await connection.execute("insert into people (address) values (%s)", [address])
    await client.start_chain(send_mail, Mail(to=address, text="Welcome"), connection=connection)
    await client.start_chain(remind, address, run_at=after(days=7), connection=connection)


@processors.handles(remind)
async def remind_person(attempt: Attempt[str, bool]) -> Outcome[bool]:
    if attempt.input.startswith("ghost"):
        return attempt.fail("nobody of that name")
    return attempt.continue_with(send_mail, Mail(to=attempt.input, text="Are you still there?"))


@processors.handles(send_mail)
async def send(attempt: Attempt[Mail, bool]) -> Outcome[bool]:
    return True  # where a real one talks to a mail server
