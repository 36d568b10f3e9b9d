"""What is tried again, and what is not: by class, by count, and by what it cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queuert import Attempt, JobStatus, NewChain, Outcome, RetryPolicy
from queuert.errors import StateUnavailableError
from queuert.observability.events import AttemptFailed, AttemptRetried
from tests.support.harness import PostgresHarness
from tests.support.job_types import anything, echo, number, relay, text
from tests.support.waiting import START, WAIT
from tests.worker import killable


class Passing(Exception):
    """Worth another attempt."""


class Busy(Passing):
    """The same, more precisely."""


class Broken(Passing):
    """Passing by its base, and yet final."""


class Fatal(BaseException):
    """No Exception."""


def policy(max_attempts: int = 3, **settings: Any) -> RetryPolicy:
    return RetryPolicy(max_attempts=max_attempts, initial_delay=0, jitter=0, **settings)


def raising(error: BaseException) -> Any:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        raise error

    return handler


RULES = {"retry_on": (Passing,), "fail_on": (Broken,)}


@pytest.mark.parametrize(
    ("rules", "error", "attempts"),
    [
        (RULES, Passing("p"), 3),
        (RULES, Busy("b"), 3),
        (RULES, Broken("b"), 1),
        (RULES, ValueError("v"), 1),
        (RULES, ExceptionGroup("g", [Passing(), Busy()]), 3),
        (RULES, ExceptionGroup("g", [Passing(), ValueError()]), 1),
        (RULES, ExceptionGroup("g", [Passing(), ExceptionGroup("h", [Broken()])]), 1),
        (RULES, StateUnavailableError("the database went away"), 3),
        ({"retry_on": ()}, Passing("p"), 1),
        ({"fail_on": (LookupError,)}, KeyError("k"), 1),
        ({"fail_on": (LookupError,)}, ValueError("v"), 3),
        ({"fail_on": (Fatal,)}, Fatal(), 1),
        ({"retry_on": (Fatal,)}, Fatal(), 3),
        ({"fail_on": (StateUnavailableError,)}, StateUnavailableError("the database went away"), 1),
    ],
    ids=repr,
)
async def test_classes_decide(
    harness: PostgresHarness, rules: dict[str, Any], error: BaseException, attempts: int
) -> None:
    harness.handles(number, raising(error), retry=policy(**rules))
    async with harness.worker():
        chain = await (await harness.client.start_chain(number, 1)).wait(WAIT)
    job = await harness.job(chain.id)
    assert (job.status, job.attempt) == (JobStatus.FAILED, attempts)
    assert job.last_error is not None
    assert type(error).__name__ in str(job.last_error.type)
    assert len(harness.log.of(AttemptRetried)) == attempts - 1
    assert len(harness.log.of(AttemptFailed)) == 1


async def test_each_type_has_its_own_rules(harness: PostgresHarness) -> None:
    harness.handles(number, raising(Busy()), retry=policy(fail_on=(Passing,)))
    harness.handles(text, raising(Busy()), retry=policy())
    async with harness.worker():
        chains = await harness.client.start_chains([NewChain(number, 1, id="n"), NewChain(text, "x", id="t")])
        await harness.client.wait(chains, timeout=WAIT)
    assert ((await harness.job("n")).attempt, (await harness.job("t")).attempt) == (1, 3)


@pytest.mark.quick
async def test_an_input_that_cannot_be_read_is_tried_again_whatever_the_classes(harness: PostgresHarness) -> None:
    harness.insert("number", '"no number"', id="bad")
    harness.handles(number, echo, retry=policy(retry_on=(Passing,)))
    async with harness.worker():
        await harness.log.wait_for(AttemptFailed, job_id="bad")
    assert (await harness.job("bad")).attempt == 3


async def test_a_blocker_that_failed_fails_at_once_whatever_the_classes(harness: PostgresHarness) -> None:
    harness.handles(number, raising(Busy()), retry=policy(max_attempts=1))
    harness.handles(text, echo, retry=policy(retry_on=(Exception,)))
    async with harness.worker():
        blocker = await harness.client.start_chain(number, 1)
        chain = await (await harness.client.start_chain(text, "x", blockers=[blocker])).wait(WAIT)
    assert chain.error is not None
    assert chain.error.kind == "blocker_failed"
    assert (await harness.job(chain.id)).attempt == 1


@pytest.mark.parametrize(("of_start", "attempts"), [(1, 1), (5, 5), (None, 3)])
async def test_the_attempts_of_a_start_replace_those_of_the_policy(
    harness: PostgresHarness, of_start: int | None, attempts: int
) -> None:
    """A handler that raises; the hook after the attempt knows the number as well."""
    seen: list[int] = []
    harness.handles(
        number, raising(Busy()), retry=policy(), after_attempt=lambda ended: seen.append(ended.max_attempts)
    )
    async with harness.worker():
        chain = await (await harness.client.start_chain(number, 1, max_attempts=of_start)).wait(WAIT)
    job = await harness.job(chain.id)
    assert (job.status, job.attempt, job.max_attempts) == (JobStatus.FAILED, attempts, of_start)
    assert seen == [attempts]


async def test_attempts_of_a_child_and_of_its_continuation(harness: PostgresHarness) -> None:
    """A chain that a handler waits for has those of its own start; the job that continues it, those of its policy."""

    async def parent(attempt: Attempt[str, str]) -> Outcome[str]:
        if not attempt.blockers:
            return attempt.wait_for(NewChain(relay, 1, max_attempts=2))
        return ",".join(str(blocker.error) for blocker in attempt.failed_blockers)

    async def child(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(number, 1) if attempt.number == 2 else attempt.retry(after=0)

    harness.handles(text, parent, on_blocker_failure="run")
    harness.handles(relay, child, retry=policy(max_attempts=1))
    harness.handles(number, raising(Busy()), retry=policy())
    async with harness.worker():
        chain = await (await harness.client.start_chain(text, "x")).wait(WAIT)
    [blocker] = await harness.client.get_blockers(chain.id)
    jobs = await harness.client.list_chain_jobs(blocker.chain_id)
    assert [(job.type, job.attempt, job.max_attempts) for job in jobs] == [("relay", 2, 2), ("number", 3, None)]


async def test_a_retry_that_the_handler_asks_for_is_no_exception(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.number if attempt.number == 2 else attempt.retry(after=0)

    harness.handles(number, handler, retry=policy(retry_on=(), fail_on=(Exception,)))
    async with harness.worker():
        assert await (await harness.client.start_chain(number, 1)).result(WAIT) == 2


@pytest.mark.timeout(2 * START)
@pytest.mark.parametrize(
    ("rules", "input", "attempts"),
    [
        ({"fail_on": (ValueError,)}, "odd", 1),
        ({"fail_on": (killable.Odd,)}, "odd", 1),
        ({"retry_on": (KeyError,)}, "odd", 1),
        ({"retry_on": (ValueError,)}, "odd", 3),
        ({"retry_on": (ValueError,)}, "group", 1),
        ({"fail_on": (killable.Stubborn,)}, "stubborn", 1),
        ({"retry_on": (killable.Stubborn,)}, "stubborn", 3),
    ],
)
async def test_classes_decide_in_another_process_too(
    harness: PostgresHarness, rules: dict[str, Any], input: str, attempts: int
) -> None:
    """Also for exceptions that cannot be sent: the class is looked at where it was raised."""
    harness.handles(anything, killable.raises, executor="process", retry=policy(**rules))
    async with harness.worker():
        chain = await (await harness.client.start_chain(anything, input)).wait(START)
    assert (await harness.job(chain.id)).attempt == attempts


# --- poison -----------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(2 * START)
async def test_a_job_that_kills_its_process_fails_at_max_crashes(harness: PostgresHarness) -> None:
    harness.handles(anything, killable.die, executor="process", retry=policy(max_attempts=25, max_crashes=3))
    async with harness.worker():
        chain = await (await harness.client.start_chain(anything, "exit")).wait(START)
    job = await harness.job(chain.id)
    assert (job.status, job.attempt, job.lease_expirations) == (JobStatus.FAILED, 3, 3)
    assert job.last_error is not None
    assert (job.last_error.kind, "exit code 7" in job.last_error.message) == ("crashed", True)
    assert [event.error.kind for event in harness.log.of(AttemptRetried)] == ["crashed", "crashed"]


@pytest.mark.timeout(2 * START)
async def test_expired_leases_and_crashes_are_counted_together(harness: PostgresHarness) -> None:
    harness.insert("anything", '"exit"', id="poison", attempt=2)
    harness.rows("update queuert.job set lease_expirations = 2 where id = 'poison'")
    harness.handles(anything, killable.die, executor="process", retry=policy(max_attempts=25, max_crashes=3))
    async with harness.worker():
        await harness.log.wait_for(AttemptFailed, timeout=START, job_id="poison")
    job = await harness.job("poison")
    assert (job.status, job.attempt, job.lease_expirations) == (JobStatus.FAILED, 3, 3)


async def test_errors_of_the_handler_do_not_count_as_crashes(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.number < 5:
            raise Busy
        return attempt.number

    harness.insert("number", "1", id="shaky", attempt=2)
    harness.rows("update queuert.job set lease_expirations = 2 where id = 'shaky'")
    harness.handles(number, handler, retry=policy(max_attempts=25, max_crashes=2))
    async with harness.worker():
        assert await (await harness.client.get_chain("shaky", number)).result(WAIT) == 5
    assert (await harness.job("shaky")).lease_expirations == 2


@pytest.mark.timeout(2 * START)
async def test_a_killed_process_is_no_crash(harness: PostgresHarness, tmp_path: Path) -> None:
    harness.handles(
        anything, killable.stay, executor="process", hard_timeout=0.5, retry=policy(max_attempts=2, max_crashes=1)
    )
    async with harness.worker():
        chain = await (await harness.client.start_chain(anything, str(tmp_path / "here"))).wait(START)
    job = await harness.job(chain.id)
    assert (job.attempt, job.lease_expirations) == (2, 0)
    assert job.last_error is not None
    assert job.last_error.kind == "timeout"
