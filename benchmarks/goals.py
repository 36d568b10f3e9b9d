"""The targets, one or several for each row of what this library is to reach."""

from __future__ import annotations

from benchmarks.targets import (
    Place,
    Target,
    across,
    between,
    figure,
    to,
    to_best_peer,
    to_label,
    to_sparest_peer,
)

_HUNDRED = "Queuert, concurrency 100"
_SINGLE = ("drain-best", _HUNDRED)
_DELETES = ("pgqueuer",)
UPSTREAM_RATE = 785
"""Jobs a second of Queuert in TypeScript, at the settings of its own benchmark, measured apart."""

_FEW = {"rows": 1_000}
_ONE_TYPE, _TWENTY = {"types": 1}, {"types": 20}

TARGETS = (
    Target("drain: ours to the bare fused statement, batch 100", to_label("drain-best", "bare fused, batch 100"), 0.6),
    Target("drain: ours to pgqueuer's best configuration", to("drain-best", "pgqueuer"), 1.25),
    Target("drain: ours to the best peer", to_best_peer("drain-best"), 1.0),
    Target(
        f"drain, jobs/s: 50 times the {UPSTREAM_RATE} of upstream, which were measured in another run",
        figure("drain-best", "rate"),
        50 * UPSTREAM_RATE,
    ),
    Target("drain, defaults: ours to the best peer's default", to_best_peer("drain-default"), 2.0),
    Target("a user's write and the completion: ours to the bare pipeline", to("drain-writes", "bare"), 0.6),
    Target("start 1,000 a call: ours to the bare insert", to_label("start-batches", "bare insert"), 0.5),
    Target("start 1,000 a call: ours to the best peer", to_best_peer("start-batches"), 1.0),
    Target("start one: ours to the bare insert", to_label("start-single", "bare insert"), 0.7),
    Target("start one: ours to the best peer", to_best_peer("start-single"), 1.0),
    Target("latency, idle, p50: ours to the bare, times as good", to("latency-idle", "bare"), 1 / 3),
    Target(
        "latency, idle, p50: ours on uvloop to the best peer, times as good",
        to_best_peer("latency-idle", "Queuert, uvloop"),
        1.0,
    ),
    Target(
        "latency, idle, p99: ours on uvloop to the best peer, times as good",
        to_best_peer("latency-idle", "Queuert, uvloop", metric="p99_ms"),
        1.0,
    ),
    Target(
        "claim of ten, one type: time at the longest backlog to that at 1,000",
        between(
            Place("claim-backlog", _ONE_TYPE, greatest="rows"), Place("claim-backlog", {**_FEW, **_ONE_TYPE}), "p50_ms"
        ),
        most=1.3,
    ),
    Target(
        "claim of ten, twenty types: time at the longest backlog to that at 1,000",
        between(
            Place("claim-backlog", _TWENTY, greatest="rows"), Place("claim-backlog", {**_FEW, **_TWENTY}), "p50_ms"
        ),
        most=1.3,
    ),
    Target(
        "claim of ten at the longest backlog: time of twenty types to one",
        between(
            Place("claim-backlog", _TWENTY, greatest="rows"),
            Place("claim-backlog", _ONE_TYPE, greatest="rows"),
            "p50_ms",
        ),
        most=2,
    ),
    Target(
        "claim of ten: time under a snapshot to that without",
        between(Place("claim-snapshot", _ONE_TYPE, snapshot=True), Place("claim-snapshot", _ONE_TYPE), "p50_ms"),
        most=1.3,
    ),
    Target(
        "drain under a snapshot to that without",
        across(("drain-snapshot", "Queuert, snapshot"), ("drain-snapshot", "Queuert, none")),
        0.9,
    ),
    Target(
        "drain beside many finished jobs to that without",
        between(Place("drain-finished", {}, greatest="rows"), Place("drain-finished", {"rows": 0}), "rate"),
        0.9,
    ),
    Target("worker CPU, us a job", figure("drain-best", "cpu_us"), most=20),
    Target("worker memory, MiB", figure("drain-best", "rss_mib"), most=64),
    Target("chain of five: a job of it to a single one", across(("drain-chains", _HUNDRED), _SINGLE), 0.5),
    Target("join: a job of it to a single one", across(("drain-join", _HUNDRED), _SINGLE), 0.5),
    Target(
        "join: a job of many blockers to one of a tenth as many",
        across(("drain-join", _HUNDRED), ("drain-join", "Queuert, a tenth as many")),
        0.8,
    ),
    Target(
        "WAL bytes a job: those of the sparest peer that keeps the row to ours",
        to_sparest_peer("drain-best", "wal_bytes", without=_DELETES),
        1.0,
    ),
    Target(
        "commits a job: those of the sparest peer that keeps the row to ours",
        to_sparest_peer("drain-best", "commits", without=_DELETES),
        1.0,
    ),
    Target("four worker processes to one", across(("drain-four", f"{_HUNDRED}, four"), _SINGLE), 1.0),
    Target("Redis drain: ours to the best peer", to_best_peer("redis-drain"), 1.0),
    Target("Redis start: ours to the best peer", to_best_peer("redis-start-batches"), 1.0),
)
