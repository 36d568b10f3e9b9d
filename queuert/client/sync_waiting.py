# Generated from queuert/client/async_waiting.py, do not edit: see scripts/unasync.py
"""Waits for chains to close, in a sync client. ``sync_waiting.py`` is generated from this module."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from queuert.client.wakeup import Wakeup
from queuert.errors import ChainNotFoundError, StateUnavailableError, WaitTimeoutError
from queuert.jobs import ChainRecord, ChainStatus
from queuert.notify.adapter import Notification, NotifyAdapter, Topic
from queuert.observability.adapter import Observers
from queuert.observability.events import StoreCallFailed
from queuert.state.sync_store import Store

POLL_WITH_NOTIFY = 5.0
POLL_WITHOUT_NOTIFY = 1.0
"""Seconds between two polls of all chains, plus or minus a tenth."""

_PAGE = 1_000


def wait_until_closed(
    store: Store, notify: NotifyAdapter, observers: Observers, ids: Sequence[str], timeout: float | None
) -> dict[str, ChainRecord]:
    """Wait until all chains are closed, and return them."""
    watch = ChainWatcher(store, notify, observers, timeout)
    try:
        return watch.wait_block_closed(ids)
    finally:
        watch.close()


class ChainWatcher:
    """Receives notifications of chains that close, from its construction until it is closed.

    It subscribes before the chains are known, so that none that closes meanwhile is missed. The timeout counts from
    its construction.
    """

    def __init__(self, store: Store, notify: NotifyAdapter, observers: Observers, timeout: float | None) -> None:
        self._store = store
        self._notify = notify
        self._observers = observers
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._signal = Wakeup()
        self._hinted = _Hinted(self._signal.set)
        self._subscription = notify.subscribe(Topic.CHAINS, self._hinted)

    def close(self) -> None:
        """Unsubscribe. Idempotent."""
        self._subscription.close()

    def wait_block_closed(
        self, ids: Sequence[str], on_closed: Callable[[dict[str, ChainRecord]], None] | None = None
    ) -> dict[str, ChainRecord]:
        """Read the chains until all are closed: those that notifications name, and now and then all of them.

        ``on_closed`` is called with the chains that have closed, as soon as they are read.
        """
        closed: dict[str, ChainRecord] = {}
        self._hinted.look_at(ids)
        while True:
            try:
                for found in _closed_of(self._store, [one for one in self._hinted.take() if one not in closed]):
                    closed |= found
                    if on_closed is not None:
                        on_closed(found)
            except StateUnavailableError as error:
                self._observers.emit(StoreCallFailed(worker="client", operation="wait", error=str(error)))
                self._hinted.look_at_all()
            left = [one for one in ids if one not in closed]
            if not left:
                return closed
            pause = _pause(self._notify, self._deadline)
            if pause <= 0:
                raise WaitTimeoutError(left, self._timeout or 0.0)
            if not self._signal.wait(pause):
                self._hinted.look_at_all()


def _pause(notify: NotifyAdapter, deadline: float | None) -> float:
    interval = POLL_WITH_NOTIFY if notify.healthy else POLL_WITHOUT_NOTIFY
    jittered = interval * random.uniform(0.9, 1.1)
    return jittered if deadline is None else min(jittered, deadline - time.monotonic())


def _closed_of(store: Store, ids: Sequence[str]) -> Iterator[dict[str, ChainRecord]]:
    """Yields the closed ones of these chains, page by page; of open chains only the status is read."""
    for start in range(0, len(ids), _PAGE):
        page = ids[start : start + _PAGE]
        while page:
            closed, unread = {}, []
            for one, found in zip(page, store.closed_chains(page), strict=True):
                if found is None:
                    raise ChainNotFoundError(one)
                if isinstance(found, ChainRecord):
                    closed[one] = found
                elif found is not ChainStatus.OPEN:
                    unread.append(one)
            yield closed
            page = unread


class _Hinted:
    """The chains to read next: all at first, then those that notifications name.

    The thread of the notification adapter calls it.
    """

    def __init__(self, on_notification: Callable[[], None]) -> None:
        self._all: dict[str, None] = {}
        self._named: set[str] = set()
        self._lock = threading.Lock()
        self._on_notification = on_notification

    def __call__(self, notification: Notification) -> None:
        names = self._all.keys() if notification.keys is None else notification.keys & self._all.keys()
        if names:
            with self._lock:
                self._named.update(names)
            self._on_notification()

    def look_at(self, ids: Sequence[str]) -> None:
        self._all = dict.fromkeys(ids)
        self.look_at_all()

    def look_at_all(self) -> None:
        with self._lock:
            self._named.update(self._all)

    def take(self) -> list[str]:
        with self._lock:
            named, self._named = self._named, set()
        return list(named)
