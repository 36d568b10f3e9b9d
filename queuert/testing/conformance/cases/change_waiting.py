"""Another due time, priority or input, for jobs that wait and for chains that are retried."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from queuert.errors import ChainNotFoundError, ChainNotRetriableError, JobNotFoundError
from queuert.jobs import ChainStatus, JobStatus
from queuert.run_at import after, at
from queuert.state.types import InputEdit
from queuert.testing.conformance.builders import (
    ask,
    claim_one,
    complete,
    due_later,
    error_of,
    fail,
    go_on,
    job,
    read,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


@case()
async def waiting_jobs_get_another_due_time(stores: Stores) -> None:
    """A ready job is postponed, a scheduled one is brought forward, and both are claimed by the new times."""
    store = await stores.open()
    ready, later = await start(store, job(), job(run_at=due_later()))
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(days=400)
    [postponed] = await store.change_waiting_jobs([ready], run_at=at(moment))
    assert (postponed.written, postponed.previous_status, postponed.due_types) == (True, JobStatus.READY, ("work",))
    assert (await read(store, ready)).status is JobStatus.SCHEDULED
    assert (await read(store, ready)).scheduled_at == moment
    assert await store.claim(ask()) == []
    [forward] = await store.change_waiting_jobs([later], run_at=after())
    assert (forward.status, forward.previous_status) == (ChainStatus.OPEN, JobStatus.SCHEDULED)
    assert [one.id for one in await store.claim(ask())] == [later]


@case()
async def waiting_jobs_get_another_priority(stores: Stores) -> None:
    """The claim follows the new priorities, and nothing else of the jobs changes."""
    store = await stores.open()
    first, second, third = await start(store, job(priority=5), job(), job(run_at=due_later()))
    before = await read(store, third)
    results = await store.change_waiting_jobs([second, third], priority=9)
    assert [one.written for one in results] == [True, True]
    assert [one.id for one in await store.claim(ask())] == [second, first]
    changed = await read(store, third)
    assert (changed.priority, changed.scheduled_at, changed.status) == (9, before.scheduled_at, JobStatus.SCHEDULED)
    await store.change_waiting_jobs([third], priority=-3)
    assert (await read(store, third)).priority == -3


@case()
async def a_blocked_job_keeps_its_new_time_until_it_is_released(stores: Stores) -> None:
    """A blocked job stays blocked, and is scheduled for its new time when its blocker closes."""
    store = await stores.open()
    [blocker] = await start(store, job("other"))
    [id] = await start(store, job(blockers=[blocker]))
    [result] = await store.change_waiting_jobs([id], run_at=due_later(), priority=2)
    assert (result.written, result.previous_status, result.due_types) == (True, JobStatus.BLOCKED, ())
    assert (await read(store, id)).status is JobStatus.BLOCKED
    await store.finish([complete(await claim_one(store, "other"))])
    released = await read(store, id)
    assert (released.status, released.priority) == (JobStatus.SCHEDULED, 2)


@case()
async def running_and_closed_chains_are_not_changed(stores: Stores) -> None:
    """What runs or is closed stays as it is, in one call with what is changed; an unknown chain refuses all."""
    store = await stores.open()
    running, done = await started_and_claimed(store, 2)
    await store.finish([complete(done)])
    [waiting] = await start(store, job())
    assert await store.change_waiting_jobs([]) == []
    error = await error_of(ChainNotFoundError, store.change_waiting_jobs([waiting, "nowhere"], priority=1))
    assert error.id == "nowhere"
    assert (await read(store, waiting)).priority == 0
    results = await store.change_waiting_jobs([running.id, waiting, done.id, waiting], priority=1)
    assert [one.written for one in results] == [False, True, False, True]
    assert [one.status for one in results[:3]] == [ChainStatus.OPEN, ChainStatus.OPEN, ChainStatus.COMPLETED]
    assert (await read(store, running.id)).priority == 0
    assert [one.written for one in await store.finish([complete(running)])] == [True]


@case()
async def the_last_job_of_a_chain_is_changed(stores: Stores) -> None:
    """The id is that of the chain; the job that is changed is its last one."""
    store = await stores.open()
    [first] = await started_and_claimed(store)
    await store.finish([go_on(first, job("other", id="next"))])
    [result] = await store.change_waiting_jobs([first.id], priority=4)
    assert (result.chain_id, result.job_id, result.job_type) == (first.id, "next", "other")
    assert (await read(store, "next")).priority == 4


@case()
async def a_retry_with_another_input(stores: Stores) -> None:
    """The last job runs again with the new input; the other chains of the call keep theirs."""
    store = await stores.open()
    one, other = await started_and_claimed(store, 2)
    await store.finish([fail(one), fail(other)])
    await store.retry_chains([one.id, other.id], edit=InputEdit(other.id, '{"new": ["ä", 1]}'))
    inputs = {claimed.id: claimed.input for claimed in await store.claim(ask())}
    assert inputs[one.id] == one.input
    assert inputs[other.id].replace(" ", "") == '{"new":["ä",1]}'


@case()
async def an_edit_of_another_job_is_refused(stores: Stores) -> None:
    """If the job of the edit is not the last of one of the chains, or a chain is open, nothing is written."""
    store = await stores.open()
    failed, running = await started_and_claimed(store, 2)
    await store.finish([fail(failed)])
    edit = InputEdit("nowhere", "1")
    assert (await error_of(JobNotFoundError, store.retry_chains([failed.id], edit=edit))).id == "nowhere"
    await error_of(ChainNotRetriableError, store.retry_chains([running.id], edit=InputEdit(running.id, "1")))
    assert (await read(store, failed.id)).status is JobStatus.FAILED
    await store.retry_chains([failed.id])
    assert (await claim_one(store)).input == failed.input


@case()
async def a_waiting_job_gets_another_input(stores: Stores) -> None:
    """The next attempt gets it; due time, priority and the other chains of the call stay as they are."""
    store = await stores.open()
    [done] = await started_and_claimed(store)
    await store.finish([go_on(done, job("next", id="next", priority=3))])
    [other] = await start(store, job("next"))
    before = await read(store, "next")
    results = await store.change_waiting_jobs([done.id, other], edit=InputEdit("next", '{"new": 1}'))
    assert [one.written for one in results] == [True, True]
    after_edit = await read(store, "next")
    assert (after_edit.priority, after_edit.scheduled_at, after_edit.status) == (
        before.priority,
        before.scheduled_at,
        before.status,
    )
    inputs = {claimed.id: claimed.input.replace(" ", "") for claimed in await store.claim(ask("next"))}
    assert inputs == {"next": '{"new":1}', other: "{}"}


@case()
async def an_edit_of_what_does_not_wait_changes_nothing(stores: Stores) -> None:
    """A running job keeps its input; an edit of a job that is not the last one is refused, and nothing is written."""
    store = await stores.open()
    [running] = await started_and_claimed(store)
    [waiting] = await start(store, job())
    [result] = await store.change_waiting_jobs([running.id], edit=InputEdit(running.id, '"new"'))
    assert not result.written
    assert (await read(store, running.id)).input == (await read(store, waiting)).input
    error = await error_of(JobNotFoundError, store.change_waiting_jobs([waiting], edit=InputEdit(running.id, "1")))
    assert error.id == running.id
    error = await error_of(
        JobNotFoundError, store.change_waiting_jobs([waiting], priority=5, edit=InputEdit("nowhere", "1"))
    )
    assert (error.id, (await read(store, waiting)).priority) == ("nowhere", 0)
