"""What a program sees of its chains: single ones, lists in pages, what waits for what, before and after workers ran."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queuert import Attempt, ChainStatus, JobStatus, NewChain, after
from queuert.errors import ChainNotFoundError, JobNotFoundError, JobTypeMismatchError
from tests.behaviours.support import CallerHarness
from tests.support.job_types import echo, first, last, middle, number, text, total


def ids(page: Any) -> list[str]:
    return [one.id for one in page]


async def pages(read: Callable[..., Awaitable[Any]], *which: Any, **requested: Any) -> list[list[str]]:
    """The ids of each page of two."""
    found: list[list[str]] = []
    cursor: str | None = None
    while True:
        page = await read(*which, limit=2, cursor=cursor, **requested)
        found.append(ids(page))
        cursor = page.next_cursor
        if cursor is None:
            return found
        assert len(found) < 100, "the pages never end"


async def started(caller_harness: CallerHarness, *names: str) -> None:
    """One chain after the other, so that their order is that of time."""
    for name in names:
        await caller_harness.caller.start_chain(number, 1, id=name)


async def went_through(caller_harness: CallerHarness) -> None:
    """A chain ``c`` of three jobs, and ``x`` of another type."""
    await caller_harness.caller.start_chain(first, 1, id="c")
    await caller_harness.caller.continue_chain("c", middle, 2, id="c2")
    await caller_harness.caller.continue_chain("c", last, 3, id="c3")
    await caller_harness.caller.start_chain(number, 1, id="x")


# --- one chain, one job -----------------------------------------------------------------------------------------------


async def test_nothing_is_there(caller_harness: CallerHarness) -> None:
    """A store without jobs: what is asked for by id is a typed error, and every list is empty."""
    with pytest.raises(ChainNotFoundError):
        await caller_harness.caller.get_chain("nowhere")
    with pytest.raises(JobNotFoundError):
        await caller_harness.caller.get_job("nowhere")
    assert await caller_harness.caller.get_chains([]) == []
    assert await caller_harness.caller.get_blockers("nowhere") == []
    for page in (
        await caller_harness.caller.list_chains(),
        await caller_harness.caller.list_jobs(),
        await caller_harness.caller.list_chain_jobs("nowhere"),
        await caller_harness.caller.list_dependents("nowhere"),
    ):
        assert (list(page), page.next_cursor) == ([], None)


async def test_a_chain_by_its_id(caller_harness: CallerHarness) -> None:
    """With and without its type, from the first job's data to the last job's result."""
    chain = await caller_harness.caller.start_chain(first, 1)
    for found in (
        await caller_harness.caller.get_chain(chain.id),
        await caller_harness.caller.get_chain(chain.id, first),
    ):
        assert (found.id, found.type, found.status, found.input) == (chain.id, "first", ChainStatus.OPEN, 1)
        assert (found.error, found.closed_at) == (None, None)
    await caller_harness.caller.continue_chain(chain, last, 9)
    await caller_harness.caller.complete_chain(chain, "over")
    closed = await caller_harness.caller.get_chain(chain.id, first)
    assert (closed.type, closed.input, closed.status) == ("first", 1, ChainStatus.COMPLETED)
    assert closed.closed_at >= closed.created_at
    assert await caller_harness.caller.result(closed) == "over"
    with pytest.raises(JobTypeMismatchError):
        await caller_harness.caller.get_chain(chain.id, last)


async def test_a_job_by_its_id(caller_harness: CallerHarness) -> None:
    await went_through(caller_harness)
    job = await caller_harness.caller.get_job("c2")
    assert (job.id, job.chain_id, job.chain_index, job.type, job.input) == ("c2", "c", 1, "middle", 2)
    assert (job.status, job.continued_by) == (JobStatus.CONTINUED, "c3")
    with pytest.raises(ChainNotFoundError):
        await caller_harness.caller.get_chain("c2")


async def test_several_chains_in_the_order_requested(caller_harness: CallerHarness) -> None:
    await started(caller_harness, "a", "b", "c")
    assert ids(await caller_harness.caller.get_chains(["c", "a"])) == ["c", "a"]
    with pytest.raises(ChainNotFoundError):
        await caller_harness.caller.get_chains(["c", "nowhere"])


# --- lists ------------------------------------------------------------------------------------------------------------


async def test_chains_in_pages_of_either_order(caller_harness: CallerHarness) -> None:
    await started(caller_harness, "a", "b", "c", "d", "e")
    assert await pages(caller_harness.caller.list_chains) == [["e", "d"], ["c", "b"], ["a"]]
    assert await pages(caller_harness.caller.list_chains, oldest_first=True) == [["a", "b"], ["c", "d"], ["e"]]


async def test_chains_by_type_and_status(caller_harness: CallerHarness) -> None:
    await went_through(caller_harness)
    await caller_harness.caller.start_chain(text, "a", id="t")
    await caller_harness.caller.complete_chain("x", 1)
    await caller_harness.caller.cancel_chain("t")
    listed: Callable[..., Awaitable[Any]] = caller_harness.caller.list_chains
    assert ids(await listed(job_types=[number])) == ["x"]
    assert ids(await listed(job_types=["first", text])) == ["t", "c"]
    assert ids(await listed(job_types=[last])) == [], "a chain is of its first job's type"
    assert ids(await listed(statuses=["open"])) == ["c"]
    assert ids(await listed(statuses=[ChainStatus.COMPLETED, ChainStatus.CANCELLED])) == ["t", "x"]
    assert ids(await listed(statuses=["failed"])) == []


async def test_jobs_in_pages_of_either_order(caller_harness: CallerHarness) -> None:
    await went_through(caller_harness)
    assert await pages(caller_harness.caller.list_jobs) == [["x", "c3"], ["c2", "c"]]
    assert await pages(caller_harness.caller.list_jobs, oldest_first=True) == [["c", "c2"], ["c3", "x"]]


async def test_jobs_by_type_and_status(caller_harness: CallerHarness) -> None:
    await went_through(caller_harness)
    await caller_harness.caller.start_chain(number, 1, id="later", run_at=after(hours=1))
    await caller_harness.caller.start_chain(total, "x", id="blocked", blockers=["x"])
    listed: Callable[..., Awaitable[Any]] = caller_harness.caller.list_jobs
    assert ids(await listed(job_types=[middle, "last"])) == ["c3", "c2"]
    assert ids(await listed(statuses=["continued"])) == ["c2", "c"]
    assert ids(await listed(statuses=[JobStatus.BLOCKED, JobStatus.SCHEDULED])) == ["blocked", "later"]
    assert ids(await listed(statuses=["ready"], job_types=[number])) == ["x"]


@pytest.mark.parametrize("what", ["list_chains", "list_jobs"])
async def test_a_span_of_time(caller_harness: CallerHarness, what: str) -> None:
    await started(caller_harness, "a", "b", "c")
    hour = timedelta(hours=1)
    for name, hours in (("a", 3), ("b", 2), ("c", 1)):
        caller_harness.rows(
            "update queuert.job set created_at = now() - %s * interval '1 hour' where id = %s",
            *(hours, name),
        )
    listed, now = getattr(caller_harness.caller, what), datetime.now(UTC)
    assert ids(await listed(since=now - 2.5 * hour)) == ["c", "b"]
    assert ids(await listed(before=now - 1.5 * hour)) == ["b", "a"]
    assert ids(await listed(since=now - 2.5 * hour, before=now - 1.5 * hour)) == ["b"]


async def test_fifty_to_a_page_unless_more_are_requested_for(caller_harness: CallerHarness) -> None:
    await caller_harness.caller.start_chains([NewChain(number, one) for one in range(51)])
    for listed in (caller_harness.caller.list_chains, caller_harness.caller.list_jobs):
        page = await listed()
        assert (len(page), page.next_cursor is not None) == (50, True)
        rest = await listed(cursor=page.next_cursor)
        assert (len(rest), rest.next_cursor) == (1, None)
        assert len(await listed(limit=51)) == 51


async def test_the_jobs_of_a_chain(caller_harness: CallerHarness) -> None:
    """By their index, first to last or back, in pages; those of no other chain."""
    await went_through(caller_harness)
    assert await pages(caller_harness.caller.list_chain_jobs, "c") == [["c", "c2"], ["c3"]]
    assert await pages(caller_harness.caller.list_chain_jobs, "c", oldest_first=False) == [["c3", "c2"], ["c"]]
    chain = await caller_harness.caller.get_chain("c")
    assert [job.chain_index for job in await caller_harness.caller.list_chain_jobs(chain)] == [0, 1, 2]


async def test_what_waits_for_a_chain(caller_harness: CallerHarness) -> None:
    """In pages of either order; jobs that have gone on are listed too."""
    await started(caller_harness, "blocker", "other")
    for name in ("w1", "w2", "w3"):
        await caller_harness.caller.start_chain(total, "x", id=name, blockers=["blocker"])
    await caller_harness.caller.start_chain(total, "x", id="w4", blockers=["other"])
    assert await pages(caller_harness.caller.list_dependents, "blocker") == [["w1", "w2"], ["w3"]]
    assert await pages(caller_harness.caller.list_dependents, "blocker", oldest_first=False) == [["w3", "w2"], ["w1"]]
    await caller_harness.caller.complete_chain("blocker", 1)
    assert [job.status for job in await caller_harness.caller.list_dependents("blocker")] == [JobStatus.READY] * 3
    assert ids(await caller_harness.caller.list_dependents("other")) == ["w4"]
    assert ids(await caller_harness.caller.list_dependents("w1")) == []


async def test_what_a_job_waits_for(caller_harness: CallerHarness) -> None:
    """In the order given, with the outputs of those that have closed, typed."""
    await started(caller_harness, "b", "a")
    chain = await caller_harness.caller.start_chain(total, "x", blockers=["b", "a"])
    assert [(one.chain_id, one.status) for one in await caller_harness.caller.get_blockers(chain.id)] == [
        ("b", ChainStatus.OPEN),
        ("a", ChainStatus.OPEN),
    ]
    await caller_harness.caller.complete_chain("a", 7)
    await caller_harness.caller.cancel_chain("b", reason="no use")
    [b, a] = await caller_harness.caller.get_blockers(chain.id)
    assert (a.type, a.status, a.output, a.error) == ("number", ChainStatus.COMPLETED, 7, None)
    assert (b.status, b.output) == (ChainStatus.CANCELLED, None)
    assert "no use" in b.error.message
    assert await caller_harness.caller.get_blockers("a") == []


# --- all of it together -----------------------------------------------------------------------------------------------


async def test_all_reads_agree_after_workers_ran(caller_harness: CallerHarness) -> None:
    async def goes_on(attempt: Attempt[int, str]) -> Any:
        return attempt.continue_with(last, attempt.input + 1, output=attempt.input)

    caller_harness.handles(middle, goes_on)
    caller_harness.handles(last, lambda attempt: f"ends with {attempt.input}")
    chain = await caller_harness.caller.start_chain(middle, 1)
    async with caller_harness.worker():
        assert await caller_harness.caller.result(chain) == "ends with 2"
    read = await caller_harness.caller.get_chain(chain.id)
    [listed] = await caller_harness.caller.list_chains()
    [one, two] = await caller_harness.caller.list_chain_jobs(chain)
    assert (listed.id, listed.status, listed.closed_at) == (read.id, ChainStatus.COMPLETED, read.closed_at)
    assert await caller_harness.caller.result(listed) == "ends with 2"
    assert [one, two] == [
        await caller_harness.caller.get_job(chain.id),
        await caller_harness.caller.get_job(one.continued_by),
    ]
    assert [two, one] == list(await caller_harness.caller.list_jobs())
    assert (one.status, one.output, one.attempt) == (JobStatus.CONTINUED, 1, 1)
    assert (two.status, two.output, two.last_error, two.lease_expires_at) == (
        JobStatus.COMPLETED,
        "ends with 2",
        None,
        None,
    )
    assert read.closed_at >= two.finished_at >= two.started_at >= one.finished_at
    counted = {(count.type, count.status): count.count for count in await caller_harness.caller.count_jobs()}
    assert counted == {("middle", JobStatus.CONTINUED): 1, ("last", JobStatus.COMPLETED): 1}


async def test_all_reads_agree_on_blockers(caller_harness: CallerHarness) -> None:
    caller_harness.handles(number, echo)
    caller_harness.handles(total, lambda attempt: sum(attempt.outputs_of(number)))
    await started(caller_harness, "a", "b")
    chain = await caller_harness.caller.start_chain(total, "x", id="w", blockers=["a", "b"])
    assert (await caller_harness.caller.get_job("w")).open_blockers == 2
    async with caller_harness.worker():
        assert await caller_harness.caller.result(chain) == 2
    assert [one.output for one in await caller_harness.caller.get_blockers("w")] == [1, 1]
    for blocker in ("a", "b"):
        [waited] = await caller_harness.caller.list_dependents(blocker)
        assert (waited.id, waited.status, waited.open_blockers) == ("w", JobStatus.COMPLETED, 0)
    assert ids(await caller_harness.caller.list_chains(statuses=["completed"], oldest_first=True)) == ["a", "b", "w"]
