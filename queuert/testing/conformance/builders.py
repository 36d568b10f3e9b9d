"""Short functions for the values that cases pass to stores, and for the steps that many cases begin with."""

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
"""Retry at once, up to 25 times."""
LAST_ATTEMPT = RetryPolicy(max_attempts=1)
_TRIES = 2000
_PAUSE = 0.005

_T = TypeVar("_T")
_E = TypeVar("_E", bound=Exception)


def job(type: str = "work", *, id: str | None = None, blockers: Sequence[str] = (), **more: Any) -> NewJob:
    """Return a job to be started."""
    given: dict[str, Any] = {"input": "{}", **more}
    return NewJob(id=id or new_id(), type=type, blockers=tuple(blockers), id_chosen=id is not None, **given)


def ask(*types: str, limit: int = 100, lease: float = 60.0, holder: str = "holder") -> ClaimRequest:
    """Return a request to claim jobs of these types, by default of type ``work``."""
    return ClaimRequest(dict.fromkeys(types or ("work",), lease), limit, holder, new_token())


def complete(claimed: ClaimedJob, output: str = '"done"') -> Finish:
    """Return a finish that completes the attempt's job."""
    return Finish(claimed, FinishKind.COMPLETE, output=output)


def go_on(claimed: ClaimedJob, following: NewJob) -> Finish:
    """Return a finish that continues the chain."""
    return Finish(claimed, FinishKind.CONTINUE, continuation=following)


def retry(claimed: ClaimedJob, delay: float = 0.0) -> Finish:
    """Return a finish that retries the job."""
    return Finish(claimed, FinishKind.RETRY, delay=delay, error=JobError("handler", "boom", "ValueError", "trace"))


def fail(claimed: ClaimedJob) -> Finish:
    """Return a finish that fails the job."""
    return Finish(claimed, FinishKind.FAIL, error=JobError("fail", "gave up"))


def cancel(claimed: ClaimedJob) -> Finish:
    """Return a finish that cancels the chain."""
    return Finish(claimed, FinishKind.CANCEL, error=JobError("cancel", "not wanted"))


def interrupt(claimed: ClaimedJob) -> Finish:
    """Return the finish of a stopping worker."""
    return Finish(claimed, FinishKind.INTERRUPT)


def snooze(claimed: ClaimedJob, run_at: RunAt | None = None) -> Finish:
    """Return a finish that makes the job due again at a time, by default at once."""
    return Finish(claimed, FinishKind.SNOOZE, run_at=run_at or RunAt(delay=0.0))


def wait(claimed: ClaimedJob, *starts: NewJob, others: Sequence[str] = ()) -> Finish:
    """Return a finish that waits for new chains, and then for others."""
    blockers = (*(new.id for new in starts), *others)
    return Finish(claimed, FinishKind.WAIT, starts=starts, blockers=blockers)


def stolen(claimed: ClaimedJob) -> ClaimedJob:
    """Return the same attempt with a token that no claim ever had."""
    return replace(claimed, token=new_token())


async def start(store: AsyncStore, *jobs: NewJob) -> list[str]:
    """Start jobs and return their ids."""
    return [started.id for started in await store.start_jobs(jobs)]


async def claim_one(store: AsyncStore, type: str = "work", **how: Any) -> ClaimedJob:
    """Claim the best due job of a type."""
    [claimed] = await store.claim(ask(type, limit=1, **how))
    return claimed


async def started_and_claimed(store: AsyncStore, count: int = 1, **what: Any) -> list[ClaimedJob]:
    """Start and claim jobs; return them in the order in which they were started."""
    ids = await start(store, *(job(**what) for _ in range(count)))
    found = {one.id: one for one in await store.claim(ask(what.get("type", "work"), limit=count))}
    return [found[id] for id in ids]


async def read(store: AsyncStore, id: str) -> Job:
    """Return a job that must exist."""
    [found] = await store.get_jobs([id])
    assert found is not None, f"job {id!r} is not there"
    return found


async def read_chain(store: AsyncStore, id: str) -> ChainRecord:
    """Return a chain that must exist."""
    [found] = await store.get_chains([id])
    assert found is not None, f"chain {id!r} is not there"
    return found


async def eventually(probe: Callable[[], Awaitable[_T]]) -> _T:
    """Call until the result is true, and return it; raise an AssertionError after many tries."""
    for _ in range(_TRIES):
        answer = await probe()
        if answer:
            return answer
        await asyncio.sleep(_PAUSE)
    raise AssertionError("did not happen in time")


async def error_of(kind: type[_E], call: Awaitable[object]) -> _E:
    """Return the error of this kind that the call raises; raise an AssertionError if it raises none."""
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


async def run_out(store: AsyncStore, *claimed: ClaimedJob) -> None:
    """Let leases expire, by renewing them for a very short time."""
    left = list(claimed)

    async def none_left() -> bool:
        # A claim that has just read the row may still have it locked.
        renewed = await store.renew([Renewal(one.lease, 0.001) for one in left])
        left[:] = [one for one, done in zip(left, renewed, strict=True) if not done]
        return not left

    await eventually(none_left)


async def expire(store: AsyncStore, *claimed: ClaimedJob) -> None:
    """Let leases expire, and return when they have: the reaper has ended the lease of another type's job, which ends
    last."""
    [clock] = await started_and_claimed(store, type="clock")
    await run_out(store, *claimed)
    await run_out(store, clock)
    await reap(store, LAST_ATTEMPT, type="clock")


async def reap(store: AsyncStore, policy: RetryPolicy = AT_ONCE, *, type: str = "work") -> list[ReapedJob]:
    """Reap once a lease has expired."""

    async def some() -> Sequence[ReapedJob]:
        return (await store.reap(ReapRequest({type: policy}))).reaped

    return list(await eventually(some))


async def check_chain_seconds(store: AsyncStore, chain_id: str, seconds: float | None) -> None:
    """Check that these are the seconds from the stored start of a closed chain to its stored end."""
    chain = await read_chain(store, chain_id)
    assert chain.closed_at is not None and seconds is not None
    assert abs(seconds - (chain.closed_at - chain.created_at).total_seconds()) < 1e-4


async def lost_to_reaper(store: AsyncStore, policy: RetryPolicy = AT_ONCE) -> ClaimedJob:
    """Start and claim a job, let its lease expire, reap it, and return it as its holder still sees it."""
    [claimed] = await started_and_claimed(store)
    await run_out(store, claimed)
    await reap(store, policy)
    return claimed


def due_later() -> RunAt:
    """A time that is later than any test runs."""
    return RunAt(delay=3600.0)
