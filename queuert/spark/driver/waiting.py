"""Waits for many chains, and reports how many are open."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TextIO, TypeAlias

from queuert.client import Client
from queuert.client.sync_waiting import POLL_WITH_NOTIFY, POLL_WITHOUT_NOTIFY, ChainWatcher
from queuert.client.wakeup import Wakeup
from queuert.errors import NotFoundError
from queuert.jobs import ChainRecord, ChainStatus
from queuert.new_chain import ChainReference, chain_ids
from queuert.notify.adapter import Topic
from queuert.spark.errors import WriteTimeoutError
from queuert.state.postgres.bulk_commit import BulkCounts, chain_ids_of_write, count_write

_SHORTEST = 0.1
"""The shortest time in seconds between two counts of a write."""


@dataclass(frozen=True, slots=True)
class WaitProgress:
    """How many of the awaited chains have closed, and with which status, after ``seconds``."""

    total: int
    open: int
    completed: int
    failed: int
    cancelled: int
    seconds: float

    @property
    def closed(self) -> int:
        """The number of chains that are not open any more."""
        return self.total - self.open

    def __str__(self) -> str:
        ended = [
            f"{count:,} {name}" for name, count in (("failed", self.failed), ("cancelled", self.cancelled)) if count
        ]
        return ", ".join([f"{self.closed:,} of {self.total:,} chains closed", *ended, f"{self.seconds:.0f} s"])


OnWait: TypeAlias = Callable[[WaitProgress], None]
"""Called with the progress, in the thread that waits."""


class ProgressLine:
    """Writes progress as a line: pass it as ``on_progress``. In a terminal each line replaces the one before.

    Args:
        stream: the stream to write to; by default the standard error.
        every: seconds between two lines; the last one is always written.

    Example::

        answers = request(df, resize, client=client, on_progress=ProgressLine())
    """

    def __init__(self, stream: TextIO | None = None, *, every: float = 0.5) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._every = every
        self._next = 0.0

    def __call__(self, progress: WaitProgress) -> None:
        """Write the line, unless one was written less than ``every`` seconds ago."""
        if progress.open and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        over = self._stream.isatty()
        end = "\n" if not over or not progress.open else ""
        self._stream.write(("\r\x1b[K" if over else "") + str(progress) + end)
        self._stream.flush()


def wait_all(
    client: Client, chains: Iterable[ChainReference], *, timeout: float | None = None, on_progress: OnWait | None = None
) -> WaitProgress:
    """Wait until all these chains are closed, with whatever status.

    Notifications wake it when chains close; besides, it reads all of them every few seconds.

    Args:
        client: the client that reads the chains.
        chains: handles or ids.
        timeout: seconds; None waits for ever.
        on_progress: called at the beginning, and when chains have closed; :class:`ProgressLine` prints a line.

    Raises:
        WaitTimeoutError: some were still open after ``timeout`` seconds: ``open_ids``. They keep running.
        ChainNotFoundError: a chain was deleted, or its transaction rolled back.
    """
    ids = list(dict.fromkeys(chain_ids(chains)))
    tally = _Tally(len(ids), on_progress)
    watch = ChainWatcher(client._open_store(), client.job_types, client.notify, client.observers, timeout)
    try:
        tally.tell()
        watch.wait(ids, tally.closed)
    finally:
        watch.close()
    return tally.progress


def wait_write(
    client: Client, write_id: str, *, timeout: float | None = None, on_progress: OnWait | None = None
) -> WaitProgress:
    """Wait until all chains that a write of the data source ``queuert`` started are closed, with whatever status.

    Counting takes Postgres longer the more chains there are, so it pauses for ten times as long after each count. Then
    a notification of any closed chain wakes it, or a timeout of a few seconds.

    Args:
        client: a client of the database that was written to.
        write_id: what :func:`~queuert.spark.enqueue` returned, or the option ``writeId``.
        timeout: seconds; None waits for ever.
        on_progress: called when more chains have closed; :class:`ProgressLine` prints a line.

    Raises:
        WriteTimeoutError: some were still open after ``timeout`` seconds; ``open`` is their number. They keep running.
        NotFoundError: no chain of such a write exists: it started none, they have expired, or the id is wrong.
    """
    store, began = client._open_store(), time.monotonic()
    woken = Wakeup()
    subscription = client.notify.subscribe(Topic.CHAINS, lambda notification: woken.set())
    last: BulkCounts | None = None
    try:
        while True:
            requested = time.monotonic()
            counts = count_write(store, write_id)
            now = time.monotonic()
            if not counts.total:
                raise NotFoundError(write_id)
            progress = _of_write(counts, now - began)
            if counts != last and on_progress is not None:
                on_progress(progress)
            if not counts.open:
                return progress
            if timeout is not None and now - began >= timeout:
                raise WriteTimeoutError(write_id, counts.open, timeout)
            last = counts
            _pause(client, woken, now - requested, None if timeout is None else began + timeout - now)
    finally:
        subscription.close()


def chains_of_write(client: Client, write_id: str) -> Iterator[str]:
    """Yield the ids of the chains that a write of the data source ``queuert`` started, for
    :func:`~queuert.spark.results`."""
    return chain_ids_of_write(client._open_store(), write_id)


def _of_write(counts: BulkCounts, seconds: float) -> WaitProgress:
    return WaitProgress(counts.total, counts.open, counts.completed, counts.failed, counts.cancelled, seconds=seconds)


def _pause(client: Client, woken: Wakeup, cost: float, left: float | None) -> None:
    """Pause for at least ten times as long as the count took, and then until a notification or for a few seconds."""
    rest = max(_SHORTEST, cost * 10)
    longest = rest + (POLL_WITH_NOTIFY if client.notify.healthy else POLL_WITHOUT_NOTIFY)
    time.sleep(rest if left is None else min(rest, left))
    if left is None or left > rest:
        woken.wait(longest - rest if left is None else min(longest, left) - rest)


class _Tally:
    """Counts chains as they close."""

    def __init__(self, total: int, on_progress: OnWait | None) -> None:
        self._total = total
        self._on_progress = on_progress
        self._began = time.monotonic()
        self._ended: Counter[ChainStatus] = Counter()

    @property
    def progress(self) -> WaitProgress:
        """The present progress."""
        ended = self._ended
        return WaitProgress(
            total=self._total,
            open=self._total - ended.total(),
            completed=ended[ChainStatus.COMPLETED],
            failed=ended[ChainStatus.FAILED],
            cancelled=ended[ChainStatus.CANCELLED],
            seconds=time.monotonic() - self._began,
        )

    def closed(self, found: Mapping[str, ChainRecord]) -> None:
        """Record chains that have closed."""
        if found:
            self._ended.update(record.status for record in found.values())
            self.tell()

    def tell(self) -> None:
        """Report the progress."""
        if self._on_progress is not None:
            self._on_progress(self.progress)
