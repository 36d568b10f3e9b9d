"""Worker processes that are killed, frozen, blocked and poisoned."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from queuert import Attempt, JobStatus, NewChain, Outcome, RetryPolicy
from queuert.observability.events import AttemptAborted, AttemptCompleted, AttemptStarted, JobReaped
from tests.faults.processes.support import Child, effects
from tests.worker.support import AT_ONCE, SHORT, WAIT, Gate, Stage, none_left, number, text, until

pytestmark = pytest.mark.fault


def rescue(stage: Stage) -> None:
    """This process takes over what the children lose."""

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            await tx.connection.execute("insert into effect values (%s, %s)", (attempt.job_id, attempt.number))
            return tx.finish(attempt.input)

    stage.handles(number, handler, lease=SHORT, retry=AT_ONCE)
    stage.handles(text, handler, lease=SHORT, retry=AT_ONCE)


async def expect(child: Child, beginning: str) -> str:
    return await asyncio.to_thread(child.expect, beginning)


@pytest.mark.parametrize("way", ["hang", "hang_in_thread"])
async def test_a_worker_killed_in_its_handler(scene: Stage, way: str) -> None:
    rescue(scene)
    chain = await scene.client.start_chain(number, 1)
    with Child(scene.dsn, way) as child:
        assert await expect(child, "in") == f"{chain.id} 1"
        holder = (await scene.job(chain.id)).holder
        child.signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    async with scene.worker():
        reaped = await scene.log.wait_for(JobReaped, job_id=chain.id)
        assert (reaped.attempt, reaped.failed, reaped.holder) == (1, False, holder)
        assert await chain.result(WAIT) == 1
    job = await scene.job(chain.id)
    assert (job.attempt, job.lease_expirations, job.interruptions) == (2, 1, 0)
    assert effects(scene) == [(chain.id, 2)]


async def test_the_error_of_a_killed_worker_is_on_record(scene: Stage) -> None:
    gate = Gate()

    @scene.processors.handles(number, retry=RetryPolicy(initial=3600.0, maximum=3600.0), lease=SHORT)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    chain = await scene.client.start_chain(number, 1)
    with Child(scene.dsn, "hang") as child:
        await expect(child, "in")
    async with scene.worker():
        await scene.log.wait_for(JobReaped, job_id=chain.id)
    job = await scene.job(chain.id)
    assert job.status is JobStatus.SCHEDULED
    assert job.last_error is not None
    assert job.last_error.kind == "lease_expired"
    assert "child-" in job.last_error.message


async def test_a_worker_killed_between_its_writes_and_the_commit(scene: Stage) -> None:
    rescue(scene)
    chain = await scene.client.start_chain(number, 1)
    with Child(scene.dsn, "inside") as child:
        await expect(child, "in")
        child.signal(signal.SIGKILL)
        child.wait()
        await until(lambda: effects(scene) == [], "the effect is absent")
    async with scene.worker():
        assert await chain.result(WAIT) == 1
    assert effects(scene) == [(chain.id, 2)]


async def test_a_frozen_worker_wakes_while_the_second_attempt_runs(scene: Stage) -> None:
    gate = Gate()

    @scene.processors.handles(number, lease=SHORT, retry=AT_ONCE)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        async with attempt.complete() as tx:
            await tx.connection.execute("insert into effect values (%s, %s)", (attempt.job_id, attempt.number))
            return tx.finish(attempt.input)

    chain = await scene.client.start_chain(number, 1)
    with Child(scene.dsn, "late") as child:
        await expect(child, "in")
        child.signal(signal.SIGSTOP)
        async with scene.worker():
            assert (await gate.next()).number == 2
            child.tell()
            child.signal(signal.SIGCONT)
            assert await expect(child, "refused") in ("taken_by_another_worker", "error")
            assert await expect(child, "aborted") in ("taken_by_another_worker", "error")
            assert effects(scene) == []
            gate.open()
            assert await chain.result(WAIT) == 1
    assert effects(scene) == [(chain.id, 2)]
    assert (await scene.job(chain.id)).attempt == 2


@pytest.mark.parametrize("way", ["late", "plain"])
async def test_a_frozen_worker_wakes_after_the_second_attempt(scene: Stage, way: str) -> None:
    rescue(scene)
    chain = await scene.client.start_chain(number, 1)
    with Child(scene.dsn, way) as child:
        await expect(child, "in")
        child.signal(signal.SIGSTOP)
        async with scene.worker():
            assert await chain.result(WAIT) == 1
        before = scene.rows("select * from queuert.job")
        child.signal(signal.SIGCONT)
        if way == "late":
            child.tell()
            await expect(child, "refused")
        assert await expect(child, "aborted") in ("already_completed", "error")
        child.tell()
        child.signal(signal.SIGTERM)
        assert await asyncio.to_thread(child.wait) == 0
    assert scene.rows("select * from queuert.job") == before
    assert effects(scene) == [(chain.id, 2)]


async def test_a_worker_frozen_inside_its_transaction_does_not_hold_the_job_for_ever(scene: Stage) -> None:
    rescue(scene)
    chain = await scene.client.start_chain(number, 1)
    with Child(scene.dsn, "inside") as child:
        await expect(child, "in")
        child.signal(signal.SIGSTOP)
        async with scene.worker():
            assert await chain.result(WAIT) == 1
        child.tell()
        child.signal(signal.SIGCONT)
        child.signal(signal.SIGTERM)
        assert await asyncio.to_thread(child.wait) == 0
    assert effects(scene) == [(chain.id, 2)]


async def test_a_blocked_event_loop_keeps_its_lease(scene: Stage) -> None:
    rescue(scene)
    async with scene.worker():
        pass
    chain = await scene.client.start_chain(number, 1)
    with Child(scene.dsn, "block") as child:
        await expect(child, "in")
        async with scene.worker():
            assert await chain.result(WAIT) == 1
    job = await scene.job(chain.id)
    assert (job.attempt, job.lease_expirations) == (1, 0)
    assert effects(scene) == [(chain.id, 1)]
    assert scene.log.of(JobReaped) == []


@pytest.mark.parametrize("way", ["leave", "crash"])
async def test_a_poisonous_job_fails_at_the_cap_and_the_good_ones_are_done(scene: Stage, way: str) -> None:
    poison = await scene.client.start_chain(number, 1, id="poison", priority=10)
    good = await scene.client.start_chains([NewChain(text, "x", id=f"good-{one}") for one in range(5)])
    deaths = 0
    while (await poison.refresh()).status == "open":
        with Child(scene.dsn, way, cap=2, lease=0.5) as child:
            waiting = asyncio.create_task(asyncio.to_thread(child.wait))
            closing = asyncio.create_task(poison.wait(WAIT))
            await asyncio.wait({waiting, closing}, return_when=asyncio.FIRST_COMPLETED)
            if closing.done():
                await scene.client.wait(good, timeout=WAIT)
                child.signal(signal.SIGTERM)
                assert await waiting == 0
            else:
                deaths += 1
                closing.cancel()
    job = await scene.job("poison")
    assert (job.status, job.attempt, job.lease_expirations, deaths) == (JobStatus.FAILED, 2, 2, 2)
    assert [one for one, _ in effects(scene)] == [f"good-{one}" for one in range(5)]


async def test_two_workers_never_run_one_job_at_once(scene: Stage) -> None:
    scene.rows("create table run (job text, began timestamptz, ended timestamptz)")

    @scene.processors.handles(number, lease=SHORT, retry=AT_ONCE)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        began = scene.one("select clock_timestamp()")
        await asyncio.sleep(0)
        if attempt.input % 3 == 0 and attempt.number == 1:
            scene.rows("insert into run values (%s, %s, clock_timestamp())", attempt.job_id, began)
            return attempt.retry(after=0)
        scene.rows("insert into run values (%s, %s, clock_timestamp())", attempt.job_id, began)
        return attempt.input

    chains = await scene.client.start_chains([NewChain(number, one) for one in range(150)])
    workers = [scene.worker(concurrency=5) for _ in range(4)]
    await asyncio.gather(*(worker.start() for worker in workers))
    await scene.client.wait(chains, timeout=WAIT)
    overlapping = scene.rows(
        "select 1 from run a join run b on a.job = b.job and a.ctid < b.ctid"
        " where tstzrange(a.began, a.ended, '[]') && tstzrange(b.began, b.ended, '[]')"
    )
    assert overlapping == []
    assert scene.one("select count(*) from run") == 200
    assert len(scene.log.of(AttemptStarted)) == 200
    assert len({event.worker for event in scene.log.of(AttemptStarted)}) > 1
    assert len(scene.log.of(AttemptCompleted)) == 150
    assert scene.log.of(AttemptAborted) == []


# --- signals ----------------------------------------------------------------------------------------------------------


async def leases(stage: Stage) -> int:
    count: int = stage.one("select count(*) from queuert.job where lease_expires_at is not null")
    return count


@pytest.mark.parametrize("number_of_signal", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_idle(scene: Stage, number_of_signal: signal.Signals) -> None:
    with Child(scene.dsn, "effect") as child:
        await expect(child, "ready")
        child.signal(number_of_signal)
        assert await asyncio.to_thread(child.wait) == 0
    await none_left(scene.sessions, "sessions")


async def test_a_signal_while_it_starts(scene: Stage) -> None:
    with Child(scene.dsn, "effect") as child:
        scene.rows("begin; lock table queuert.alembic_version in access exclusive mode")
        await expect(child, "begun")
        await until(lambda: bool(scene.rows("select 1 from pg_locks where not granted")), "the worker is starting")
        child.signal(signal.SIGTERM)
        scene.rows("rollback")
        assert await asyncio.to_thread(child.wait) == 0


async def test_a_signal_while_it_runs_lets_it_finish(scene: Stage) -> None:
    chain = await scene.client.start_chain(number, 1)
    with Child(scene.dsn, "plain", grace=WAIT) as child:
        await expect(child, "in")
        child.signal(signal.SIGTERM)
        child.tell()
        assert await asyncio.to_thread(child.wait) == 0
    assert (await scene.job(chain.id)).status is JobStatus.COMPLETED
    assert await leases(scene) == 0


async def test_a_signal_while_it_runs_ends_it_after_the_grace(scene: Stage) -> None:
    chain = await scene.client.start_chain(number, 1)
    with Child(scene.dsn, "hang", grace=0.0) as child:
        await expect(child, "in")
        child.signal(signal.SIGTERM)
        assert await asyncio.to_thread(child.wait) == 0
    job = await scene.job(chain.id)
    assert (job.status, job.interruptions) == (JobStatus.READY, 1)
    assert await leases(scene) == 0


async def test_a_second_signal_ends_the_grace(scene: Stage) -> None:
    chain = await scene.client.start_chain(number, 1)
    with Child(scene.dsn, "hang", grace=3600.0) as child:
        await expect(child, "in")
        child.signal(signal.SIGTERM)
        await expect(child, "stopping")
        child.signal(signal.SIGINT)
        assert await asyncio.to_thread(child.wait) == 0
    assert (await scene.job(chain.id)).interruptions == 1
    assert await leases(scene) == 0


async def test_a_hanging_thread_does_not_keep_the_process(scene: Stage) -> None:
    chain = await scene.client.start_chain(number, 1)
    with Child(scene.dsn, "hang_in_thread", grace=0.0) as child:
        await expect(child, "in")
        child.signal(signal.SIGTERM)
        assert await asyncio.to_thread(child.wait) == 4
    assert (await scene.job(chain.id)).status is JobStatus.READY
    assert await leases(scene) == 0


async def test_a_database_out_of_reach_has_an_exit_code_of_its_own(scene: Stage) -> None:
    with Child("postgresql://127.0.0.1:1/none", "effect") as child:
        assert await asyncio.to_thread(child.wait) == 3
