"""Workers carry out bulk operations, whatever their processors."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from queuert import AsyncClient, InProcessWorker, JobType, JobTypes, NewChain
from queuert.bulk_operations import BATCH
from queuert.job_types import BULK_OPERATION_TYPE
from queuert.jobs import ChainStatus
from queuert.policies import Retention
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.state.types import ClaimedJob, ClaimRequest
from queuert.worker import Processors
from tests.support.harness import PostgresHarness
from tests.support.job_types import echo, number
from tests.support.waiting import START, until

work = JobType("work", input=int, output=int)
other = JobType("other", input=int, output=int)


@pytest.mark.quick
async def test_a_worker_carries_out_an_operation_of_types_that_it_does_not_handle(harness: PostgresHarness) -> None:
    job_types = JobTypes(work, other)
    processors = Processors(job_types)
    processors.handles(other)(lambda attempt: attempt.input)
    async with AsyncClient(harness.state, job_types) as client:
        chains = await client.start_chains([NewChain(work, number) for number in range(BATCH + 1)])
        async with InProcessWorker(client, processors, concurrency=1):
            operation = await client.start_bulk_operation("cancel", requested_by="ana")
            await (await client.get_chain(operation.id)).wait(timeout=START)
        done = await client.get_bulk_operation(operation.id)
        assert (done.status, done.seen, done.changed) == (ChainStatus.COMPLETED, BATCH + 1, BATCH + 1)
        assert (await client.get_chain(chains[-1].id)).status is ChainStatus.CANCELLED


async def test_workers_prune_old_operations_whatever_they_handle(harness: PostgresHarness) -> None:
    harness.handles(number, echo, retention=Retention.forever())
    old, new = [await harness.client.start_bulk_operation("cancel", requested_by="ana") for _ in range(2)]
    while await harness.client.run_bulk_operations():
        pass
    harness.rows(
        "update queuert.job set chain_closed_at = now() - interval '15 days', created_at = now() - interval '15 days'"
        " where id = %s",
        old.id,
    )
    async with harness.worker():
        await until(lambda: not harness.rows("select 1 from queuert.job where id = %s", old.id), "it is deleted")
    assert harness.rows("select chain_id from queuert.bulk_operation") == [(new.id,)]


async def test_an_operation_is_carried_out_though_it_could_not_be_claimed_and_nobody_has_a_lease(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process claims a batch just before the worker, finishes it just after, and dies before the next one."""
    claim = AsyncPostgresStore.claim
    too_late: list[ClaimRequest] = []

    async def late(store: AsyncPostgresStore, request: ClaimRequest) -> Sequence[ClaimedJob]:
        if BULK_OPERATION_TYPE in request.leases and not too_late:
            too_late.append(request)
            return []
        return await claim(store, request)

    monkeypatch.setattr(AsyncPostgresStore, "claim", late)
    processors = Processors(JobTypes(other))
    processors.handles(other)(lambda attempt: attempt.input)
    async with AsyncClient(harness.state, JobTypes(work, other)) as client:
        await client.start_chain(work, 1)
        async with InProcessWorker(client, processors, concurrency=1):
            operation = await client.start_bulk_operation("cancel", requested_by="ana")
            await (await client.get_chain(operation.id)).wait(timeout=START)
        assert (await client.get_bulk_operation(operation.id)).changed == 1
    assert too_late
