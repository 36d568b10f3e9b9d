"""A start in a transaction of Django's: inside ``atomic`` the chain exists once the block has committed.

Django's own way is a function for ``transaction.on_commit``, which is lost when the process dies right after the
commit. A job that is started in the transaction is not.

Run it from the root of the repository, after ``queuert migrate up``:
``QUEUERT_URL=... python -m examples.django_transactions``.
"""

from __future__ import annotations

import asyncio
import os
from urllib.parse import unquote, urlsplit

from django.conf import settings
from django.db import connection, transaction

from queuert import AsyncClient, Attempt, Client, InProcessWorker, JobType, JobTypes, Outcome, PostgresState, Processors
from queuert.errors import ChainNotFoundError

welcome = JobType("welcome", input=str, output=str)
job_types = JobTypes(welcome)
processors = Processors(job_types)


@processors.handles(welcome)
def send_welcome(attempt: Attempt[str, str]) -> Outcome[str]:
    print(f"the handler runs for {attempt.input}")
    return f"welcomed {attempt.input}"


def configure(dsn: str) -> None:
    """What a project has in its settings."""
    parts = urlsplit(dsn)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "HOST": parts.hostname,
        "PORT": parts.port,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
    }
    settings.configure(DATABASES={"default": database}, USE_TZ=True)


def sign_up(client: Client) -> str:
    with transaction.atomic():
        chain = client.start_chain(welcome, "Ada", connection=connection)
        transaction.on_commit(lambda: print(f"on_commit: the job is there, {client.get_job(chain.id).status}"))
        try:
            client.get_job(chain.id)
        except LookupError:
            print("in the block nobody else sees the job")
    return chain.id


def fail_to_sign_up(client: Client) -> None:
    try:
        with transaction.atomic():
            client.start_chain(welcome, "Bob", id="welcome-bob", connection=connection)
            raise RuntimeError("something else went wrong")
    except RuntimeError as error:
        print(error)
    try:
        client.get_chain("welcome-bob")
    except ChainNotFoundError:
        print("rolled back: no job")


async def work(dsn: str, chain_id: str) -> None:
    async with AsyncClient(PostgresState(dsn), job_types) as client, InProcessWorker(client, processors):
        print(await (await client.get_chain(chain_id, welcome)).result(timeout=30))


def main() -> None:
    dsn = os.environ["QUEUERT_URL"]
    configure(dsn)
    with Client(PostgresState(dsn), job_types) as client:
        fail_to_sign_up(client)
        chain_id = sign_up(client)
    asyncio.run(work(dsn, chain_id))
    connection.close()


if __name__ == "__main__":
    main()
