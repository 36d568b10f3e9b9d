"""Waiting for chains to close, asynchronously. ``sync_waiting.py`` is generated from this module."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from queuert.client.signals import AsyncSignal
from queuert.errors import ChainNotFoundError, StateUnavailableError, WaitTimeoutError
from queuert.jobs import ChainRecord, ChainStatus
from queuert.notify.adapter import Hint, NotifyAdapter, Topic
from queuert.observability.adapter import Observers
from queuert.observability.events import StateFailed
from queuert.state.async_store import AsyncStore

POLL_WITH_NOTIFY = 5.0
POLL_WITHOUT_NOTIFY = 1.0
"""Seconds between two looks at all chains, give or take a tenth."""

_PAGE = 1_000


async def wait_until_closed(
    store: AsyncStore, notify: NotifyAdapter, observers: Observers, ids: Sequence[str], timeout: float | None
) -> dict[str, ChainRecord]:
    """Read the chains until all are closed. A hint names those worth a look; now and then all are looked at."""
    deadline = None if timeout is None else time.monotonic() + timeout
    hinted = _Hinted(ids)
    signal = AsyncSignal()
    hinted.on_hint = signal.set
    subscription = notify.subscribe(Topic.CHAINS, hinted)
    closed: dict[str, ChainRecord] = {}
    try:
        while True:
            try:
                closed |= await _closed_of(store, [one for one in hinted.take() if one not in closed])
            except StateUnavailableError as error:
                observers.emit(StateFailed(worker="client", operation="wait", error=str(error)))
                hinted.look_at_all()
            left = [one for one in ids if one not in closed]
            if not left:
                return closed
            pause = _pause(notify, deadline)
            if pause <= 0:
                raise WaitTimeoutError(left, timeout or 0.0)
            if not await signal.wait(pause):
                hinted.look_at_all()
    finally:
        subscription.close()


def _pause(notify: NotifyAdapter, deadline: float | None) -> float:
    interval = POLL_WITH_NOTIFY if notify.healthy else POLL_WITHOUT_NOTIFY
    jittered = interval * random.uniform(0.9, 1.1)
    return jittered if deadline is None else min(jittered, deadline - time.monotonic())


async def _closed_of(store: AsyncStore, ids: Sequence[str]) -> dict[str, ChainRecord]:
    closed = {}
    for start in range(0, len(ids), _PAGE):
        page = ids[start : start + _PAGE]
        for one, record in zip(page, await store.get_chains(page), strict=True):
            if record is None:
                raise ChainNotFoundError(one)
            if record.status is not ChainStatus.OPEN:
                closed[one] = record
    return closed


def _nothing() -> None:
    pass


class _Hinted:
    """The chains that are worth a look: all at first, then those that hints name. Called from the adapter's thread."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._all = dict.fromkeys(ids)
        self._named = set(ids)
        self._lock = threading.Lock()
        self.on_hint: Callable[[], None] = _nothing

    def __call__(self, hint: Hint) -> None:
        names = self._all.keys() if hint.keys is None else hint.keys & self._all.keys()
        if names:
            with self._lock:
                self._named.update(names)
            self.on_hint()

    def look_at_all(self) -> None:
        with self._lock:
            self._named.update(self._all)

    def take(self) -> list[str]:
        with self._lock:
            named, self._named = self._named, set()
        return list(named)
