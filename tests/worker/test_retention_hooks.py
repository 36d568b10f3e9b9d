"""Hooks of retention: which chains they are called for, how many at once, and that none stops the maintenance."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from queuert import AsyncClient, JobType, JobTypes
from queuert.observability.events import RetentionHookFailed
from queuert.policies import Keep, Retention
from queuert.state import AsyncStore
from queuert.state.sqlite import SQLiteState
from queuert.state.types import PruneRequest, PruneResult
from queuert.worker import pruning
from queuert.worker.pruning import Pruner
from queuert.worker.threads import HandlerThreads
from tests.support.waiting import until

WORK = JobType("work", input=int, output=int)
NONE = Keep(count=0)


class Queue:
    """A client on a store in memory, and pruners of it."""

    def __init__(self) -> None:
        self.failures: list[RetentionHookFailed] = []
        self.client = AsyncClient(SQLiteState(), JobTypes(WORK), observability=[self])
        self.threads = HandlerThreads("hooks")

    def emit(self, event: object) -> None:
        if isinstance(event, RetentionHookFailed):
            self.failures.append(event)

    async def closed(self, *ids: str) -> None:
        """Start chains and complete them."""
        for id in ids:
            chain = await self.client.start_chain(WORK, 1, id=id)
            await self.client.complete_chain(chain, 1)

    async def left(self) -> list[str]:
        """The ids of the chains that there are."""
        return sorted([one.id for one in (await self.client.list_chains()).items])

    async def pruner(self, hook: Callable[[Any], Any], store: AsyncStore | None = None) -> Pruner:
        policy = Retention(NONE, NONE, NONE, before_delete=hook)
        store = store or await self.client._open_store()
        return Pruner(store, self.client, self.threads, {"work": policy}, worker="worker")


@pytest.fixture
async def queue() -> AsyncIterator[Queue]:
    queue = Queue()
    async with queue.client:
        yield queue
    queue.threads.close()


async def round_of(pruner: Pruner) -> None:
    """Prune from the first page of a round to its last."""
    for _ in range(100):
        if not await pruner.page():
            return
    raise AssertionError("the round does not end")


async def test_no_hook_is_called_for_a_chain_that_stays(queue: Queue) -> None:
    """One that an open job needs, and one that is retried after the store has said that it may go."""
    called: list[str] = []
    await queue.closed("blocker", "goes")
    await queue.client.start_chain(WORK, 1, id="waits", blockers=[await queue.client.get_chain("blocker")])
    cancelled = await queue.client.start_chain(WORK, 1, id="retried")
    await queue.client.cancel_chain(cancelled)
    store = await queue.client._open_store()
    prune = store.prune

    async def prune_and_retry(request: PruneRequest) -> PruneResult:
        result = await prune(request)
        if request.preview:
            await queue.client.retry_chain(cancelled)
        return result

    store.prune = prune_and_retry  # type: ignore[method-assign]
    await round_of(await queue.pruner(lambda chain: called.append(chain.id), store))
    assert called == ["goes"]
    assert await queue.left() == ["blocker", "retried", "waits"]


@pytest.mark.parametrize("kind", ["a coroutine that cannot be cancelled", "a plain function"])
async def test_a_hook_that_hangs_keeps_its_own_chain_alone(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The others of the page go, the round ends, and it is not called again until it has ended."""
    monkeypatch.setattr(pruning, "HOOK_TIMEOUT", 1.0)
    called: list[str] = []
    ended, released = threading.Event(), asyncio.Event()

    async def coroutine(chain: Any) -> None:
        called.append(chain.id)
        while chain.id == "hangs" and not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    def function(chain: Any) -> None:
        called.append(chain.id)
        if chain.id == "hangs":
            ended.wait()

    try:
        await queue.closed("hangs", "goes")
        pruner = await queue.pruner(function if "plain" in kind else coroutine)
        for _ in range(3):
            await round_of(pruner)
        assert sorted(called) == ["goes", "hangs"]
        assert await queue.left() == ["hangs"]
        [failure] = queue.failures
        assert (failure.hook, failure.chain_id, failure.error.type) == ("before_delete", "hangs", "TimeoutError")
        assert "longer than 1 s" in str(failure.error)
    finally:  # Else nothing could end them.
        ended.set()
        released.set()
    await until(lambda: not pruner._running, "the call has ended")
    monkeypatch.setattr(pruning, "HOOK_TIMEOUT", 60.0)
    await round_of(pruner)
    assert await queue.left() == []


async def test_as_many_run_at_once_as_may(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of those that hang: then no other is called, and observers are told once a round."""
    monkeypatch.setattr(pruning, "HOOKS_AT_ONCE", 3)
    running, most, total = 0, 0, 0
    hangs = asyncio.Event()
    hangs.set()

    async def hook(chain: Any) -> None:
        nonlocal running, most, total
        running, total = running + 1, total + 1
        most = max(most, running)
        try:
            await asyncio.sleep(0)
            while not hangs.is_set():
                try:
                    await hangs.wait()
                except asyncio.CancelledError:
                    continue
        finally:
            running -= 1

    ids = [f"{number}" for number in range(9)]
    await queue.closed(*ids)
    pruner = await queue.pruner(hook)
    await round_of(pruner)
    assert (most, total, await queue.left()) == (3, 9, [])
    hangs.clear()
    monkeypatch.setattr(pruning, "HOOK_TIMEOUT", 0.01)
    await queue.closed(*ids)
    for _ in range(2):
        await round_of(pruner)
    assert (most, total, len(await queue.left())) == (3, 12, 9)
    assert ["3 earlier calls" in str(one.error) for one in queue.failures] == [False, False, False, True, True]
    hangs.set()
    await until(lambda: not pruner._running, "the calls have ended")
    monkeypatch.setattr(pruning, "HOOK_TIMEOUT", 60.0)
    for _ in range(2):
        await round_of(pruner)
    assert await queue.left() == []


async def test_a_round_ends_when_its_time_is_over(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next round calls the hooks that were not called, also if those before them hold their chains back."""
    monkeypatch.setattr(pruning, "HOOKS_AT_ONCE", 1)
    monkeypatch.setattr(pruning, "_HOOKED_PAGE", 3)
    called: list[str] = []

    async def hook(chain: Any) -> bool:
        called.append(chain.id)
        pruner._hooks_until = 0.0
        return bool(chain.id == "e")

    await queue.closed(*"abcde")
    pruner = await queue.pruner(hook)
    for number in range(1, 6):
        await round_of(pruner)
        assert len(called) == number
    assert called == list("abcde")
    assert await queue.left() == list("abcd")
    await round_of(pruner)
    assert called == list("abcdea")


async def test_an_answer_that_must_be_awaited_is(queue: Queue) -> None:
    """A function that returns a coroutine, and one that raises what would cancel the maintenance."""

    async def held(chain: Any) -> bool:
        if chain.id == "cancels":
            raise asyncio.CancelledError
        return False

    await queue.closed("held", "cancels")
    await round_of(await queue.pruner(lambda chain: held(chain)))
    assert await queue.left() == ["cancels", "held"]
    assert [one.chain_id for one in queue.failures] == ["cancels"]
