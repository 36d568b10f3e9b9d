"""What a handler may take, return and finish with, and what it may not."""

from __future__ import annotations

from typing import assert_type

from pydantic import BaseModel

from queuert import Attempt, Continues, JobType, JobTypes, NewChain, Outcome, Processors
from queuert.outcomes import ContinueWith
from queuert.worker import EarlierJob


class Resize(BaseModel):
    url: str


class Thumbnail(BaseModel):
    key: str


class Published(BaseModel):
    address: str


publish = JobType("publish", input=Thumbnail, output=Published)
resize = JobType("resize", input=Resize, continues_with=publish)
count = JobType("count", input=str, output=int)
processors = Processors(JobTypes(publish, resize, count))


@processors.handles(resize)
async def continues(attempt: Attempt[Resize, Published]) -> Outcome[Published]:
    assert_type(attempt.input, Resize)
    assert_type(attempt.continue_with(publish, Thumbnail(key="k")), ContinueWith[Published])
    if attempt.number == 1:
        return attempt.retry(after=5)
    if attempt.abort.reason:
        return attempt.cancel()
    if attempt.number == 9:
        return attempt.fail("enough")
    return attempt.continue_with(publish, Thumbnail(key="k"))


@processors.handles(resize)
async def continues_without_naming_the_result(attempt: Attempt[Resize]) -> Continues:
    assert_type(attempt.input, Resize)
    if attempt.number == 9:
        return attempt.fail("enough")
    return attempt.continue_with(publish, Thumbnail(key="k"))


@processors.handles(resize)
def continues_in_a_transaction(attempt: Attempt[Resize, Published]) -> Continues[Published]:
    with attempt.complete() as tx:
        return tx.finish(attempt.continue_with(publish, Thumbnail(key="k")))


@processors.handles(count)
def counts_without_naming_the_result(attempt: Attempt[str]) -> int:
    return len(attempt.input)


tree = JobType("tree", input=Resize, output=int, blockers=("tree", ...))


@processors.handles(tree)
async def waits_for_children_of_its_own_type(attempt: Attempt[Resize, int]) -> Outcome[int]:
    if not attempt.blockers:
        return attempt.wait_for(NewChain(tree, Resize(url="below")))
    assert_type(attempt.outputs_of(tree), list[int])
    return 1 + sum(attempt.outputs_of(tree))


@processors.handles(tree)
async def waits_for_children_with_another_input(attempt: Attempt[Resize, int]) -> Outcome[int]:
    return attempt.wait_for(NewChain(tree, Thumbnail(key="k")))  # expect: error


@processors.handles(publish)
def completes(attempt: Attempt[Thumbnail, Published]) -> Outcome[Published]:
    with attempt.complete() as tx:
        return tx.finish(Published(address=attempt.input.key))


@processors.handles(publish)
async def completes_async(attempt: Attempt[Thumbnail, Published]) -> Outcome[Published]:
    async with attempt.complete() as tx:
        return tx.finish(attempt.continue_with(publish, Thumbnail(key="again")))


@processors.handles(count)
def counts(attempt: Attempt[str, int]) -> int:
    return len(attempt.input)


async def wrong_output(attempt: Attempt[Thumbnail, Published]) -> Outcome[Published]:
    return Thumbnail(key="k")  # expect: error


async def wrong_continuation_input(attempt: Attempt[Resize, Published]) -> Outcome[Published]:
    return attempt.continue_with(publish, Resize(url="u"))  # expect: error


async def inherits(attempt: Attempt[Thumbnail, Published]) -> Outcome[Published]:
    if not attempt.blockers:
        return attempt.wait_for("id", inherit=["attributes", "limit_key", "priority"])
    return attempt.continue_with(publish, Thumbnail(key="k"), inherit=["limit_key"])


async def looks_back(attempt: Attempt[Thumbnail, Published]) -> Outcome[Published]:
    earlier = await attempt.read_earlier_jobs(limit=10)
    assert_type(earlier.get(resize), EarlierJob[Resize] | None)
    assert_type(earlier.get_all(resize), list[EarlierJob[Resize]])
    number: int = earlier.get_all(resize)[0].input  # expect: error
    return Published(address=str(number))


async def wrong_inheritance(attempt: Attempt[Thumbnail, Published]) -> Outcome[Published]:
    attempt.wait_for("id", inherit=["id"])  # expect: error
    return attempt.continue_with(publish, Thumbnail(key="k"), inherit=["attributes"])  # expect: error


async def wrong_continuation_result(attempt: Attempt[Resize, Published]) -> Outcome[Published]:
    return attempt.continue_with(count, "words")  # expect: error


async def wrong_output_of_a_type_that_continues(attempt: Attempt[Resize]) -> Continues:
    return Published(address="a")  # expect: error


async def wrong_next_input(attempt: Attempt[Resize]) -> Continues:
    return attempt.continue_with(publish, Resize(url="u"))  # expect: error


async def wrong_next_result(attempt: Attempt[Resize, Published]) -> Continues[Published]:
    return attempt.continue_with(count, "words")  # expect: error


@processors.handles(resize)  # expect: error
async def wrong_input_without_a_result(attempt: Attempt[Thumbnail]) -> Continues:
    return attempt.fail("never")


def wrong_finish(attempt: Attempt[Thumbnail, Published]) -> Outcome[Published]:
    with attempt.complete() as tx:
        return tx.finish(17)  # expect: error


@processors.handles(count)  # expect: error
def wrong_job_type(attempt: Attempt[Thumbnail, Published]) -> Outcome[Published]:
    return Published(address="a")


@processors.handles(publish)  # expect: error
def wrong_return(attempt: Attempt[Thumbnail, Published]) -> str:
    return "published"
