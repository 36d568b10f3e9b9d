"""Looking: next due time, jobs, chains, counts; opening and closing."""

from __future__ import annotations

import json
from dataclasses import replace

from queuert.errors import ClosedError
from queuert.jobs import ChainRecord, ChainStatus, JobStatus
from queuert.run_at import after
from queuert.state.types import Renewal
from queuert.testing.conformance.builders import (
    complete,
    due_later,
    error_of,
    eventually,
    fail,
    go_on,
    job,
    retry,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


@case()
async def nothing_is_due(stores: Stores) -> None:
    """``next_due`` is None when nothing is scheduled: no jobs, no types, only other types, blocked and running ones."""
    store = await stores.open()
    assert await store.next_due(["work"]) is None
    assert await store.next_due([]) is None
    [held, _] = await started_and_claimed(store, 2)
    await start(store, job(blockers=[held.id]), job("other"))
    await store.finish([complete(held)])
    assert await store.next_due(["blank"]) is None
    [_, again] = await started_and_claimed(store, 2, type="more")
    assert await store.next_due(["more"]) is None
    await store.finish([fail(again)])
    assert await store.next_due(["more"]) is None


@case()
async def something_is_due_now(stores: Stores) -> None:
    """``next_due`` is 0 when a job is ready, even if another is scheduled."""
    store = await stores.open()
    await start(store, job("later", run_at=due_later()), job("now"))
    assert await store.next_due(["later", "now"]) == 0


@case()
async def something_will_be_due(stores: Stores) -> None:
    """``next_due`` is the time until the first scheduled job of the types asked for."""
    store = await stores.open()
    await start(store, job("a", run_at=after(hours=2)), job("b", run_at=due_later()))
    await start(store, job("c", run_at=after(minutes=1)))
    pauses = [await store.next_due(types) for types in (["a"], ["a", "b"], ["b", "a"], ["b", "c"], ["c", "b"])]
    assert [round(pause / 600) if pause else None for pause in pauses] == [12, 6, 6, 0, 0]


@case()
async def pause_of_a_retry_counts(stores: Stores) -> None:
    """A job that waits for another attempt is scheduled like any other."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.finish([retry(held, 5000.0)])
    pause = await store.next_due(["work"])
    assert pause is not None and 4000.0 < pause <= 5000.0


@case()
async def due_shows_as_ready(stores: Stores) -> None:
    """A scheduled job whose time has come reads READY, in ``get_jobs`` and in ``counts``, and is due now."""
    store = await stores.open()
    [id] = await start(store, job(run_at=after(seconds=0.001)))

    async def ready() -> bool:
        return [one.status for one in await store.get_jobs([id]) if one] == [JobStatus.READY]

    await eventually(ready)
    assert [(one.status, one.count) for one in await store.count_jobs()] == [(JobStatus.READY, 1)]
    assert await store.next_due(["work"]) == 0


@case()
async def jobs_in_the_order_requested(stores: Stores) -> None:
    """Jobs are read in the order asked, None where there is none, repeated ones repeated."""
    store = await stores.open()
    ids = await start(store, job(), job(), job())
    requested = [ids[2], "unknown", ids[0], ids[2]]
    assert [one.id if one else None for one in await store.get_jobs(requested)] == [ids[2], None, ids[0], ids[2]]
    assert await store.get_jobs([]) == []


@case()
async def chains_in_the_order_requested(stores: Stores) -> None:
    """Chains likewise; the id of a later job is no chain's."""
    store = await stores.open()
    [first, second] = await started_and_claimed(store, 2)
    await store.finish([go_on(first, job(id="later"))])
    requested = [second.id, "later", first.id, "unknown", second.id]
    found = await store.get_chains(requested)
    assert [one.id if one else None for one in found] == [second.id, None, first.id, None, second.id]
    assert await store.get_chains([]) == []


@case()
async def chains_without_payloads(stores: Stores) -> None:
    """Everything else is there: the error, the attributes, the last job."""
    store = await stores.open()
    done, failed = await started_and_claimed(store, 2, attributes={"user": "17"})
    await store.finish([complete(done, '"large"'), fail(failed)])
    whole = [one for one in await store.get_chains([done.id, failed.id]) if one is not None]
    assert (whole[0].output, whole[1].error is None) == ('"large"', False)
    bare = await store.get_chains([done.id, "unknown", failed.id], payloads=False)
    expected = [replace(one, input="", output=None) for one in whole]
    assert bare == [expected[0], None, expected[1]]


@case()
async def thousands_of_jobs_are_read_at_once(stores: Stores) -> None:
    """A read of many jobs is whole and in order."""
    store = await stores.open()
    ids = await start(store, *(job() for _ in range(3000)))
    assert [one.id for one in await store.get_jobs(ids[::-1]) if one] == ids[::-1]
    assert [one.id for one in await store.get_chains(ids[::-1]) if one] == ids[::-1]


@case()
async def counts_by_type_and_status(stores: Stores) -> None:
    """Counts are of each type and status that there is; ages are not negative."""
    store = await stores.open()
    held = await started_and_claimed(store, 4)
    await store.finish([complete(held[0]), fail(held[1]), go_on(held[2], job("next"))])
    await start(store, job(blockers=[held[3].id]), job("next", run_at=due_later()), job("other"))
    found = await store.count_jobs()
    assert {(one.type, str(one.status), one.count) for one in found} == {
        ("work", "completed", 1),
        ("work", "failed", 1),
        ("work", "continued", 1),
        ("work", "running", 1),
        ("work", "blocked", 1),
        ("next", "ready", 1),
        ("next", "scheduled", 1),
        ("other", "ready", 1),
    }
    assert all(one.oldest_seconds is None or one.oldest_seconds >= 0 for one in found)
    assert all(one.oldest_seconds is not None for one in found if one.status in (JobStatus.READY, JobStatus.SCHEDULED))


@case()
async def counts_of_some_types(stores: Stores) -> None:
    """With types, only theirs are counted; with none of them, nothing is."""
    store = await stores.open()
    await start(store, job("a"), job("b"), job("b"))
    assert [(one.type, one.count) for one in await store.count_jobs(["b", "unknown"])] == [("b", 2)]
    assert list(await store.count_jobs([])) == []


@case()
async def opened_twice_and_closed_twice(stores: Stores) -> None:
    """``open`` and ``aclose`` may be called again; what was written is there for the next store."""
    store = stores.make()
    await store.open()
    await store.open()
    [id] = await start(store, job())
    await store.aclose()
    await store.aclose()
    other = await stores.open()
    assert [one.id for one in await other.get_jobs([id]) if one] == [id]


@case()
async def closed_before_it_was_opened(stores: Stores) -> None:
    """A store that was never opened can be closed."""
    await stores.make().aclose()


@case()
async def closed_store_says_so(stores: Stores) -> None:
    """An operation on a store that is not open, or not any more, is a ClosedError, and it can be opened again."""
    store = stores.make()
    for _ in range(2):
        await error_of(ClosedError, store.count_jobs())
        await store.open()
        await store.count_jobs()
        await store.aclose()


@case()
async def of_open_chains_the_status_alone(stores: Stores) -> None:
    """``closed_chains`` answers in the order asked: what closed, the status of what is open, None for what is not."""
    store = await stores.open()
    [held, other, failed] = await started_and_claimed(store, 3)
    await store.finish([go_on(other, job(id="later"))])
    await store.finish([complete(held), fail(failed)])
    requested = [other.id, held.id, "later", failed.id, "unknown", held.id]
    records = await store.get_chains([held.id, failed.id])
    expected = [ChainStatus.OPEN, records[0], None, records[1], None, records[0]]
    assert await store.closed_chains(requested) == expected
    assert await store.closed_chains([]) == []


@case()
async def where_chains_are(stores: Stores) -> None:
    """``get_chain_states`` answers in the order asked, of each chain what its last job is; None for what is not."""
    store = await stores.open()
    [held, other, failed] = await started_and_claimed(store, 3)
    await store.finish([go_on(other, job("later", id="later", run_at=due_later()))])
    await store.finish([complete(held), fail(failed)])
    [waiting] = await start(store, job(blockers=[other.id]))
    [due] = await start(store, job(run_at=after(seconds=0.02)))
    found = await store.get_chain_states([other.id, held.id, failed.id, waiting, "unknown", "later", held.id])
    shown = [one and (one.status, one.job_type, one.job_status, one.attempt, one.open_blockers) for one in found]
    done = (ChainStatus.COMPLETED, "work", JobStatus.COMPLETED, 1, 0)
    assert shown == [
        (ChainStatus.OPEN, "later", JobStatus.SCHEDULED, 0, 0), done,
        (ChainStatus.FAILED, "work", JobStatus.FAILED, 1, 0),
        (ChainStatus.OPEN, "work", JobStatus.BLOCKED, 0, 1), None, None, done,
    ]  # fmt: skip
    for state, tail in zip(found[:4], await store.get_jobs(["later", held.id, failed.id, waiting]), strict=True):
        assert state is not None
        assert tail is not None
        assert (state.job_id, state.scheduled_at, state.last_error) == (tail.id, tail.scheduled_at, tail.last_error)
    assert await store.get_chain_states([]) == []

    async def is_due() -> bool:
        [late] = await store.get_chain_states([due])
        return late is not None and late.job_status is JobStatus.READY

    await eventually(is_due)


@case()
async def progress_of_chains(stores: Stores) -> None:
    """``get_chain_states`` has the progress of the running attempt."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    progress = {"attempt": 1, "at": "2026-01-01T00:00:00+00:00", "done": 3, "message": "pages"}
    await store.renew([Renewal(held.lease, 30.0, json.dumps(progress))])
    [state] = await store.get_chain_states([held.id])
    [found] = await store.get_jobs([held.id])
    assert state is not None
    assert found is not None
    assert state.progress == found.progress
    assert state.progress is not None
    assert (state.job_status, state.progress.done, state.progress.message) == (JobStatus.RUNNING, 3, "pages")


@case()
async def closed_chains_in_portions(stores: Stores) -> None:
    """``closed_chains`` reads as many as fit into a portion, and one at least; of the others it says how they ended."""
    store = await stores.open()
    closed = await started_and_claimed(store, 3)
    [open_one] = await start(store, job())
    await store.finish([complete(one) for one in closed])
    left, read = [open_one, *(one.id for one in closed)], []
    while len(left) > 1:
        found = await store.closed_chains(left, portion=1)
        records = [one for one in found if isinstance(one, ChainRecord)]
        assert len(records) == 1
        assert found.count(ChainStatus.COMPLETED) == len(left) - 2
        assert found[0] is ChainStatus.OPEN
        read += records
        left.remove(records[0].id)
    assert sorted(one.id for one in read) == sorted(one.id for one in closed)
