"""What attempts tell of their progress: kept with renewals, by whom, and for how long."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from queuert.jobs import JobProgress, JobStatus
from queuert.state import Capability
from queuert.state.types import ClaimedJob, Renewal
from queuert.testing.conformance.builders import (
    claim_one,
    complete,
    fail,
    lost_to_reaper,
    read,
    retry,
    started_and_claimed,
    stolen,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


def _reported(job: ClaimedJob, done: float) -> str:
    reported = {"attempt": job.attempt, "at": _AT.isoformat(), "fraction": done / 4, "done": done, "total": 4}
    return json.dumps({**reported, "message": "naïve \U0001f4e6"})


def _kept(done: float) -> JobProgress:
    return JobProgress(done / 4, done, 4, "naïve \U0001f4e6", _AT)


@case()
async def is_kept_with_a_renewal(stores: Stores) -> None:
    """Progress is read back as it was told; the newest counts, and a renewal without any leaves it as it is."""
    store = await stores.open()
    reported, silent = await started_and_claimed(store, 2)
    assert (await read(store, reported.id)).progress is None
    assert await store.renew([Renewal(reported.lease, 60.0, _reported(reported, 1)), Renewal(silent.lease, 60.0)]) == [
        True,
        True,
    ]
    assert ((await read(store, reported.id)).progress, (await read(store, silent.id)).progress) == (_kept(1), None)
    await store.renew([Renewal(reported.lease, 60.0, _reported(reported, 3))])
    await store.renew([Renewal(reported.lease, 60.0)])
    assert (await read(store, reported.id)).progress == _kept(3)


@case()
async def of_a_stranger_is_refused(stores: Stores) -> None:
    """What an attempt tells that holds the job no more is not kept, be the job free, taken anew or ended."""
    store = await stores.open()
    lost = await lost_to_reaper(store)
    assert await store.renew([Renewal(lost.lease, 60.0, _reported(lost, 1))]) == [False]
    again = await claim_one(store)
    assert await store.renew([Renewal(again.lease, 60.0, _reported(again, 2))]) == [True]
    late = [Renewal(lost.lease, 60.0, _reported(again, 3)), Renewal(stolen(again).lease, 60.0, _reported(again, 4))]
    assert await store.renew(late) == [False, False]
    assert (await read(store, lost.id)).progress == _kept(2)
    await store.finish([complete(again)])
    assert await store.renew([Renewal(again.lease, 60.0, _reported(again, 4))]) == [False]
    assert (await read(store, lost.id)).progress == _kept(2)


@case()
async def is_the_last_attempts(stores: Stores) -> None:
    """It stays when the attempt has ended, and the next attempt begins without any."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    await store.renew([Renewal(claimed.lease, 60.0, _reported(claimed, 1))])
    await store.finish([retry(claimed)])
    assert (await read(store, claimed.id)).progress == _kept(1)
    again = await claim_one(store)
    assert (await read(store, claimed.id)).progress is None
    await store.renew([Renewal(again.lease, 60.0, _reported(again, 4))])
    await store.finish([complete(again)])
    ended = await read(store, claimed.id)
    assert (ended.status, ended.progress) == (JobStatus.COMPLETED, _kept(4))


@case()
async def is_written_with_the_finish(stores: Stores) -> None:
    """Whatever the finish is, and beside others; that of an attempt whose lease is lost is not."""
    store = await stores.open()
    completed, retried, failed, silent = await started_and_claimed(store, 4)
    finishes = [complete(completed), retry(retried), fail(failed)]
    reported = [replace(one, progress=_reported(one.job, 4)) for one in finishes]
    stolen_one = replace(complete(stolen(silent)), progress=_reported(silent, 2))
    await store.finish([*reported, stolen_one])
    for job in (completed, retried, failed):
        assert (await read(store, job.id)).progress == _kept(4)
    await store.renew([Renewal(silent.lease, 60.0, _reported(silent, 1))])
    await store.finish([complete(silent)])
    assert (await read(store, silent.id)).progress == _kept(1)


@case()
async def is_written_with_the_finish_of_a_transaction(stores: Stores) -> None:
    """It commits with the finish, and is rolled back with it."""
    store = await stores.open()
    held, undone = await started_and_claimed(store, 2)
    for last, job in ((True, held), (False, undone)):
        with suppress(ZeroDivisionError):
            async with store.transaction(job) as transaction:
                await transaction.finish(replace(complete(job), progress=_reported(job, 4)), last=last)
                if not last:
                    raise ZeroDivisionError
    ended = await read(store, held.id)
    assert (ended.status, ended.progress) == (JobStatus.COMPLETED, _kept(4))
    again = await read(store, undone.id)
    assert (again.status, again.progress) == (JobStatus.RUNNING, None)


@case(Capability.ROW_LOCKS)
async def does_not_wait_for_a_transaction(stores: Stores) -> None:
    """While a transaction holds the job, its progress is not written and nobody waits; the others' is."""
    store = await stores.open()
    held, other = await started_and_claimed(store, 2)
    async with store.transaction(held):
        requested = [Renewal(held.lease, 60.0, _reported(held, 1)), Renewal(other.lease, 60.0, _reported(other, 2))]
        assert await store.renew(requested) == [False, True]
    assert ((await read(store, held.id)).progress, (await read(store, other.id)).progress) == (None, _kept(2))
