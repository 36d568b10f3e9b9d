"""The scenarios on tables that are large, or that an old snapshot keeps from being cleaned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.model import Entry, Scenario, Store
from benchmarks.roster import BARE, QUEUERT

_LARGE_FROM = 100_000
_TYPES = 20
_PASSED = 200


@dataclass(frozen=True)
class Sizes:
    """How large is large.

    Attributes:
        backlogs: jobs that wait while a claim is timed, the fewest first.
        snapshot_backlog: the same under a snapshot.
        finished: jobs that have ended and are kept.
    """

    backlogs: tuple[int, ...] = (1_000, 1_000_000)
    snapshot_backlog: int = 100_000
    finished: int = 1_000_000


DEFAULT = Sizes()
QUICK = Sizes((1_000, 20_000), 20_000, 20_000)
FULL = Sizes((1_000, 1_000_000, 10_000_000), 1_000_000, 10_000_000)


def large(sizes: Sizes) -> tuple[Scenario, ...]:
    """The scenarios at these sizes."""
    return (_claims(sizes), _claims_under_snapshot(sizes), _drains_under_snapshot(), _drains_beside_finished(sizes))


def _claims(sizes: Sizes) -> Scenario:
    return Scenario(
        "claim-backlog",
        "A claim of ten, from backlogs of several lengths",
        Store.POSTGRES,
        "claim",
        tuple(_backlogs(sizes)),
        loaded="load_rows",
        metric="p50_ms",
        unit="ms, p50",
        more_is_better=False,
        share=0.01,
        observed=False,
        note="The store's claim alone. Its commit does not wait for the disk, whose time is the same for all and many "
        "times that of a claim. The ratios are those of the first entry to each.",
    )


def _backlogs(sizes: Sizes) -> Iterator[Entry]:
    for rows in sizes.backlogs:
        kept = rows > _LARGE_FROM
        yield Entry(QUEUERT, f"Queuert, {rows:,}, one type", "claim", {"rows": rows, "types": 1}, kept=kept)
        more = {"rows": rows, "types": _TYPES}
        yield Entry(QUEUERT, f"Queuert, {rows:,}, {_TYPES} types", "claim", more, kept=kept)
    for rows in sizes.backlogs[:2]:
        yield Entry(BARE, f"bare, {rows:,}, one type", "UPDATE by ctid", {"rows": rows}, kept=rows > _LARGE_FROM)


def _claims_under_snapshot(sizes: Sizes) -> Scenario:
    rows = sizes.snapshot_backlog
    return Scenario(
        "claim-snapshot",
        "A claim of ten, after thousands of jobs have come and gone under an old snapshot",
        Store.POSTGRES,
        "claim",
        tuple(_under_snapshot(rows)),
        loaded="load_rows",
        metric="p50_ms",
        unit="ms, p50",
        more_is_better=False,
        share=0.01,
        observed=False,
        note=f"A backlog of {rows:,}. Before the claims that are timed, {_PASSED} times as many jobs were claimed and "
        "completed, while the snapshot was open, or without one.",
    )


def _under_snapshot(rows: int) -> Iterator[Entry]:
    for types in (1, _TYPES):
        options = {"rows": rows, "types": types, "passed": _PASSED}
        words = "one type" if types == 1 else f"{types} types"
        yield Entry(QUEUERT, f"Queuert, {words}, snapshot", "claim", options, snapshot=True)
        yield Entry(QUEUERT, f"Queuert, {words}, none", "claim", options)
    plain = {"rows": rows, "passed": _PASSED}
    yield Entry(BARE, "bare, one type, snapshot", "the plain design", plain, snapshot=True)
    yield Entry(BARE, "bare, one type, none", "the plain design", plain)


def _drains_under_snapshot() -> Scenario:
    hundred = {"concurrency": 100}
    return Scenario(
        "drain-snapshot",
        "Drain no-op jobs under an old snapshot, and without",
        Store.POSTGRES,
        "drain",
        (
            Entry(QUEUERT, "Queuert, snapshot", "concurrency 100", hundred, snapshot=True),
            Entry(QUEUERT, "Queuert, none", "concurrency 100", hundred),
            Entry(BARE, "bare fused, snapshot", "the plain design", {"batch": 100}, 0.2, snapshot=True),
            Entry(BARE, "bare fused, none", "the plain design", {"batch": 100}, 0.2),
        ),
        loaded="load",
        share=10.0,
        note="The snapshot was taken before the first job ran, and is open until the last has. The plain design is "
        "given a fifth of the jobs: what it loses grows with their number.",
    )


def _drains_beside_finished(sizes: Sizes) -> Scenario:
    options = {"concurrency": 100, "rows": sizes.finished}
    return Scenario(
        "drain-finished",
        "Drain no-op jobs beside many that have ended, and without",
        Store.POSTGRES,
        "start_and_drain",
        (
            Entry(QUEUERT, f"Queuert, {sizes.finished:,} finished", "concurrency 100", options, kept=True),
            Entry(QUEUERT, "Queuert, none finished", "concurrency 100", {"concurrency": 100, "rows": 0}),
        ),
        loaded="load_finished",
        share=2.0,
        observed=False,
    )
