"""A real store behind a link that fails: calls that never arrive, and calls whose answer is lost."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

from queuert.errors import StateUnavailableError
from queuert.state import AsyncStore, AsyncStoreTransaction, Store, StoreTransaction
from queuert.state.adapter import Capability, StateAdapter
from queuert.state.types import ClaimedJob

SPARED = frozenset({"open", "close", "aclose", "risks", "pool_use"})
"""Without these there is no worker at all."""

Strikes = Callable[[str, str], bool]
"""Whether a call of this operation fails ``before`` or ``after`` it has done its work."""


def nth(operation: str, when: str, *places: int) -> Strikes:
    """These calls of one operation, counted from 1."""
    counted, lock = Counter[tuple[str, str]](), threading.Lock()

    def strikes(requested: str, moment: str) -> bool:
        with lock:
            counted[requested, moment] += 1
            return (requested, moment) == (operation, when) and counted[requested, moment] in places

    return strikes


def seeded(seed: int, share: float) -> Strikes:
    """A share of all calls, at random, half of them after the work was done."""
    source, lock = random.Random(seed), threading.Lock()

    def strikes(requested: str, moment: str) -> bool:
        with lock:
            return source.random() < share / 2

    return strikes


class FlakyState:
    """The state adapter of a worker whose link fails; ``struck`` counts how often, by operation and moment."""

    def __init__(self, real: StateAdapter, strikes: Strikes) -> None:
        self._real = real
        self._strikes = strikes
        self._lock = threading.Lock()
        self.struck = Counter[tuple[str, str]]()

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._real.capabilities

    def default_notify(self) -> Any:
        return self._real.default_notify()

    def sync_store(self, *, max_connections: int = 4, answer_timeout: float | None = None) -> Store:
        store = self._real.sync_store(max_connections=max_connections, answer_timeout=answer_timeout)
        return cast("Store", _FlakyStore(store, self))

    def async_store(self, *, max_connections: int = 4) -> AsyncStore:
        return cast("AsyncStore", _FlakyAsyncStore(self._real.async_store(max_connections=max_connections), self))

    def pass_by(self, operation: str, moment: str) -> None:
        """Fail here, or not."""
        if self._strikes(operation, moment):
            with self._lock:
                self.struck[operation, moment] += 1
            raise StateUnavailableError(f"the link failed {moment} {operation}")


class _FlakyStore:
    def __init__(self, store: Store, link: FlakyState) -> None:
        self._store = store
        self._link = link

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)
        if name in SPARED:
            return operation

        def call(*values: Any, **named: Any) -> Any:
            self._link.pass_by(name, "before")
            found = operation(*values, **named)
            self._link.pass_by(name, "after")
            return found

        return call

    @contextmanager
    def transaction(self, job: ClaimedJob) -> Iterator[StoreTransaction]:
        self._link.pass_by("transaction", "before")
        with self._store.transaction(job) as transaction:
            yield transaction
            self._link.pass_by("commit", "before")


class _FlakyAsyncStore:
    def __init__(self, store: AsyncStore, link: FlakyState) -> None:
        self._store = store
        self._link = link

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)
        if name in SPARED:
            return operation

        async def call(*values: Any, **named: Any) -> Any:
            self._link.pass_by(name, "before")
            found = await operation(*values, **named)
            self._link.pass_by(name, "after")
            return found

        return call

    @asynccontextmanager
    async def transaction(self, job: ClaimedJob) -> AsyncIterator[AsyncStoreTransaction]:
        self._link.pass_by("transaction", "before")
        async with self._store.transaction(job) as transaction:
            yield transaction
            self._link.pass_by("commit", "before")
