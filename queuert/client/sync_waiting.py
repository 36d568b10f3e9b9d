# Generated from queuert/client/async_waiting.py, do not edit: see scripts/unasync.py
"""Waits for chains to close, in a sync client. ``sync_waiting.py`` is generated from this module."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress

from queuert.client.sync_explaining import reasons_of
from queuert.client.wakeup import Wakeup
from queuert.errors import (
    EXPLAINED_CHAINS,
    SHOWN_CHAINS,
    ChainNotFoundError,
    ConfigurationError,
    StateError,
    StateUnavailableError,
    WaitTimeoutError,
)
from queuert.job_types import JobTypes
from queuert.jobs import ChainRecord, ChainState, ChainStatus
from queuert.notify.adapter import Notification, NotifyAdapter, Topic
from queuert.observability.adapter import Observers
from queuert.observability.context import Running, current_attempt
from queuert.observability.events import LoopRecovered, StoreCallFailed
from queuert.state.sync_store import Store

POLL_WITH_NOTIFY = 5.0
POLL_WITHOUT_NOTIFY = 1.0
"""Seconds between two polls of all chains, plus or minus a tenth."""

_PAGE = 1_000


class ChainWatcher:
    """Receives notifications of chains that close, from its construction until it is closed.

    It subscribes before the caller knows the chains, so that it misses none that closes meanwhile. The timeout counts
    from its construction.
    """

    def __init__(
        self,
        store: Store,
        job_types: JobTypes,
        notify: NotifyAdapter,
        observers: Observers,
        timeout: float | None,
    ) -> None:
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
            raise ConfigurationError(f"timeout must be a number of seconds or None, got {timeout!r}")
        self._store = store
        self._job_types = job_types
        self._notify = notify
        self._observers = observers
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._wakeup = Wakeup()
        self._chains: dict[str, None] = {}
        """The ids of the chains that are waited for. Replaced and never changed: it is read without the lock."""
        self._notified_ids: set[str] = set()
        """The ids that notifications have named since the chains were last read."""
        self._lock = threading.Lock()
        self._subscription = notify.subscribe(Topic.CHAINS, self._on_notification)

    def close(self) -> None:
        """Unsubscribe. Idempotent."""
        self._subscription.close()

    def _on_notification(self, notification: Notification) -> None:
        """Called by the thread of the notification adapter."""
        chain_ids = self._chains.keys()
        notified_ids = chain_ids if notification.keys is None else notification.keys & chain_ids
        if notified_ids:
            with self._lock:
                self._notified_ids.update(notified_ids)
            self._wakeup.set()

    def wait(
        self, ids: Iterable[str], on_closed: Callable[[dict[str, ChainRecord]], None] | None = None
    ) -> dict[str, ChainRecord]:
        """Read the chains until all are closed: those that notifications name at once, and all of them by polling.

        ``on_closed`` is called with the chains that have closed, as soon as they are read.

        Raises:
            ChainNotFoundError: a chain does not exist.
            WaitTimeoutError: some are still open after the timeout.
        """
        self._chains = dict.fromkeys(ids)
        unread, closed, failures, woken = list(self._chains), dict[str, ChainRecord](), 0, False
        while True:
            failed = False
            try:
                while unread:
                    newly_closed, unread = self._read(unread)
                    closed |= newly_closed
                    if on_closed is not None:
                        on_closed(newly_closed)
            except StateUnavailableError as error:
                failed = True
                failures = self._report_failure("wait", error, failures)
            else:
                if failures:
                    failures = self._report_recovery("wait", failures)
            open_ids = [id for id in self._chains if id not in closed]
            if not open_ids:
                return closed
            if not (woken or failed) and (handler := current_attempt.get()) is not None:
                self._note_waiting(handler, open_ids)
            pause = self._pause(POLL_WITH_NOTIFY if self._notify.healthy else POLL_WITHOUT_NOTIFY)
            if pause <= 0:
                raise self._timeout_error(open_ids)
            woken = self._wakeup.wait(pause)
            with self._lock:
                notified_ids, self._notified_ids = self._notified_ids, set()
            unread = list(filter(notified_ids.__contains__, open_ids)) if woken and not failed else open_ids

    def states(self, id: str, interval: float) -> Generator[ChainState, None]:
        """Yield where one chain is, whenever that has changed, until it is closed.

        Raises:
            ChainNotFoundError: the chain does not exist.
            WaitTimeoutError: it is still open after the timeout.
        """
        self._chains = {id: None}
        last: ChainState | None = None
        failures = 0
        while True:
            try:
                [state] = self._store.get_chain_states([id])
            except StateUnavailableError as error:
                failures = self._report_failure("watch", error, failures)
            else:
                if failures:
                    failures = self._report_recovery("watch", failures)
                if state is None:
                    raise ChainNotFoundError(id)
                if state != last:
                    yield state
                if state.status is not ChainStatus.OPEN:
                    return
                if (handler := current_attempt.get()) is not None and self._pause(1.0) > 0:
                    handler.waits_for({state.job_type})
                last = state
            pause = self._pause(interval)
            if pause <= 0:
                # Without reasons: they would read the input of the chain, which a watch never does.
                raise WaitTimeoutError([id], self._timeout or 0.0, [] if last is None else [last])
            self._wakeup.wait(pause)

    def _report_failure(self, operation: str, error: StateUnavailableError, failures: int) -> int:
        failures += 1
        failed = StoreCallFailed(worker="client", operation=operation, error=str(error), failures=failures)
        self._observers.emit(failed)
        return failures

    def _report_recovery(self, operation: str, failures: int) -> int:
        self._observers.emit(LoopRecovered(worker="client", loop=operation, failures=failures))
        return 0

    def _pause(self, seconds: float) -> float:
        """Return how long to wait before the next read: about so many seconds, until the deadline at most."""
        pause = seconds * random.uniform(0.9, 1.1)
        return pause if self._deadline is None else min(pause, self._deadline - time.monotonic())

    def _note_waiting(self, handler: Running, open_ids: list[str]) -> None:
        """Let the worker know what its handler waits for: the slot of this handler may be the one that is missing.

        Of many chains it looks at some. Without time left, nobody waits.
        """
        if self._pause(1.0) > 0:
            with suppress(StateError):
                found = self._store.get_chain_states(open_ids[:SHOWN_CHAINS])
                open_states = (state for state in found if state is not None and state.status is ChainStatus.OPEN)
                handler.waits_for({state.job_type for state in open_states})

    def _timeout_error(self, open_ids: list[str]) -> WaitTimeoutError:
        """Return the error of the timeout, which says of some of the open chains where they are, and why.

        Whoever waits for 0 seconds asks again and again, and is not told why.
        """
        states: list[ChainState | None] = []
        with suppress(StateUnavailableError):
            states = self._store.get_chain_states(open_ids[:SHOWN_CHAINS])
        known = [state for state in states if state is not None]
        reasons: dict[str, str] = {}
        if known and self._timeout:
            reasons = reasons_of(self._store, self._job_types, open_ids[:EXPLAINED_CHAINS])
        return WaitTimeoutError(open_ids, self._timeout or 0.0, known, reasons)

    def _read(self, ids: list[str]) -> tuple[dict[str, ChainRecord], list[str]]:
        """Read a page of chains, and return those that are closed, and the ids that are still to be read.

        Of closed chains the store returns as many records as fit into one answer; the others of the page are read next.
        """
        page, unread, closed = ids[:_PAGE], ids[_PAGE:], {}
        for id, chain in zip(page, self._store.closed_chains(page), strict=True):
            if chain is None:
                raise ChainNotFoundError(id)
            if isinstance(chain, ChainRecord):
                closed[id] = chain
            elif chain is not ChainStatus.OPEN:
                unread.append(id)
        return closed, unread
