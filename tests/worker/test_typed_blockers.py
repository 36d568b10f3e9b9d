"""`JobType(..., blockers=...)`: what chains a job waits for, by their types; and the typed outputs of them."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator
from typing import Any

import pytest

from queuert import AsyncClient, Attempt, InProcessWorker, JobStatus, JobType, JobTypes, NewChain, Outcome, Processors
from queuert.errors import BlockerMismatchError, DefinitionError
from queuert.observability.events import AttemptRetried
from tests.support.harness import PostgresHarness
from tests.support.job_types import echo
from tests.support.waiting import WAIT

page = JobType("page", input=int, output=int)
header = JobType("header", input=str, output=str)
footer = JobType("footer", input=str, continues_with=header)
letter = JobType("letter", input=str, output=str, blockers=(header, "footer"))
book = JobType("book", input=str, output=str, blockers=(header, page, ...))
pages = JobType("pages", input=str, output=str, blockers=(page, ...))
alone = JobType("alone", input=str, output=str, blockers=())
begin = JobType("begin", input=str, continues_with=(letter, pages))
TYPES = JobTypes(page, header, footer, letter, book, pages, alone, begin)


class Desk:
    """A client that knows these types, and a worker with handlers that tell what they waited for."""

    def __init__(self, harness: PostgresHarness) -> None:
        self.harness = harness
        self.client = AsyncClient(harness.state, TYPES, observability=harness.log)
        self.processors = Processors(TYPES)
        self.processors.handles(page)(echo)
        self.processors.handles(header)(echo)
        self.processors.handles(footer)(lambda attempt: attempt.continue_with(header, f"({attempt.input})"))
        for joined in (letter, book, pages, alone):
            self.processors.handles(joined)(lambda attempt: str([one.output for one in attempt.blockers]))

    def worker(self) -> InProcessWorker:
        worker = InProcessWorker(self.client, self.processors, concurrency=4)
        self.harness.workers.append(worker)
        return worker

    async def start(self, *kinds: str) -> list[Any]:
        new: dict[str, Any] = {"h": (header, "h"), "f": (footer, "f"), "p": (page, 1)}
        return await self.client.start_chains([NewChain(*new[kind]) for kind in kinds])


@pytest.fixture
async def desk(harness: PostgresHarness) -> AsyncIterator[Desk]:
    desk = Desk(harness)
    yield desk
    for worker in harness.workers:
        await worker.stop(shutdown_timeout=0)
    await desk.client.aclose()


FITS = [(letter, "hf"), (book, "h"), (book, "hp"), (book, "hppp"), (pages, ""), (pages, "ppp"), (alone, "")]
MISFITS = [
    *[(letter, kinds) for kinds in ("", "h", "fh", "hff", "hh", "ph")],
    *[(book, kinds) for kinds in ("", "p", "hh", "hph", "ph")],
    *[(pages, "h"), (pages, "pph"), (alone, "p")],
]


@pytest.mark.parametrize(("job_type", "kinds"), FITS, ids=lambda one: getattr(one, "name", one))
async def test_what_fits_is_run(desk: Desk, job_type: JobType[str, str], kinds: str) -> None:
    outputs = {"h": "h", "f": "(f)", "p": 1}
    async with desk.worker():
        chain = await desk.client.start_chain(job_type, "x", blockers=await desk.start(*kinds))
        assert await chain.result(WAIT) == str([outputs[kind] for kind in kinds])


@pytest.mark.parametrize(("job_type", "kinds"), MISFITS, ids=lambda one: getattr(one, "name", one))
async def test_what_does_not_is_refused_before_anything_is_written(
    desk: Desk, job_type: JobType[str, str], kinds: str
) -> None:
    chains = await desk.start(*kinds)
    with pytest.raises(BlockerMismatchError, match=job_type.name):
        await desk.client.start_chain(job_type, "x", blockers=chains)
    with pytest.raises(BlockerMismatchError):
        await desk.client.start_chains([NewChain(page, 1), NewChain(job_type, "x", blockers=chains)])
    assert desk.harness.one("select count(*) from queuert.job") == len(kinds)


@pytest.mark.parametrize("kinds", ["fh", "hp"])
async def test_plain_ids_are_looked_at_when_the_handler_begins(desk: Desk, kinds: str) -> None:
    ran: list[str] = []

    def handler(attempt: Attempt[str, str]) -> Outcome[str]:
        ran.append(attempt.job_id)
        return "x"

    others = Processors(TYPES)
    others.handles(letter)(handler)
    chains = await desk.start(*kinds)
    chain = await desk.client.start_chain(letter, "x", blockers=[one.id for one in chains])
    async with desk.worker():
        await desk.client.wait(chains, timeout=WAIT)
        await desk.harness.log.wait_for(AttemptRetried, job_id=chain.id)
    job = await desk.client.get_job(chain.id)
    assert (job.status, job.attempt) == (JobStatus.SCHEDULED, 1)
    assert job.last_error is not None
    assert job.last_error.type == "queuert.errors.BlockerMismatchError"
    assert ran == []


async def test_too_few_plain_ids_are_refused_at_once(desk: Desk) -> None:
    with pytest.raises(BlockerMismatchError, match="got 1"):
        await desk.client.start_chain(letter, "x", blockers=["one"])


@pytest.mark.parametrize("kinds", ["hf", "h"])
async def test_continuations_are_looked_at_too(desk: Desk, kinds: str) -> None:
    async def handler(attempt: Attempt[str, str]) -> Outcome[str]:
        chains = await desk.start(*kinds)
        if kinds == "hf":
            return attempt.continue_with(letter, "x", blockers=chains)
        with pytest.raises(BlockerMismatchError):
            attempt.continue_with(letter, "x", blockers=chains)
        return attempt.cancel("refused")

    desk.processors.handles(begin)(handler)
    async with desk.worker():
        chain = await (await desk.client.start_chain(begin, "x")).wait(WAIT)
    assert chain.status == ("completed" if kinds == "hf" else "cancelled")


async def test_waiting_is_held_to_the_declaration(desk: Desk) -> None:
    processors = Processors(TYPES)

    async def handler(attempt: Attempt[str, str]) -> Outcome[str]:
        if not attempt.blockers:
            for wrong in (NewChain(header, "h"), NewChain(letter, "l")):
                with pytest.raises(BlockerMismatchError):
                    attempt.wait_for(NewChain(page, 1), wrong)
            return attempt.wait_for(NewChain(page, 1), NewChain(page, 2))
        return str(attempt.outputs_of(page))

    processors.handles(page)(echo)
    processors.handles(pages)(handler)
    desk.processors = processors
    async with desk.worker():
        assert await (await desk.client.start_chain(pages, "x")).result(WAIT) == "[1, 2]"


async def test_outputs_are_reported_apart_by_the_type_that_the_chain_began_with(desk: Desk) -> None:
    seen: list[Any] = []
    joining = JobType("joining", input=str, output=str)
    types = JobTypes(TYPES, joining)

    def handler(attempt: Attempt[str, str]) -> Outcome[str]:
        seen.append((attempt.outputs_of(page), attempt.output_of(footer), attempt.output_of(header)))
        assert attempt.outputs_of(letter) == []
        for wrong in (page, letter):
            with pytest.raises(BlockerMismatchError, match=wrong.name):
                attempt.output_of(wrong)
        return "x"

    processors = Processors(types)
    processors.handles(joining)(handler)
    chains = await desk.start("p", "f", "h", "p")
    async with desk.worker(), AsyncClient(desk.harness.state, types) as client, InProcessWorker(client, processors):
        chain = await client.start_chain(joining, "x", blockers=chains)
        await chain.result(WAIT)
    assert seen == [([1, 1], "(f)", "h")]


# --- the declaration --------------------------------------------------------------------------------------------------

WRONG: list[Any] = [
    "page",
    page,
    [page],
    (...,),
    (..., page),
    (page, ..., ...),
    (page, ..., header),
    (page, 3),
    ("no name",),
    (None,),
]


@pytest.mark.parametrize("blockers", WRONG, ids=repr)
def test_nonsense_is_refused(blockers: Any) -> None:
    with pytest.raises(DefinitionError):
        JobType("wrong", input=int, output=int, blockers=blockers)


def test_types_of_other_programs_may_be_named() -> None:
    elsewhere = JobType("elsewhere", input=int, output=int)
    declared = JobType("declared", input=int, output=int, blockers=(elsewhere, "or by name"[:2]))
    assert JobTypes(declared)["declared"] is declared


@pytest.mark.parametrize("job_type", [letter, book, alone, page], ids=lambda one: one.name)
def test_it_travels_with_the_job_type(job_type: JobType[Any, Any]) -> None:
    assert pickle.loads(pickle.dumps(job_type)).blockers == job_type.blockers


def test_the_error_travels_too() -> None:
    error = BlockerMismatchError("a reason")
    assert str(pickle.loads(pickle.dumps(error))) == "a reason"
