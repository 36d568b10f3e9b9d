"""What ``queuert doctor`` finds: the values, the thresholds, and the checks that every store has in common.

Each store has a module ``doctor.py`` with the checks of its own; ``docs/operate/doctor.md`` lists all of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Protocol, runtime_checkable

from queuert.errors import QueuertError, StateUnavailableError
from queuert.jobs import ChainStatus, JobStatus
from queuert.state.paging import ChainFilter, PageRequest
from queuert.state.sync_store import Store
from queuert.state.sync_unread import first_event
from queuert.state.types import StoreWarning
from queuert.state.webhooks import DISPATCHER, DISPATCHER_CURSOR
from queuert.workers import EVERY_WORKER_HANDLES, claimed_types, stopping_workers

POSTGRES_CHECKS = (
    "server",
    "connection",
    "pooler",
    "clock",
    "settings",
    "connections",
    "transactions",
    "replication_slots",
    "listener",
    "schema",
    "cluster",
    "login",
    "roles",
    "pools",
    "event_log",
    "vacuum",
    "size",
)
"""The checks on Postgres besides those on every store. Other stores make some of them, too."""

CHECKS = (
    # Every store.
    "workers",
    "clients",
    "retention",
    "webhooks",
    *POSTGRES_CHECKS,
    # Redis.
    "eviction",
    "persistence",
    "memory",
    "disk",
    # SQLite.
    "file",
    "journal",
    "integrity",
    "synchronous",
    "write_ahead_log",
    "file_system",
)
"""The names of all checks, each once, as the documentation lists them. A store makes some of them."""


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    """The check found nothing wrong."""
    SKIPPED = "skipped"
    """The check could not be made, for want of a right or of something that is checked before it."""
    WARNING = "warning"
    """Jobs run, but something is slower, weaker or fuller than it should be."""
    ERROR = "error"
    """Jobs do not run, or acknowledged jobs may be lost."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: the name of the check, which stays the same from version to version.
        severity: how bad it is.
        found: what was found.
        reason: why it matters; empty if nothing is wrong.
        remedy: the command or the setting that fixes it; empty if nothing is wrong.
    """

    check: str
    severity: Severity
    found: str
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The values above which something is a warning.

    Attributes:
        transaction_seconds: age of the oldest transaction.
        waiting_seconds: how long a due job may wait for a worker, and an event for one that delivers webhooks.
        kept_days: age of the oldest closed chain.
        clock_seconds: difference between the clocks of the server and of this machine, besides the round trip.
        dead_rows: dead rows of a table, if they are also more than a fifth of its rows.
        used_share: share of the connections, of the memory or of the disk that is in use.
        answer_seconds: how long a notification may take.
    """

    transaction_seconds: float = 900.0
    waiting_seconds: float = 60.0
    kept_days: float = 90.0
    clock_seconds: float = 2.0
    dead_rows: int = 10_000
    used_share: float = 0.9
    answer_seconds: float = 2.0


DEFAULT_THRESHOLDS = Thresholds()


@runtime_checkable
class Diagnosable(Protocol):
    """A state adapter that can check its server, as those of this package can."""

    def diagnose(self, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> list[Finding]:
        """Check the server and the schema, and return a finding for each check. It changes nothing.

        Raises:
            StateUnavailableError: the server cannot be reached.
        """
        ...


def ok(check: str, found: str) -> Finding:
    """A finding of a check that found nothing wrong."""
    return Finding(check, Severity.OK, found)


def skipped(check: str, reason: str, remedy: str = "") -> Finding:
    """A finding of a check that could not be made."""
    return Finding(check, Severity.SKIPPED, "not checked", reason, remedy)


def warning(check: str, found: str, reason: str, remedy: str) -> Finding:
    """A finding of something that is worse than it should be."""
    return Finding(check, Severity.WARNING, found, reason, remedy)


def error(check: str, found: str, reason: str, remedy: str) -> Finding:
    """A finding of something that keeps jobs from running, or may lose them."""
    return Finding(check, Severity.ERROR, found, reason, remedy)


def connection_findings(risks: Sequence[StoreWarning], *, secure: str) -> Iterator[Finding]:
    """The risks that a store found when it was opened; ``secure`` is what there is to say if it found none."""
    if not risks:
        yield ok("connection", secure)
    for risk in risks:
        problem, _, remedy = risk.advice.partition(": ")
        yield warning("connection", risk.name, problem, remedy)


def clock_finding(server_time: Callable[[], float], thresholds: Thresholds) -> Finding:
    """Compare a server's clock, in seconds since 1970, with this machine's, as if it was read half way through."""
    begun = time.time()
    server = server_time()
    trip = time.time() - begun
    difference = server - (begun + trip / 2)
    if abs(difference) <= thresholds.clock_seconds + trip / 2:
        return ok("clock", f"the server's clock differs by less than {thresholds.clock_seconds:g} seconds")
    direction = "ahead of" if difference > 0 else "behind"
    return warning(
        "clock",
        f"the server's clock is {abs(difference):,.1f} seconds {direction} this machine's",
        "leases are by the server's clock alone, but at(...) of clients, and logs, are by their machine's",
        "synchronise both clocks: timedatectl set-ntp true",
    )


_LOGIN_OF_READERS = "use a login that may read chains and workers"


def store_findings(store: Store, thresholds: Thresholds) -> Iterator[Finding]:
    """The checks that use nothing but the operations of an open store."""
    checks: tuple[tuple[str, Callable[[Store, Thresholds], Iterable[Finding]], str], ...] = (
        ("workers", _workers, _LOGIN_OF_READERS),
        ("clients", _clients, _LOGIN_OF_READERS),
        ("retention", _retention, _LOGIN_OF_READERS),
        ("webhooks", _webhooks, "use a login with the role of workers or operators"),
    )
    for name, check, remedy in checks:
        try:
            yield from check(store, thresholds)
        except StateUnavailableError:
            raise
        except QueuertError as failure:
            yield skipped(name, str(failure), remedy)


def _workers(store: Store, thresholds: Thresholds) -> Iterator[Finding]:
    """Due jobs that wait although nobody would take them: no worker handles their type, or it is paused."""
    workers = store.list_workers()
    handled = claimed_types(workers)
    paused = {one.type for one in store.list_paused_job_types()}
    by_clients = {one.type for one in store.list_type_traits() if one.completed_by_client}
    healthy, fresh = True, 0
    for count in store.count_jobs(exact_up_to=100):
        if count.status is not JobStatus.READY or count.type in by_clients:
            continue
        is_paused, waited = count.type in paused, count.oldest_seconds
        if not is_paused and count.type in handled:
            continue
        found = f"due jobs of type {count.type} wait: {'about ' if count.estimated else ''}{count.count:,}"
        if waited is not None:
            found = f"the oldest due job of type {count.type} has waited for {waited:,.0f} seconds"
            # A worker that handles the type may be about to start, while others are there.
            if waited < thresholds.waiting_seconds and (is_paused or workers):
                fresh += count.count
                continue
        healthy = False
        if is_paused:
            remedy = f"queuert job-types resume {count.type}"
            yield warning("workers", found, "the type is paused, so no worker claims its jobs", remedy)
        else:
            remedy = "start a worker with a handler of this type: queuert worker MODULE:ATTRIBUTE"
            if count.type in EVERY_WORKER_HANDLES:
                remedy = (
                    "start a worker, of whatever types: queuert worker MODULE:ATTRIBUTE; or: queuert operations run"
                )
            stopping = stopping_workers(workers, count.type)
            reason = "no live worker handles the type" + (f"; {stopping}" if stopping else "")
            yield warning("workers", found, reason if workers else f"{reason}: none is alive", remedy)
    if not healthy:
        return
    waits = "no due job waits for a type that nobody handles"
    if fresh:
        waits = (
            f"due jobs of types that nobody handles, or that are paused: {fresh:,}; none of them has waited for "
            f"{thresholds.waiting_seconds:g} seconds yet"
        )
    yield ok("workers", f"{len(workers)} alive; {waits}")


def _clients(store: Store, thresholds: Thresholds) -> Iterator[Finding]:
    """Jobs that have waited for a client for longer than their type allows. Nothing if no type allows a time."""
    allowed = {one.type: one.overdue_after for one in store.list_type_traits() if one.overdue_after is not None}
    if not allowed:
        return
    healthy = True
    for count in store.count_jobs(list(allowed), exact_up_to=100):
        waited, after = count.oldest_seconds, allowed[count.type]
        if count.status is JobStatus.READY and waited is not None and waited > after:
            healthy = False
            yield warning(
                "clients",
                f"the oldest job of type {count.type} has waited for a client for {waited:,.0f} seconds, and is "
                f"overdue after {after:,.0f}",
                "nobody has completed it, and its chain goes on when a client does",
                f"queuert jobs list --type {count.type} --status ready --oldest-first; complete or cancel their chains",
            )
    if healthy:
        yield ok("clients", "no job has waited for a client for longer than its type allows")


def _retention(store: Store, thresholds: Thresholds) -> Iterator[Finding]:
    """Closed chains that are kept for long. Policies are in the code of workers; what they leave is in the store."""
    closed = (ChainStatus.COMPLETED, ChainStatus.FAILED, ChainStatus.CANCELLED)
    before = datetime.now(UTC) - timedelta(days=thresholds.kept_days)
    page = store.list_chains(ChainFilter(statuses=closed, before=before), PageRequest(1, oldest_first=True))
    if not page.items:
        yield ok("retention", f"no closed chain is older than {thresholds.kept_days:g} days")
        return
    oldest = page.items[0]
    yield warning(
        "retention",
        f"closed chains are older than {thresholds.kept_days:g} days; the oldest is of type {oldest.type}, "
        f"from {oldest.created_at:%Y-%m-%d}",
        "the store grows without end unless retention deletes closed chains",
        f"give the handler a retention: handles({oldest.type}, retention=Retention(...)), and run a worker with it",
    )


def _webhooks(store: Store, thresholds: Thresholds) -> Iterator[Finding]:
    """Events of which no webhook is told, as no worker reads them. Nothing before the first webhook is made, or the
    first worker delivers."""
    found = store.get_webhook_records(DISPATCHER, [DISPATCHER_CURSOR])
    if not found:
        return
    unread = first_event(store, json.loads(found[0].body)["cursor"])
    waited = None if unread is None else (datetime.now(UTC) - unread.happened_at).total_seconds()
    if waited is None or waited < thresholds.waiting_seconds:
        yield ok("webhooks", "no event waits for a worker that delivers webhooks")
        return
    yield warning(
        "webhooks",
        f"the oldest event that no worker has read for webhooks is {waited:,.0f} seconds old",
        "no webhook is told of it, and retention deletes no chain that has closed since",
        "run a worker with webhook_processors(client); if one runs, its log says why it does not get on",
    )
