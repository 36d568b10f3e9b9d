"""The targets of the figures on Postgres."""

from __future__ import annotations

from benchmarks.targets import Target, across, figure, to, to_best_peer, to_label

_HUNDRED = "Queuert, concurrency 100"
_SINGLE = ("drain-best", _HUNDRED)

TARGETS = (
    Target("drain: ours to the bare fused statement, batch 100", to_label("drain-best", "bare fused, batch 100"), 0.6),
    Target("drain: ours to pgqueuer's best configuration", to("drain-best", "pgqueuer"), 1.25),
    Target("drain: ours to the best peer", to_best_peer("drain-best"), 1.0),
    Target("drain, defaults: ours to the best peer's default", to_best_peer("drain-default"), 2.0),
    Target("a user's write and the completion: ours to the bare pipeline", to("drain-writes", "bare"), 0.6),
    Target("start 1,000 a call: ours to the bare insert", to("start-batches", "bare"), 0.5),
    Target("start 1,000 a call: ours to the best peer", to_best_peer("start-batches"), 1.0),
    Target("start one: ours to the bare insert", to("start-single", "bare"), 0.7),
    Target("start one: ours to the best peer", to_best_peer("start-single"), 1.0),
    Target("latency: ours to the bare, times as good", to("latency-idle", "bare"), 1 / 3),
    Target("latency: ours to the best peer, times as good", to_best_peer("latency-idle"), 1.0),
    Target("worker CPU, us a job", figure("drain-best", "cpu_us"), most=20),
    Target("worker memory, MiB", figure("drain-best", "rss_mib"), most=64),
    Target(
        "chain of five: a job of it to a single one", across(("drain-chains", _HUNDRED), ("drain-best", _HUNDRED)), 0.5
    ),
    Target("join: a job of it to a single one", across(("drain-join", _HUNDRED), ("drain-best", _HUNDRED)), 0.5),
    Target("Redis drain: ours to the best peer", to_best_peer("redis-drain"), 1.0),
    Target("Redis start: ours to the best peer", to_best_peer("redis-start-batches"), 1.0),
)
