"""Pausing job types, and the sweep."""

from __future__ import annotations

import pytest

from queuert.errors import InvalidIdentifierError
from queuert.observability.events import AttemptCompleted, StrandedJobsReleased
from tests.support.harness import PostgresHarness
from tests.support.job_types import echo, number, text
from tests.support.waiting import WAIT, Gate


async def test_a_paused_type_is_not_run_and_goes_on_at_once(harness: PostgresHarness) -> None:
    """Nothing of a paused type is claimed; the resume wakes workers that would look much later."""
    harness.handles(number, echo)
    harness.handles(text, echo)
    await harness.client.pause_job_types([number], reason="\x00" + "x" * 5_000)
    async with harness.worker(poll_interval=3600.0):
        waiting = await harness.client.start_chain(number, 1)
        assert await (await harness.client.start_chain(text, "on")).result(WAIT) == "on"
        assert harness.one("select status from queuert.job where id = %s", waiting.id) == "ready"
        [paused] = await harness.client.list_paused_job_types()
        assert (paused.type, len(paused.reason or "")) == ("number", 2_000)
        assert await harness.client.resume_job_types([number, "unheard-of"]) == ["number"]
        assert await waiting.result(WAIT) == 1
    assert await harness.client.list_paused_job_types() == []


async def test_running_jobs_go_on(harness: PostgresHarness) -> None:
    """What runs when its type is paused completes."""
    gate = Gate()

    @harness.processors.handles(number)
    async def handler(attempt):  # type: ignore[no-untyped-def]
        await gate.pass_through(attempt)
        return attempt.input

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await gate.next()
        await harness.client.pause_job_types(["number"])
        gate.open()
        assert await chain.result(WAIT) == 1


async def test_names_are_checked(harness: PostgresHarness) -> None:
    for call in (harness.client.pause_job_types, harness.client.resume_job_types):
        for wrong in ("number", [""], [7]):
            with pytest.raises(InvalidIdentifierError):
                await call(wrong)  # type: ignore[arg-type]
    assert await harness.client.list_paused_job_types() == []


async def test_what_a_statement_by_hand_left_blocked_is_swept(harness: PostgresHarness) -> None:
    """A job that is blocked by nothing is found by a worker, released, told of, and run."""
    harness.handles(number, echo)
    first = await harness.client.start_chain(number, 1)
    second = await harness.client.start_chain(number, 2, blockers=[first])
    third = await harness.client.start_chain(text, "of a type without a worker", blockers=[second])
    harness.rows("update queuert.job set status = 'completed', chain_status = 'completed' where id = %s", first.id)
    async with harness.worker(poll_interval=3600.0) as worker:
        swept = await harness.log.wait_for(StrandedJobsReleased)
        assert (swept.worker, swept.count, swept.job_ids) == (worker.name, 1, (second.id,))
        await harness.log.wait_for(AttemptCompleted, job_id=second.id)
    assert harness.one("select status from queuert.job where id = %s", third.id) == "ready"


async def test_the_sweep_walks_through_all_pages(harness: PostgresHarness) -> None:
    """More blocked jobs than a page has: the last one is found as well, by its place after all others."""
    harness.handles(number, echo)
    gate = await harness.client.start_chain(text, "nobody runs it")
    lost = await harness.client.start_chain(text, "ended by hand")
    harness.rows(
        "insert into queuert.job (id, chain_id, type, chain_type, chain_status, status, input, open_blockers,"
        " blocker_count) select id, id, 'number', 'number', 'open', 'blocked', '1', 1, 1"
        " from (select 'z' || to_char(n, 'FM0000') as id from generate_series(1, 1200) as n) as ids"
    )
    harness.rows(
        "insert into queuert.job_blocker (job_id, blocker_chain_id, position, closed)"
        " select id, case id when 'z1200' then %s else %s end, 0, false from queuert.job where status = 'blocked'",
        *(lost.id, gate.id),
    )
    harness.rows("update queuert.job set status = 'completed', chain_status = 'completed' where id = %s", lost.id)
    async with harness.worker():
        swept = await harness.log.wait_for(StrandedJobsReleased)
        assert (swept.count, swept.job_ids) == (1, ("z1200",))
        await harness.log.wait_for(AttemptCompleted, job_id="z1200")
