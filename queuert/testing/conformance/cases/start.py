"""Starting jobs: what is written, all or none, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from queuert.errors import ChainNotFoundError, JobIdConflictError, UnsupportedConnectionError
from queuert.jobs import ChainStatus, JobStatus
from queuert.run_at import after, at
from queuert.state import AsyncStore
from queuert.state.types import NewJob, StartedJob
from queuert.testing.conformance.builders import (
    ask,
    claim_one,
    due_later,
    error_of,
    go_on,
    job,
    read,
    read_chain,
    start,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_MEGABYTE = 1024 * 1024


@case()
async def first_job_is_its_chain(stores: Stores) -> None:
    """A started job is the first of an open chain with its id and type, ready, without an attempt."""
    store = await stores.open()
    [id] = await start(store, job("work", input='{"n": 1}', priority=3))
    found = await read(store, id)
    assert (found.id, found.chain_id, found.chain_index, found.type) == (id, id, 0, "work")
    assert (found.status, found.attempt, found.priority, found.input) == (JobStatus.READY, 0, 3, {"n": 1})
    assert (found.holder, found.lease_expires_at, found.started_at, found.finished_at) == (None, None, None, None)
    assert (found.output, found.last_error, found.continued_by, found.open_blockers) == (None, None, None, 0)
    chain = await read_chain(store, id)
    assert (chain.id, chain.type, chain.status, chain.tail_type) == (id, "work", ChainStatus.OPEN, "work")
    assert (json.loads(chain.input), chain.output, chain.error, chain.closed_at) == ({"n": 1}, None, None, None)
    assert chain.created_at == found.created_at


@case()
async def results_in_the_order_requested(stores: Stores) -> None:
    """Started jobs are reported in the order in which they were given, whatever their ids, with what was written."""
    store = await stores.open()
    jobs = [job("odd" if number % 2 else "even", id=f"{number * 7919 % 50:02}") for number in range(50)]
    started = await store.start_jobs(jobs)
    assert [(one.id, one.type, one.status) for one in started] == [(one.id, one.type, JobStatus.READY) for one in jobs]
    found = await store.get_jobs([one.id for one in jobs])
    assert [one.created_at for one in started] == [one.created_at for one in found if one]


@case()
async def nothing_requested_nothing_written(stores: Stores) -> None:
    """An empty batch is an empty answer."""
    store = await stores.open()
    assert await store.start_jobs([]) == []
    assert list(await store.count_jobs()) == []


@case()
async def times_are_of_the_store_and_aware(stores: Stores) -> None:
    """Times have a time zone, and a job for now is due when it was created."""
    store = await stores.open()
    [started] = await store.start_jobs([job()])
    found = await read(store, started.id)
    assert started.created_at.utcoffset() == timedelta()
    assert abs(found.scheduled_at - found.created_at) < timedelta(minutes=1)


@case()
async def parts_are_one_start(stores: Stores) -> None:
    """What is started in parts is answered, and claimed, in the order given, whatever the parts are made of."""
    store = await stores.open()
    jobs = [job(input=f"{number}", attributes={"number": str(number)} if number == 7 else None) for number in range(60)]
    started = await store.start_pipelined([jobs[:5], jobs[5:35], [], jobs[35:]])
    assert [(one.id, one.type, one.status) for one in started] == [(one.id, "work", JobStatus.READY) for one in jobs]
    found = await store.get_jobs([one.id for one in jobs])
    assert [one.created_at for one in started] == [one.created_at for one in found if one]
    claimed = await store.claim(ask("work"))
    assert [one.input for one in claimed] == [one.input for one in jobs]


@case()
async def a_part_that_cannot_be_made_takes_all_back(stores: Stores) -> None:
    """What making a part raises is raised as it is; of the parts before it nothing stands, and the store goes on."""
    store = await stores.open()

    def parts() -> Iterator[list[NewJob]]:
        yield [job(id="first")]
        yield [job(id="second")]
        raise LookupError("no third")

    assert str(await error_of(LookupError, store.start_pipelined(parts()))) == "no third"
    assert await store.get_jobs(["first", "second"]) == [None, None]
    assert await store.start_pipelined([]) == []
    [started] = await store.start_pipelined([[job(id="first")]])
    assert (await read(store, started.id)).status is JobStatus.READY


@case()
async def existing_id_is_refused(stores: Stores) -> None:
    """A chosen id that exists is a JobIdConflictError that names it; nothing of the batch is written."""
    store = await stores.open()
    await start(store, job(id="taken", input="1"))
    conflict = await _conflict(store, [job(id="first"), job(id="taken", input="2"), job(id="last")])
    assert conflict.ids == ("taken",)
    assert await store.get_jobs(["first", "last"]) == [None, None]
    assert (await read(store, "taken")).input == 1


async def _conflict(store: AsyncStore, jobs: Sequence[NewJob]) -> JobIdConflictError:
    return await error_of(JobIdConflictError, store.start_jobs(jobs))


@case()
async def id_twice_in_a_batch_is_refused(stores: Stores) -> None:
    """One id twice in a batch is a conflict, and nothing is written."""
    store = await stores.open()
    await _conflict(store, [job(id="other"), job(id="twin"), job(id="twin")])
    assert await store.get_jobs(["other", "twin"]) == [None, None]


@case()
async def one_of_many_wins_an_id(stores: Stores) -> None:
    """Of eight that start a job with the same id at once, one does; the others are told of the conflict."""
    store, *others = await stores.open_many(8)
    answers = await asyncio.gather(
        *(one.start_jobs([job(id="one"), job(type=f"own{n}")]) for n, one in enumerate([store, *others])),
        return_exceptions=True,
    )
    assert sum(isinstance(answer, list) for answer in answers) == 1
    assert sum(isinstance(answer, JobIdConflictError) for answer in answers) == 7
    assert sum(one.count for one in await store.count_jobs()) == 2


@case()
async def id_of_a_continuation_is_taken_too(stores: Stores) -> None:
    """An id is unique among all jobs, the later ones of chains included."""
    store = await stores.open()
    await start(store, job())
    await store.finish([go_on(await claim_one(store), job(id="second"))])
    assert (await _conflict(store, [job(id="second")])).ids == ("second",)


@case()
async def scheduled_for_later(stores: Stores) -> None:
    """A job with a pause, or a moment in the future, is SCHEDULED for it."""
    store = await stores.open()
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)
    paused, dated = await store.start_jobs([job(run_at=after(hours=1)), job(run_at=at(moment))])
    assert (paused.status, dated.status) == (JobStatus.SCHEDULED, JobStatus.SCHEDULED)
    found = await read(store, paused.id)
    assert timedelta(minutes=59) < found.scheduled_at - found.created_at < timedelta(minutes=61)
    assert (await read(store, dated.id)).scheduled_at == moment


@case()
async def moment_in_the_past_means_now(stores: Stores) -> None:
    """A moment that has passed, and a pause of nothing, make a job READY, due from now on and not from long ago."""
    store = await stores.open()
    past = datetime(2001, 2, 3, tzinfo=UTC)
    started = await store.start_jobs([job(run_at=at(past)), job(run_at=after(seconds=0))])
    assert [one.status for one in started] == [JobStatus.READY, JobStatus.READY]
    assert (await read(store, started[0].id)).scheduled_at > datetime.now(UTC) - timedelta(days=1)


@case()
async def trace_context_is_kept(stores: Stores) -> None:
    """The trace context comes out as it went in, to whoever claims the job."""
    store = await stores.open()
    await start(store, job("traced", trace_context='00-"ab\\c"-01'), job("plain"))
    assert (await claim_one(store, "traced")).trace_context == '00-"ab\\c"-01'
    assert (await claim_one(store, "plain")).trace_context is None


@case()
async def unknown_blocker_is_refused(stores: Stores) -> None:
    """A blocker that does not exist is a ChainNotFoundError that names it; nothing of the batch is written."""
    store = await stores.open()
    await start(store, job(id="real"))
    requested = store.start_jobs([job(id="free"), job(id="waits", blockers=["real", "unreal"])])
    assert (await error_of(ChainNotFoundError, requested)).id == "unreal"
    assert await store.get_jobs(["free", "waits"]) == [None, None]


@case()
async def blockers_come_first(stores: Stores) -> None:
    """A job of the same batch does not exist yet; one that was started before does."""
    store = await stores.open()
    requested = store.start_jobs([job(id="first"), job(blockers=["first"])])
    assert (await error_of(ChainNotFoundError, requested)).id == "first"
    await start(store, job(id="first"))
    [started] = await store.start_jobs([job(blockers=["first"])])
    assert started.status is JobStatus.BLOCKED


@case()
async def later_job_of_a_chain_is_no_blocker(stores: Stores) -> None:
    """Blockers are chains: the id of a continuation names none."""
    store = await stores.open()
    await start(store, job())
    await store.finish([go_on(await claim_one(store), job(id="second"))])
    assert (await error_of(ChainNotFoundError, store.start_jobs([job(blockers=["second"])]))).id == "second"


@case()
async def ten_thousand_at_once(stores: Stores) -> None:
    """A batch of ten thousand is written whole and reported in order."""
    store = await stores.open()
    jobs = [job(f"type{number % 3}", input=str(number)) for number in range(10_000)]
    started = await store.start_jobs(jobs)
    assert [one.id for one in started] == [one.id for one in jobs]
    assert sum(one.count for one in await store.count_jobs()) == 10_000
    sample = await store.get_jobs([jobs[4321].id])
    assert [one.input for one in sample if one] == [4321]


@case()
async def many_megabytes_at_once(stores: Stores) -> None:
    """A batch of more than 32 MB of inputs is written whole, or, when its last id is taken, not at all."""
    store = await stores.open()
    text = json.dumps("x" * (2 * _MEGABYTE))
    await _all_or_none(store, [job(input=text) for _ in range(17)])


@case()
async def many_megabytes_beside_the_inputs(stores: Stores) -> None:
    """The same where the weight is in everything but the inputs."""
    store = await stores.open()
    await _all_or_none(store, [job(trace_context="x" * (2 * _MEGABYTE)) for _ in range(17)])


async def _all_or_none(store: AsyncStore, jobs: Sequence[NewJob]) -> list[StartedJob]:
    await start(store, job("other", id="taken"))
    await _conflict(store, [*jobs, job(id="taken")])
    assert sum(one.count for one in await store.count_jobs()) == 1
    started = await store.start_jobs(jobs)
    assert [one.id for one in started] == [one.id for one in jobs]
    assert sum(one.count for one in await store.count_jobs()) == 1 + len(jobs)
    return started


@case()
async def not_seen_by_other_types(stores: Stores) -> None:
    """Jobs are claimed by their own type's name only, prefixes and cases apart."""
    store = await stores.open()
    await start(store, job("mail"), job("Mail"), job("mail "), job("mailing", run_at=due_later()))
    claimed = await store.claim(ask("mail"))
    assert [one.type for one in claimed] == ["mail"]


@case()
async def no_connection_at_all(stores: Stores) -> None:
    """What is no connection of this store is refused by a typed error, and nothing is written."""
    store = await stores.open()
    for thing in (object(), "connection", 7):
        await error_of(UnsupportedConnectionError, store.start_jobs([job()], connection=thing))
    assert list(await store.count_jobs()) == []
