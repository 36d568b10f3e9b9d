"""The fields of an attempt on the log records of the user's own code."""

from __future__ import annotations

import asyncio
import contextvars
import io
import logging
import logging.config
import threading
from collections.abc import Iterator

import pytest

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Processors
from queuert.observability.context import FIELDS, ContextFilter, bind, current
from queuert.observability.events import AttemptCompleted, Event
from queuert.state.sqlite import SQLiteState
from tests.support.running import UnrunAttempt
from tests.support.waiting import WAIT

LINE = "%(message)s|%(queuert_job_id)s|%(queuert_attempt)s|%(queuert_context)s"


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    """What the logger `tests.user` writes, set up as the documentation says."""
    stream = io.StringIO()
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"attempt": {"()": "queuert.observability.context.ContextFilter"}},
            "formatters": {"line": {"format": LINE}},
            "handlers": {
                "out": {
                    "class": "logging.StreamHandler",
                    "stream": stream,
                    "filters": ["attempt"],
                    "formatter": "line",
                }
            },
            "loggers": {"tests.user": {"handlers": ["out"], "level": "INFO", "propagate": False}},
        }
    )
    yield stream
    logging.getLogger("tests.user").handlers.clear()


def test_fields_are_on_records_inside_and_not_outside(output: io.StringIO) -> None:
    logger = logging.getLogger("tests.user.module")
    logger.info("before")
    with bind(UnrunAttempt()):
        logger.info("inside")
    logger.info("after")
    assert output.getvalue().splitlines() == [
        "before|None|None|",
        "inside|j|2| [queuert_worker=w queuert_job_id=j queuert_chain_id=c queuert_type=t queuert_attempt=2]",
        "after|None|None|",
    ]


def test_fields_cannot_forge_a_line(output: io.StringIO) -> None:
    with bind(UnrunAttempt(job_id="j\nforged", chain_id="\x1b[0m")):
        logging.getLogger("tests.user").info("inside")
    assert output.getvalue() == (
        "inside|j\\nforged|2| [queuert_worker=w queuert_job_id=j\\nforged queuert_chain_id=\\x1b[0m queuert_type=t"
        " queuert_attempt=2]\n"
    )


def test_what_a_record_has_it_keeps() -> None:
    record = logging.makeLogRecord({"msg": "an event", "queuert_job_id": "of the event"})
    with bind(UnrunAttempt(job_id="of the attempt")):
        assert ContextFilter().filter(record)
    assert vars(record)["queuert_job_id"] == "of the event"
    assert vars(record)["queuert_worker"] == "w"


def test_outside_of_an_attempt_the_fields_are_none_or_not_there() -> None:
    for empty, there in ((True, dict.fromkeys(FIELDS)), (False, {})):
        record = logging.makeLogRecord({"msg": "outside"})
        ContextFilter(empty=empty).filter(record)
        assert {name: value for name, value in vars(record).items() if name in FIELDS} == there
        assert vars(record)["queuert_context"] == ""
    with bind(UnrunAttempt()):
        record = logging.makeLogRecord({"msg": "inside"})
        ContextFilter(empty=False).filter(record)
    assert vars(record)["queuert_job_id"] == "j"


def test_current_is_what_is_bound() -> None:
    assert current() == {}
    with bind(UnrunAttempt()):
        assert tuple(current()) == FIELDS
        assert dict(current()) == dict(zip(FIELDS, ("w", "j", "c", "t", 2), strict=True))
        with bind(UnrunAttempt(job_id="other", attempt=1)):
            assert current()["queuert_job_id"] == "other"
        assert current()["queuert_job_id"] == "j"
    assert current() == {}


def test_it_ends_with_an_exception_too() -> None:
    with pytest.raises(RuntimeError), bind(UnrunAttempt()):
        raise RuntimeError
    assert current() == {}


async def test_tasks_side_by_side_have_their_own() -> None:
    together = asyncio.Barrier(3)

    async def attempt(number: int) -> object:
        with bind(UnrunAttempt(job_id=f"j{number}", attempt=number)):
            await together.wait()
            inner = await asyncio.to_thread(lambda: current()["queuert_job_id"])
            await together.wait()
            return inner, current()["queuert_job_id"]

    assert await asyncio.gather(*map(attempt, range(3))) == [(f"j{number}", f"j{number}") for number in range(3)]


def test_threads_have_them_with_a_copied_context() -> None:
    seen: list[object] = []
    with bind(UnrunAttempt()):
        context = contextvars.copy_context()
    threads = [
        threading.Thread(target=context.run, args=[lambda: seen.append(current().get("queuert_job_id"))]),
        threading.Thread(target=contextvars.Context().run, args=[lambda: seen.append(current().get("queuert_job_id"))]),
    ]
    for thread in threads:
        thread.start()
        thread.join()
    assert seen == ["j", None]


bound: contextvars.ContextVar[str | None] = contextvars.ContextVar("bound", default=None)


class Ends:
    """What the context had when the end of an attempt was emitted."""

    def __init__(self) -> None:
        self.found: list[tuple[str | None, object]] = []

    def emit(self, event: Event) -> None:
        """Called by the worker."""
        if isinstance(event, AttemptCompleted):
            self.found.append((bound.get(), current().get("queuert_job_id")))


@pytest.mark.parametrize("awaits", [False, True], ids=["", "awaits"])
@pytest.mark.parametrize("value", [None, "handler"])
@pytest.mark.parametrize("before", [None, "worker"])
async def test_the_end_of_an_attempt_is_emitted_in_its_context(
    before: str | None, value: str | None, awaits: bool
) -> None:
    """Whether or not its handler has bound anything, and whether the variable was bound before."""
    number = JobType("number", input=int, output=int)
    types = JobTypes(number)
    processors, ends = Processors(types), Ends()

    @processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> int:
        if awaits:
            await asyncio.sleep(0)
        if value is not None:
            bound.set(value)
        return attempt.input

    if before is not None:
        bound.set(before)
    async with AsyncClient(SQLiteState(), types, observability=ends) as client, InProcessWorker(client, processors):
        chains = [await client.start_chain(number, each, id=f"job {each}") for each in range(3)]
        for chain in chains:
            await chain.wait(WAIT)
    assert sorted(ends.found, key=str) == [(value or before, f"job {each}") for each in range(3)]
