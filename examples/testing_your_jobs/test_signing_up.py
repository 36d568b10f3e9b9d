"""Tests of a program's jobs: on a real store, without a worker in the background, without waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from examples.testing_your_jobs.signing_up import Mail, job_types, processors, remind, send_mail, sign_up
from queuert import Client, PostgresState, after
from queuert.testing import AsyncJobQueue, JobQueue, UnexpectedFailureError


@pytest.fixture
async def queue(queuert_state: PostgresState) -> AsyncIterator[AsyncJobQueue]:
    async with AsyncJobQueue(queuert_state, job_types) as queue:
        yield queue


async def test_signing_up_sends_a_welcome(queue: AsyncJobQueue, queuert_dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(queuert_dsn) as connection:
        await sign_up(queue.client, connection, "ada@example.org")
    await queue.assert_started(send_mail, to="ada@example.org", text="Welcome")
    ran = await queue.run_until_idle(processors)
    assert [(one.type, one.outcome) for one in ran] == [("send_mail", "completed")]


async def test_nothing_is_sent_when_signing_up_is_rolled_back(queue: AsyncJobQueue, queuert_dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(queuert_dsn) as connection:
        await sign_up(queue.client, connection, "ada@example.org")
        await connection.rollback()
    await queue.assert_not_started(send_mail)


async def test_the_reminder_comes_after_a_week(queue: AsyncJobQueue) -> None:
    await queue.client.start_chain(remind, "ada@example.org", run_at=after(days=7))
    await queue.advance(days=6)
    assert await queue.run_until_idle(processors) == []
    await queue.advance(days=1)
    await queue.run_until_idle(processors)
    await queue.assert_started(send_mail, where=lambda mail: "still there" in mail.text)


async def test_one_step_at_a_time(queue: AsyncJobQueue) -> None:
    chain = await queue.client.start_chain(remind, "ada@example.org", run_at=after(days=7))
    assert (await queue.process_job(processors, chain)).outcome == "continued"
    [mail] = await queue.assert_started(send_mail)
    assert (await queue.process_job(processors, mail)).outcome == "completed"
    assert await chain.result(timeout=0) is True


async def test_failures_make_a_test_fail(queue: AsyncJobQueue) -> None:
    await queue.client.start_chain(remind, "ghost@example.org")
    with pytest.raises(UnexpectedFailureError, match="nobody of that name"):
        await queue.run_until_idle(processors)


def test_in_a_synchronous_program(queuert_state: PostgresState) -> None:
    with Client(queuert_state, job_types) as client:
        client.start_chain(send_mail, Mail(to="bob@example.org", text="Hello"))
    with JobQueue(queuert_state, job_types) as queue:
        queue.assert_started(send_mail, to="bob@example.org")
        assert len(queue.run_until_idle(processors)) == 1
