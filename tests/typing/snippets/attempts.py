"""What an attempt offers its handler: waiting, outputs of blockers, blocks, typed context; and middlewares."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, assert_type

from queuert import (
    Attempt,
    AttemptMiddleware,
    Client,
    InProcessWorker,
    JobType,
    JobTypes,
    Limits,
    NewChain,
    Outcome,
    Processors,
)
from queuert.outcomes import WaitFor
from queuert.worker import CallNext, ContextKey, GuardedTransaction, Transaction
from queuert.worker.start_options import StartOptions

page = JobType("page", input=int, output=str)
sheet = JobType("sheet", input=int, continues_with=page)
header = JobType("header", input=None, output=bytes)
book = JobType("book", input=str, output=int, blockers=(header, page, ...))
named = JobType("named", input=str, output=int, blockers=("header", page))
loop = JobType("loop", input=str, output=int, continues_with=("loop", page), blockers=())
job_types = JobTypes(page, sheet, header, book, named, loop)
processors = Processors(job_types)
TENANT = ContextKey[str]("tenant")

assert_type(book, JobType[str, int])
assert_type(named, JobType[str, int])
assert_type(loop, JobType[str, int | str])


@processors.handles(book, on_blocker_failure="run", limits=Limits(per_key=1))
async def joins(attempt: Attempt[str, int]) -> Outcome[int]:
    if not attempt.blockers:
        waiting = attempt.wait_for(NewChain(page, 1), NewChain(header, None), "id")
        assert_type(waiting, WaitFor)
        return waiting
    assert_type(attempt.outputs_of(page), list[str])
    assert_type(attempt.outputs_of(sheet), list[str])
    assert_type(attempt.output_of(header), bytes)
    assert_type(attempt.output_of(loop), int | str)
    return len(attempt.output_of(header))


def number() -> int:
    return 1


async def text(tx: GuardedTransaction, part: bytes) -> str:
    return part.decode()


@processors.handles(page)
async def awaits(attempt: Attempt[int, str]) -> Outcome[str]:
    assert_type(await attempt.step("number", number), int)
    assert_type(await attempt.step_transaction("text", text, b"x"), str)
    assert_type(await attempt.phase("number", number), int)
    assert_type(await attempt.wait_for_event("go", bytes, 5.0), bytes)
    assert_type(await attempt.read_start(), StartOptions)
    attempt.step("number", number)  # expect: error
    attempt.step_transaction("text", text, b"x")  # expect: error
    attempt.phase("number", number)  # expect: error
    attempt.sleep("pause", 5.0)  # expect: error
    attempt.wait_for_event("go", bytes, 5.0)  # expect: error
    attempt.read_start()  # expect: error
    attempt.read_earlier_jobs()  # expect: error
    attempt.abort.wait()  # expect: error
    return await attempt.step_transaction("text", text, "x")  # expect: error


@processors.handles(named)
def joins_in_a_transaction(attempt: Attempt[str, int]) -> Outcome[int]:
    with attempt.prepare() as first:
        assert_type(first, GuardedTransaction)
    with attempt.transaction() as note:
        assert_type(note, GuardedTransaction)
    with attempt.complete() as tx:
        assert_type(tx, Transaction[int])
        return tx.finish(attempt.wait_for(NewChain(page, 1)))


@processors.handles(sheet)
async def keeps(attempt: Attempt[int, str]) -> Outcome[str]:
    async with attempt.prepare() as first:
        assert_type(first, GuardedTransaction)
    return attempt.continue_with(page, attempt.input, output={"kept": 1}, limit_key="key")


class Tenancy(AttemptMiddleware):
    async def around_handler(self, attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        attempt.context.set(TENANT, "acme")
        return await call_next()

    @asynccontextmanager
    async def around_complete(self, attempt: Attempt[Any, Any], tx: Transaction[Any]) -> AsyncIterator[None]:
        assert_type(attempt.context[TENANT], str)
        assert_type(attempt.context.get(TENANT), str | None)
        assert_type(attempt.context.get(TENANT, 5), str | int)
        yield

    @contextmanager
    def around_complete_sync(self, attempt: Attempt[Any, Any], tx: Transaction[Any]) -> Iterator[None]:
        yield


async def function(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
    return await call_next()


def worker(client: Client) -> InProcessWorker:
    tenancy = Tenancy()
    group = Processors(job_types, middlewares=[tenancy, function])
    return InProcessWorker(client, group, required_middlewares=[tenancy])


async def wrong_wait(attempt: Attempt[str, int]) -> Outcome[int]:
    return attempt.wait_for(17)  # expect: error


async def wrong_waiting_input(attempt: Attempt[str, int]) -> Outcome[int]:
    return attempt.wait_for(NewChain(page, "one"))  # expect: error


async def wrong_output(attempt: Attempt[str, int]) -> Outcome[int]:
    return attempt.output_of(page)  # expect: error


async def wrong_outputs(attempt: Attempt[str, int]) -> Outcome[int]:
    return sum(attempt.outputs_of(page))  # expect: error


async def wrong_outputs_type(attempt: Attempt[str, int]) -> Outcome[int]:
    return len(attempt.outputs_of("page"))  # expect: error


def wrong_finish_in_prepare(attempt: Attempt[str, int]) -> Outcome[int]:
    with attempt.prepare() as tx:
        return tx.finish(6)  # expect: error


def wrong_value(attempt: Attempt[str, int]) -> None:
    attempt.context.set(TENANT, 5)  # expect: error
    tenant: int = attempt.context[TENANT]  # expect: error
    del tenant


def wrong_middleware(attempt: Attempt[Any, Any]) -> None: ...


JobType("list", input=str, output=int, blockers=[page])  # expect: error
JobType("one", input=str, output=int, blockers=page)  # expect: error
JobType("number", input=str, output=int, blockers=(3,))  # expect: error
Processors(job_types, middlewares=[wrong_middleware])  # expect: error
Processors(job_types, middlewares=[Tenancy])  # expect: error
processors.handles(page, on_blocker_failure="stop")  # expect: error
processors.handles(page, limits=3)  # expect: error
