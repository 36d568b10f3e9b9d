"""Pruning: deletes the closed chains that are no longer kept, page by page, and calls the hooks of their retention."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from queuert.client import AsyncChain, AsyncClient, Chain, Client
from queuert.jobs import ChainRecord, ChainStatus
from queuert.observability.adapter import Observers
from queuert.observability.events import ChainsBecameStale, ChainsPruned, RetentionHookFailed
from queuert.policies import Retention, RetentionHook
from queuert.state.adapter import Capability
from queuert.state.async_store import AsyncStore
from queuert.state.async_unread import unread_since
from queuert.state.types import PruneRequest, PruneResult
from queuert.worker.finishes import error_of
from queuert.worker.threads import HandlerThreads

HOOK_TIMEOUT = 60.0
"""Seconds that a hook has. Its chain stays for now. A plain function that takes longer goes on in its thread."""
HOOKS_AT_ONCE = 10
"""How many hooks of a worker run at once, those included that took too long and have not ended."""
HOOKS_PER_ROUND = 60.0
"""Seconds in which the hooks of a round begin; the next round goes on where this one ended."""

_HOOKED_PAGE = 100
"""The largest number of chains on a page of the types with hooks: they are read with inputs and outputs."""
_MAX_NAMED = 10
"""The most ids in an event."""


_Action = Literal["delete", "mark"]


@dataclass(frozen=True, slots=True)
class _Call:
    """A hook that is to be called."""

    action: _Action
    chain: AsyncChain[Any] | Chain[Any]
    name: str
    function: RetentionHook


class Pruner:
    """Prunes in rounds of pages: first what has expired and all types without hooks, then the types that have hooks.

    Of the latter, the store says which chains would become stale or be deleted, the hooks are called, and the store
    does the same page again, but only what no hook holds back. So what has changed meanwhile is seen. If the time for
    hooks is over before all of a page were called, the next round calls the others.
    """

    def __init__(
        self,
        store: AsyncStore,
        client: AsyncClient | Client,
        threads: HandlerThreads,
        policies: Mapping[str, Retention],
        *,
        worker: str,
    ) -> None:
        self._store = store
        self._client = client
        self._threads = threads
        self._hooked = {type: one for type, one in policies.items() if one.before_stale or one.before_delete}
        self._others = {type: one for type, one in policies.items() if type not in self._hooked}
        self._worker = worker
        self._observers: Observers = client.observers
        self._calls_hooks = False
        self._hooks_until = 0.0
        """When the last hooks of this round begin, on the monotonic clock."""
        self._cursor: str | None = None
        self._hooked_cursor: str | None = None
        self._called: set[str] = set()
        """The chains of the page at this cursor whose hooks were called."""
        self._running: set[str] = set()
        """The chains whose hooks have not ended, whether somebody waits for them or not."""
        self._closed_before: datetime | None = None
        """Of this round: which chains the dispatcher of webhooks may still have to read."""

    async def page(self) -> bool:
        """Prune one page; return whether the round has another one."""
        if self._calls_hooks:
            self._calls_hooks = await self._prune_hooked()
            return self._calls_hooks
        if self._cursor is None:
            self._closed_before = await self._last_read()
        result = await self._store.prune(
            PruneRequest(self._others, cursor=self._cursor, closed_before=self._closed_before)
        )
        self._report(result)
        self._cursor = result.cursor
        if self._cursor is None and self._hooked:
            self._calls_hooks = True
            self._hooks_until = time.monotonic() + HOOKS_PER_ROUND
        return self._cursor is not None or self._calls_hooks

    async def _last_read(self) -> datetime | None:
        """Return the time from which on closed chains may have events that webhooks are still to be made of."""
        return await unread_since(self._store) if Capability.EVENTS in self._client.state.capabilities else None

    async def _prune_hooked(self) -> bool:
        """Prune a page of the types with hooks; return whether this round has another one."""
        request = PruneRequest(self._hooked, _HOOKED_PAGE, self._hooked_cursor, self._closed_before)
        preview = await self._store.prune(replace(request, preview=True))
        chosen: dict[_Action, list[str]] = {"delete": [], "mark": []}
        calls: list[_Call] = []
        candidates: dict[_Action, Sequence[str]] = {"delete": preview.chain_ids, "mark": preview.stale_ids}
        for action, ids in candidates.items():
            new = [id for id in ids if id not in self._called]
            for record in await self._store.get_chains(new) if new else ():
                # One that was retried meanwhile is open again: its hook must not be called.
                if record is None or record.status is ChainStatus.OPEN:
                    continue
                if call := self._call_of(action, record):
                    calls.append(call)
                else:
                    chosen[action].append(record.id)
        left = deque(calls)
        # Each takes the next call when it has done one.
        await asyncio.gather(*(self._call_hooks(left, chosen) for _ in range(min(HOOKS_AT_ONCE, len(calls)))))
        if any(chosen.values()):
            only = PruneResult(chosen["delete"], None, chosen["mark"])
            self._report(await self._store.prune(replace(request, only=only)))
        if left:
            if len(self._running) >= HOOKS_AT_ONCE:
                waits = TimeoutError(
                    f"it was not called, as {len(self._running)} earlier calls of hooks have not ended"
                )
                self._report_failed(left[0], waits)
            here = {*preview.chain_ids, *preview.stale_ids}
            self._called = here & (self._called | {call.chain.id for call in calls} - {call.chain.id for call in left})
            return False
        self._hooked_cursor, self._called = preview.cursor, set()
        return preview.cursor is not None and time.monotonic() < self._hooks_until

    def _call_of(self, action: _Action, record: ChainRecord) -> _Call | None:
        """Return the hook of a chain, if its type has one for this."""
        policy = self._hooked[record.type]
        name, function = (
            ("before_delete", policy.before_delete) if action == "delete" else ("before_stale", policy.before_stale)
        )
        if function is None:
            return None
        chain: AsyncChain[Any] | Chain[Any] = (
            AsyncChain(self._client, record) if isinstance(self._client, AsyncClient) else Chain(self._client, record)
        )
        return _Call(action, chain, name, function)

    async def _call_hooks(self, left: deque[_Call], chosen: Mapping[_Action, list[str]]) -> None:
        """Call hooks until none is left, or the time is over, or as many as may run at once hang."""
        while left and time.monotonic() < self._hooks_until and len(self._running) < HOOKS_AT_ONCE:
            call = left.popleft()
            if await self._agrees(call):
                chosen[call.action].append(call.chain.id)

    async def _agrees(self, call: _Call) -> bool:
        """Call a hook; return whether it lets the chain go. It is not called while an earlier call has not ended."""
        chain = call.chain
        if chain.id in self._running:
            return False
        self._running.add(chain.id)
        task = asyncio.ensure_future(self._run(call))
        # If nobody waits for it any more, nobody else reads its error.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            # Not asyncio.timeout: it would wait for a coroutine that does not end when it is cancelled.
            await asyncio.wait({task}, timeout=HOOK_TIMEOUT)
            if not task.done():
                raise TimeoutError(f"it took longer than {HOOK_TIMEOUT:g} s")
            if task.cancelled():
                raise RuntimeError("it raised CancelledError")
            return task.result() is not False
        except Exception as error:
            self._report_failed(call, error)
            return False
        finally:
            task.cancel()

    async def _run(self, call: _Call) -> object:
        function, chain = call.function, call.chain
        if inspect.iscoroutinefunction(function):
            try:
                return await function(chain)
            finally:
                self._running.discard(chain.id)

        def run() -> object:
            try:
                return function(chain)
            finally:
                self._running.discard(chain.id)

        answer = await self._threads.run(run)
        return await answer if inspect.isawaitable(answer) else answer

    def _report_failed(self, call: _Call, error: Exception) -> None:
        chain = call.chain
        failed = RetentionHookFailed(
            worker=self._worker, hook=call.name, chain_id=chain.id, type=chain.type, error=error_of(error)
        )
        self._observers.emit(failed)

    def _report(self, result: PruneResult) -> None:
        for event, ids in ((ChainsBecameStale, result.stale_ids), (ChainsPruned, result.chain_ids)):
            if ids:
                self._observers.emit(event(worker=self._worker, count=len(ids), chain_ids=tuple(ids[:_MAX_NAMED])))
