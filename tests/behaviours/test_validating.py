"""What fits its declaration goes through; what does not is refused at the door, in the client and in the worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field

from queuert import (
    AsyncClient,
    Attempt,
    InProcessWorker,
    JobStatus,
    JobType,
    JobTypes,
    NewChain,
    Processors,
    RetryPolicy,
)
from queuert.errors import (
    DuplicateJobTypeError,
    JobFailedError,
    PayloadError,
    UndeclaredContinuationError,
    UnknownJobTypeError,
)
from queuert.notify.in_process import InProcessNotify
from tests.behaviours.support import Caller, CallerHarness
from tests.support.waiting import WAIT


class Address(BaseModel):
    street: str
    zip: str = Field(pattern=r"^\d{5}$")


class Letter(BaseModel):
    to: Address
    pages: int = Field(ge=1)


class Receipt(BaseModel):
    number: int


deliver = JobType("deliver", input=Letter, output=Receipt)
weigh: JobType[Letter, Receipt] = JobType("weigh", input=Letter, output=Receipt, continues_with=deliver)
burn = JobType("burn", input=Letter, output=Receipt)
LETTERS = JobTypes(weigh, deliver, burn)
HOME = Address(street="High Street", zip="12345")
GOOD = Letter(to=HOME, pages=2)
BAD = Letter.model_construct(to=Address.model_construct(street="x", zip="not a zip"), pages=0)


class Office:
    """A caller for letters, and one attempt of what a handler makes of them."""

    def __init__(self, caller_harness: CallerHarness, mode: Any) -> None:
        self._world = caller_harness
        self._notifications = InProcessNotify()
        self.caller = Caller(
            mode(caller_harness.state, LETTERS, notify=self._notifications, observability=caller_harness.log),
            caller_harness.dsn,
        )

    async def after_one_attempt(self, handler: Callable[[Attempt[Any, Any]], Any], start: NewChain[Any]) -> Any:
        """The chain, when its first job has failed or all is done."""
        processors = Processors(LETTERS, retry=RetryPolicy(max_attempts=1))
        processors.handles(weigh)(handler)
        processors.handles(deliver)(lambda attempt: Receipt(number=attempt.input.pages))
        client = AsyncClient(self._world.state, LETTERS, notify=self._notifications, observability=self._world.log)
        [chain] = await self.caller.start_chains([start])
        async with client, InProcessWorker(client, processors):
            return await self.caller.closed(chain)


@pytest.fixture
async def office(caller_harness: CallerHarness, mode: Any) -> Any:
    office = Office(caller_harness, mode)
    yield office
    await office.caller.close()


# --- at the start -----------------------------------------------------------------------------------------------------


async def test_inputs_are_checked_and_come_back_as_models(office: Office) -> None:
    chain = await office.caller.start_chain(deliver, GOOD)
    read = await office.caller.get_chain(chain.id, deliver)
    assert read.input == GOOD
    given: Any = {"to": {"street": "x", "zip": "54321"}, "pages": 1}
    read = await office.caller.get_chain((await office.caller.start_chain(deliver, given)).id)
    assert read.input == Letter(to=Address(street="x", zip="54321"), pages=1)


async def test_inputs_that_do_not_fit_are_refused_with_their_place(office: Office) -> None:
    wrongs: list[tuple[Any, str]] = [
        (BAD, "input.to.zip"),
        ({"to": {"street": "x", "zip": "12345"}, "pages": 0}, "input.pages"),
        ({"pages": 1}, "input.to"),
        (Receipt(number=1), "input"),
        (None, "input"),
    ]
    for wrong, path in wrongs:
        with pytest.raises(PayloadError) as raised:
            await office.caller.start_chain(deliver, wrong)
        assert (raised.value.job_type, raised.value.field) == ("deliver", "input")
        assert raised.value.path.startswith(path)
        assert "not a zip" not in str(raised.value), "the value may be secret"
    assert len(await office.caller.list_jobs()) == 0


async def test_types_that_are_not_registered_are_refused(office: Office) -> None:
    """Alone and in a batch; so is another object of a registered name."""
    stranger = JobType("stranger", input=int, output=int)
    double = JobType("deliver", input=int, output=int)
    for unknown, error in ((stranger, UnknownJobTypeError), (double, DuplicateJobTypeError)):
        with pytest.raises(error):
            await office.caller.start_chain(unknown, 1)
        with pytest.raises(error):
            await office.caller.start_chains([NewChain(deliver, GOOD), NewChain(unknown, 1)])
    assert len(await office.caller.list_jobs()) == 0


# --- in the worker ----------------------------------------------------------------------------------------------------


async def test_an_output_that_fits(office: Office) -> None:
    chain = await office.after_one_attempt(lambda attempt: Receipt(number=7), NewChain(weigh, GOOD))
    assert await office.caller.result(chain) == Receipt(number=7)


@pytest.mark.parametrize("in_block", [False, True], ids=["returned", "in complete"])
@pytest.mark.parametrize("wrong", [{"number": "seven"}, GOOD, None], ids=["a field", "another model", "nothing"])
async def test_an_output_that_does_not_fit_is_a_failed_attempt(office: Office, wrong: Any, in_block: bool) -> None:
    def handler(attempt: Attempt[Any, Any]) -> Any:
        if not in_block:
            return wrong
        with attempt.complete() as tx:
            return tx.finish(wrong)

    chain = await office.after_one_attempt(handler, NewChain(weigh, GOOD))
    with pytest.raises(JobFailedError, match="PayloadError"):
        await office.caller.result(chain)
    job = await office.caller.get_job(chain.id)
    assert (job.status, job.output) == (JobStatus.FAILED, None)
    assert "output" in job.last_error.message


async def test_a_continuation_that_fits(office: Office) -> None:
    chain = await office.after_one_attempt(
        lambda attempt: attempt.continue_with(deliver, attempt.input), NewChain(weigh, GOOD)
    )
    assert await office.caller.result(chain) == Receipt(number=2)


@pytest.mark.parametrize(
    ("goes_on", "error"),
    [
        (lambda attempt: attempt.continue_with(deliver, BAD), "PayloadError"),
        (lambda attempt: attempt.continue_with(deliver, GOOD, output="no receipt"), "PayloadError"),
        (lambda attempt: attempt.continue_with(burn, GOOD), "UndeclaredContinuationError"),
    ],
    ids=["its input", "the output that is kept", "its type"],
)
async def test_a_continuation_that_does_not_fit_is_a_failed_attempt(office: Office, goes_on: Any, error: str) -> None:
    chain = await office.after_one_attempt(goes_on, NewChain(weigh, GOOD))
    with pytest.raises(JobFailedError, match=error):
        await office.caller.result(chain)
    assert [job.id for job in await office.caller.list_jobs()] == [chain.id], "nothing was continued"


# --- from outside -----------------------------------------------------------------------------------------------------


async def test_outputs_from_outside(office: Office) -> None:
    chain = await office.caller.start_chain(deliver, GOOD)
    for wrong in ({"number": "seven"}, GOOD, None):
        with pytest.raises(PayloadError) as raised:
            await office.caller.complete_chain(chain, wrong)
        assert raised.value.field == "output"
    assert (await office.caller.get_job(chain.id)).status is JobStatus.READY
    await office.caller.complete_chain(chain, {"number": 7})
    assert await office.caller.result(chain, WAIT) == Receipt(number=7)


async def test_continuations_from_outside(office: Office) -> None:
    chain = await office.caller.start_chain(weigh, GOOD)
    with pytest.raises(PayloadError):
        await office.caller.continue_chain(chain, deliver, BAD)
    with pytest.raises(UndeclaredContinuationError):
        await office.caller.continue_chain(chain, burn, GOOD)
    assert (await office.caller.get_job(chain.id)).status is JobStatus.READY
    step = await office.caller.continue_chain(chain, deliver, GOOD)
    assert (await office.caller.get_job(step)).input == GOOD.model_dump()
