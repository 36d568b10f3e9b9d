"""Short words for the values that cases give to stores, and the steps that many of them begin with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from queuert.ids import new_id, new_token
from queuert.jobs import ChainRecord, Job, JobError
from queuert.policies import RetryPolicy
from queuert.run_at import RunAt
from queuert.state import AsyncStore
from queuert.state.types import ClaimedJob, ClaimRequest, Finish, FinishKind, NewJob, ReapedJob, ReapRequest, Renewal

AT_ONCE = RetryPolicy(initial_delay=0.0, jitter=0.0)
"""Another attempt at once, 25 times."""
LAST_ATTEMPT = RetryPolicy(max_attempts=1)
_TRIES = 2000
_PAUSE = 0.005

_T = TypeVar("_T")
_E = TypeVar("_E", bound=Exception)


def job(type: str = "work", *, id: str | None = None, blockers: Sequence[str] = (), **more: Any) -> NewJob:
    """A job to be started."""
    given: dict[str, Any] = {"input": "{}", **more}
    return NewJob(id=id or new_id(), type=type, blockers=tuple(blockers), id_chosen=id is not None, **given)


def ask(*types: str, limit: int = 100, lease: float = 60.0, holder: str = "holder") -> ClaimRequest:
    """A request for jobs of these types, by default of type ``work``."""
    return ClaimRequest(dict.fromkeys(types or ("work",), lease), limit, holder, new_token())


def complete(claimed: ClaimedJob, output: str = '"done"') -> Finish:
    """The attempt's good end."""
    return Finish(claimed, FinishKind.COMPLETE, output=output)


def go_on(claimed: ClaimedJob, following: NewJob) -> Finish:
    """The attempt's end in a continuation."""
    return Finish(claimed, FinishKind.CONTINUE, continuation=following)


def retry(claimed: ClaimedJob, delay: float = 0.0) -> Finish:
    """The attempt's end in another one."""
    return Finish(claimed, FinishKind.RETRY, delay=delay, error=JobError("handler", "boom", "ValueError", "trace"))


def fail(claimed: ClaimedJob) -> Finish:
    """The attempt's bad end."""
    return Finish(claimed, FinishKind.FAIL, error=JobError("fail", "gave up"))


def cancel(claimed: ClaimedJob) -> Finish:
    """The attempt's end in a cancelled chain."""
    return Finish(claimed, FinishKind.CANCEL, error=JobError("cancel", "not wanted"))


def interrupt(claimed: ClaimedJob) -> Finish:
    """The attempt's end by a stopping worker."""
    return Finish(claimed, FinishKind.INTERRUPT)


def wait(claimed: ClaimedJob, *starts: NewJob, others: Sequence[str] = ()) -> Finish:
    """The attempt's end in waiting for new chains, and then for others."""
    blockers = (*(new.id for new in starts), *others)
    return Finish(claimed, FinishKind.WAIT, starts=starts, blockers=blockers)


def stolen(claimed: ClaimedJob) -> ClaimedJob:
    """The same attempt with a token that no claim ever had."""
    return replace(claimed, token=new_token())


async def start(store: AsyncStore, *jobs: NewJob) -> list[str]:
    """Start jobs; their ids."""
    return [started.id for started in await store.start_jobs(jobs)]


async def claim_one(store: AsyncStore, type: str = "work", **how: Any) -> ClaimedJob:
    """The best due job of a type."""
    [claimed] = await store.claim(ask(type, limit=1, **how))
    return claimed


async def started_and_claimed(store: AsyncStore, count: int = 1, **what: Any) -> list[ClaimedJob]:
    """New jobs under a lease, in the order in which they were started."""
    ids = await start(store, *(job(**what) for _ in range(count)))
    found = {one.id: one for one in await store.claim(ask(what.get("type", "work"), limit=count))}
    return [found[id] for id in ids]


async def read(store: AsyncStore, id: str) -> Job:
    """A job that is there."""
    [found] = await store.get_jobs([id])
    assert found is not None, f"job {id!r} is not there"
    return found


async def read_chain(store: AsyncStore, id: str) -> ChainRecord:
    """A chain that is there."""
    [found] = await store.get_chains([id])
    assert found is not None, f"chain {id!r} is not there"
    return found


async def eventually(probe: Callable[[], Awaitable[_T]]) -> _T:
    """Ask until the answer is true, and return it; an AssertionError after many tries."""
    for _ in range(_TRIES):
        answer = await probe()
        if answer:
            return answer
        await asyncio.sleep(_PAUSE)
    raise AssertionError("did not happen in time")


async def error_of(kind: type[_E], call: Awaitable[object]) -> _E:
    """The error of this kind that the call raises; an AssertionError when it raises none."""
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


async def run_out(store: AsyncStore, *claimed: ClaimedJob) -> None:
    """Let leases expire, by renewing them for next to nothing."""
    left = list(claimed)

    async def none_left() -> bool:
        # A row that another claim has just looked at may be locked for a moment.
        renewed = await store.renew([Renewal(one.lease, 0.001) for one in left])
        left[:] = [one for one, done in zip(left, renewed, strict=True) if not done]
        return not left

    await eventually(none_left)


async def expire(store: AsyncStore, *claimed: ClaimedJob) -> None:
    """Let leases expire, and return when they have: a job of another type, whose lease ended last, was reaped."""
    [clock] = await started_and_claimed(store, type="clock")
    await run_out(store, *claimed)
    await run_out(store, clock)
    await reap(store, LAST_ATTEMPT, type="clock")


async def reap(store: AsyncStore, policy: RetryPolicy = AT_ONCE, *, type: str = "work") -> list[ReapedJob]:
    """Reap once some lease has expired."""

    async def some() -> Sequence[ReapedJob]:
        return (await store.reap(ReapRequest({type: policy}))).reaped

    return list(await eventually(some))


async def lost_to_reaper(store: AsyncStore, policy: RetryPolicy = AT_ONCE) -> ClaimedJob:
    """A new job whose lease has expired and was reaped: what its holder still believes to hold."""
    [claimed] = await started_and_claimed(store)
    await run_out(store, claimed)
    await reap(store, policy)
    return claimed


def due_later() -> RunAt:
    """A time that no test lives to see."""
    return RunAt(delay=3600.0)
