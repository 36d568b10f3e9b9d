"""Schedules that the code of a worker owns: stored when it starts, and removed when the code has them no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from queuert import AsyncClient, JobType, JobTypes
from queuert.errors import (
    ConfigurationError,
    DefinitionError,
    InvalidIdentifierError,
    ScheduleOwnerError,
    UnknownJobTypeError,
)
from queuert.notify import InProcessNotify
from queuert.observability.events import SchedulesRemoved, WorkerStarted
from queuert.schedules import RecurringSchedule
from queuert.state.adapter import StateAdapter
from queuert.worker import InProcessWorker, Processors
from tests.support.harness import Harness
from tests.support.job_types import JOB_TYPES, echo, number, text
from tests.support.waiting import WAIT

FAR = 86_400.0 * 300


def far(name: str, job_type: JobType[Any, Any] = number, **more: Any) -> RecurringSchedule:
    """A schedule that does not tick while a test runs."""
    return RecurringSchedule(name, job_type, 1 if job_type is number else "a", every=FAR, **more)


@pytest.fixture
async def harness(state: StateAdapter) -> AsyncIterator[Harness]:
    """A client, and workers that report what they do."""
    harness = Harness(state, notify=InProcessNotify())
    yield harness
    await harness.close()


def group(*schedules: RecurringSchedule, owner: str | None = "app", types: tuple[Any, ...] = (number,)) -> Processors:
    """Processors with handlers of these types, whose schedules are these."""
    processors = Processors(JOB_TYPES, schedules=schedules, schedule_owner=owner)
    for job_type in types:
        processors.handles(job_type)(echo)
    return processors


async def run(harness: Harness, *groups: Processors, **settings: Any) -> dict[str, str | None]:
    """Start and stop a worker of these processors; return the owners of all schedules, by name."""
    async with harness.worker(list(groups), **settings):
        pass
    return {one.name: one.owner for one in await harness.client.list_schedules()}


async def test_schedules_that_left_the_code_are_removed(harness: Harness) -> None:
    """A worker stores what its code has, and removes what its owner had; others keep theirs. The log says so."""
    await harness.client.put_schedules([far("free")])
    await harness.client.put_schedules([far("theirs")], owner="other")
    others = {"free": None, "theirs": "other"}
    assert await run(harness, group(far("a"), far("b"))) == {"a": "app", "b": "app", **others}
    assert harness.log.of(SchedulesRemoved) == []
    assert await run(harness, group(far("b"), far("c"))) == {"b": "app", "c": "app", **others}
    [removed] = harness.log.of(SchedulesRemoved)
    assert (removed.owner, removed.schedules) == ("app", ("a",))
    assert removed.worker == harness.log.of(WorkerStarted)[-1].worker
    assert await run(harness, group()) == others
    assert harness.log.of(SchedulesRemoved)[-1].schedules == ("b", "c")


async def test_schedules_are_kept_on_request(harness: Harness) -> None:
    """With keep_schedules nothing is removed."""
    await run(harness, group(far("a")))
    assert await run(harness, group(far("b")), keep_schedules=True) == {"a": "app", "b": "app"}
    assert harness.log.of(SchedulesRemoved) == []


async def test_a_deployed_schedule_keeps_its_pause_and_tick(harness: Harness) -> None:
    """What the code still has is not touched by another start."""
    await run(harness, group(far("a")))
    await harness.client.pause_schedules(["a"])
    [before] = await harness.client.list_schedules()
    await run(harness, group(far("a")))
    assert await harness.client.list_schedules() == [before]


async def test_old_code_beside_new_code_writes_only_when_it_starts(harness: Harness) -> None:
    """In a rolling upgrade the worker that started last decides; running ones of the old code write nothing."""
    async with harness.worker(group(far("old"))):
        assert await run(harness, group(far("new"))) == {"new": "app"}
        assert {one.name for one in await harness.client.list_schedules()} == {"new"}
    assert {one.name for one in await harness.client.list_schedules()} == {"new"}
    assert await run(harness, group(far("old"))) == {"old": "app"}


async def test_schedules_of_types_that_other_workers_handle_are_kept(harness: Harness) -> None:
    """Two workers of one code share an owner: each removes only schedules of its own job types, or unknown ones."""
    numbers, texts = group(far("n"), types=(number,)), group(far("t", text), types=(text,))
    assert await run(harness, numbers) == {"n": "app"}
    assert await run(harness, texts) == {"n": "app", "t": "app"}
    assert await run(harness, group(types=(number,))) == {"t": "app"}
    whole = group(far("n"), far("t", text), types=(number, text))
    assert await run(harness, whole, types=[number]) == {"n": "app", "t": "app"}


async def test_schedules_of_types_that_left_the_code_are_removed(harness: Harness) -> None:
    """A job type that the code does not know any more is handled by no worker of this code."""
    gone = JobType("gone", input=int, output=int)
    async with AsyncClient(harness.state, JobTypes(gone), notify=InProcessNotify()) as before:
        await before.put_schedules([RecurringSchedule("of gone", gone, 1, every=FAR)], owner="app")
    assert await run(harness, group(far("n"))) == {"n": "app"}


async def test_a_schedule_of_another_owner_stops_the_start(harness: Harness) -> None:
    """Neither replaced nor ignored: the error names both owners, and nothing is written."""
    await harness.client.put_schedules([far("mine")], owner="other")
    with pytest.raises(ScheduleOwnerError, match="belongs, got the owner 'app': choose another name, or delete it"):
        await run(harness, group(far("a"), far("mine")))
    assert {one.name: one.owner for one in await harness.client.list_schedules()} == {"mine": "other"}
    await harness.client.delete_schedules(["mine"])
    assert await run(harness, group(far("mine"))) == {"mine": "app"}


async def test_a_client_replaces_schedules_only_as_their_owner(harness: Harness) -> None:
    """put_schedules without an owner does not replace those of code."""
    await run(harness, group(far("a")))
    with pytest.raises(ScheduleOwnerError, match="to which it belongs, got no owner"):
        await harness.client.put_schedules([far("a", priority=3)])
    await harness.client.put_schedules([far("a", priority=3)], owner="app")
    [found] = await harness.client.list_schedules()
    assert (found.owner, found.priority) == ("app", 3)


async def test_owners_by_default(harness: Harness) -> None:
    """The module that makes the processors; for schedules of the worker, the owner of its first processors."""
    assert group(owner=None).schedule_owner == __name__
    found = await run(harness, group(far("a"), owner=None), schedules=[far("b")])
    assert found == {"a": __name__, "b": __name__}
    found = await run(harness, group(far("a"), owner=None), schedules=[far("c")], schedule_owner="mine")
    assert found == {"a": __name__, "c": "mine"}


def test_schedules_that_make_no_sense_are_refused(harness: Harness) -> None:
    """Two of one name, in one group or several; types that are not known; an owner that cannot be stored."""
    with pytest.raises(ConfigurationError, match="must be unique, got 'a' twice"):
        group(far("a"), far("a"))
    with pytest.raises(ConfigurationError, match="must be unique, got 'a' twice"):
        harness.worker([group(far("a")), group(far("a"), types=(text,))])
    with pytest.raises(ConfigurationError, match="must be unique, got 'a' twice"):
        harness.worker(group(far("a")), schedules=[far("a")])
    with pytest.raises(ConfigurationError, match="must be RecurringSchedule"):
        Processors(JOB_TYPES, schedules=["nightly"])  # type: ignore[list-item]
    with pytest.raises(UnknownJobTypeError):
        Processors(JobTypes(text), schedules=[far("a")])
    for owner in ("", "x" * 201):
        with pytest.raises(InvalidIdentifierError, match="owner"):
            group(owner=owner)


# --- settings of a worker that exists ---------------------------------------------------------------------------------


def test_a_worker_with_other_settings(harness: Harness) -> None:
    """The new worker has the settings that were given, and the others of the first one."""
    first = InProcessWorker(harness.client, group(far("a")), name="first", concurrency=3, shutdown_timeout=7)
    second = first.with_settings(concurrency=5)
    assert second is not first
    assert {**second._settings, "concurrency": 3} == first._settings
    assert (second.name, second._concurrency, first._concurrency) == ("first", 5, 3)
    with pytest.raises(ConfigurationError, match="concurrency must be an integer between 1 and"):
        first.with_settings(concurrency=0)


def test_types_of_a_worker(harness: Harness) -> None:
    """A worker handles the types that it is given, less those excluded; all must have a handler."""
    both = group(types=(number, text))
    assert set(harness.worker(both)._processors) == {"number", "text"}
    assert set(harness.worker(both, types=["text"])._processors) == {"text"}
    assert set(harness.worker(both, exclude_types=[text])._processors) == {"number"}
    with pytest.raises(
        DefinitionError, match="must have handlers, got 'nubmer'; those with handlers: 'number', 'text'"
    ):
        harness.worker(both, types=["nubmer"])
    with pytest.raises(DefinitionError, match="leave none"):
        harness.worker(both, types=["text"], exclude_types=["text"])


async def test_a_schedule_of_a_type_that_clients_complete(state: StateAdapter) -> None:
    """A worker that knows the type fires it, and removes it when the code has it no more."""
    approve = JobType("approve", input=int, output=int, completed_by="client")
    job_types = JobTypes(number, approve)
    handled = Processors(job_types, schedules=[RecurringSchedule("ask", approve, 1, every=1)], schedule_owner="app")
    handled.handles(number)(echo)
    async with AsyncClient(state, job_types, notify=InProcessNotify()) as client:
        async with InProcessWorker(client, handled):
            async with asyncio.timeout(WAIT):
                while not (page := await client.list_chains(job_types=[approve])).items:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert await client.list_workers() != []
        await client.complete_chain(page.items[-1].id, 2)
        left = Processors(job_types, schedule_owner="app")
        left.handles(number)(echo)
        async with InProcessWorker(client, left):
            assert await client.list_schedules() == []
