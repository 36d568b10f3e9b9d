"""The scenarios on Redis, and who takes part in each, in its best documented configuration."""

from __future__ import annotations

from benchmarks.model import Entry, Scenario, Store
from benchmarks.roster import ARQ, BARE_REDIS, BULLMQ, DRAMATIQ, QUEUERT, RQ, SAQ

_ONE_BY_ONE = "one call after the other"
_LOOP = "one call after the other: there is no bulk start"
_FAST = {"uvloop": True}
_PLAIN_FAST = "hiredis, uvloop"

START_SINGLE = Scenario(
    "redis-start-single",
    "Redis: start one job at a time",
    Store.REDIS,
    "start_single",
    (
        Entry(QUEUERT, "Queuert", f"sync client, {_ONE_BY_ONE}"),
        Entry(BARE_REDIS, "bare EVALSHA", "HSET and LPUSH in a script, redis-py"),
        Entry(ARQ, "arq", f"enqueue_job, {_PLAIN_FAST}", _FAST),
        Entry(SAQ, "saq", f"enqueue, {_PLAIN_FAST}", _FAST),
        Entry(RQ, "rq", "enqueue, hiredis"),
        Entry(DRAMATIQ, "dramatiq", "send, hiredis"),
        Entry(BULLMQ, "bullmq", f"add, {_PLAIN_FAST}", _FAST),
    ),
    share=0.2,
)

START_BATCHES = Scenario(
    "redis-start-batches",
    "Redis: start 1,000 jobs a call",
    Store.REDIS,
    "start_batches",
    (
        Entry(QUEUERT, "Queuert", "start_chains of 1,000", share=2.0),
        Entry(BARE_REDIS, "bare EVALSHA", "HSET and LPUSH of 1,000 in a script, redis-py", share=2.0),
        Entry(ARQ, "arq", _LOOP, _FAST, 0.2),
        Entry(SAQ, "saq", _LOOP, _FAST, 0.2),
        Entry(RQ, "rq", "enqueue_many of 1,000, hiredis", share=0.2),
        Entry(DRAMATIQ, "dramatiq", _LOOP, share=0.2),
        Entry(BULLMQ, "bullmq", f"addBulk of 1,000, {_PLAIN_FAST}", _FAST),
    ),
)

DRAIN_DEFAULT = Scenario(
    "redis-drain-default",
    "Redis: drain no-op jobs, one worker, the default configuration of each",
    Store.REDIS,
    "drain",
    (
        Entry(QUEUERT, "Queuert, default", "concurrency 1"),
        Entry(BARE_REDIS, "bare LMOVE, one at a time", "redis-py; nothing is completed", {"way": "move"}),
        Entry(BARE_REDIS, "bare EVALSHA claim, one at a time", "nothing is completed", {"way": "claim", "batch": 1}),
        Entry(BARE_REDIS, "bare EVALSHA, complete and claim one", "fenced", {"way": "step", "batch": 1}),
        Entry(ARQ, "arq, default", "max_jobs 10, poll_delay 0.5 s", share=0.02),
        Entry(SAQ, "saq, default", "concurrency 10", share=0.2),
        Entry(RQ, "rq, default", "Worker, which forks for each job", share=0.02),
        Entry(DRAMATIQ, "dramatiq, default", "8 threads", share=0.3),
        Entry(BULLMQ, "bullmq, default", "concurrency 1", share=0.2),
    ),
    loaded="load",
)

DRAIN_BEST = Scenario(
    "redis-drain",
    "Redis: drain no-op jobs, one worker, the best configuration of each",
    Store.REDIS,
    "drain",
    (
        Entry(QUEUERT, "Queuert, concurrency 100", "concurrency 100", {"concurrency": 100}, 2.0),
        Entry(QUEUERT, "Queuert, concurrency 1", "concurrency 1", {"concurrency": 1}),
        Entry(BARE_REDIS, "bare LMOVE, 100 a pipeline", "nothing is completed", {"way": "moves", "batch": 100}, 2.0),
        Entry(BARE_REDIS, "bare EVALSHA claim of 100", "nothing is completed", {"way": "claim", "batch": 100}, 2.0),
        Entry(BARE_REDIS, "bare EVALSHA, complete and claim 100", "fenced", {"way": "step", "batch": 100}, 2.0),
        Entry(
            ARQ,
            "arq, 100 jobs",
            f"max_jobs 100, poll_delay 10 ms, {_PLAIN_FAST}",
            {**_FAST, "max_jobs": 100, "poll_delay": 0.01},
            share=0.2,
        ),
        Entry(SAQ, "saq, concurrency 32", f"concurrency 32, {_PLAIN_FAST}", {**_FAST, "concurrency": 32}, 0.3),
        Entry(RQ, "rq, SimpleWorker", "jobs run in the worker's own process, hiredis", {"simple": True}, 0.05),
        Entry(DRAMATIQ, "dramatiq, 8 threads", "8 threads, hiredis", {"threads": 8}, 0.3),
        Entry(BULLMQ, "bullmq, concurrency 32", f"concurrency 32, {_PLAIN_FAST}", {**_FAST, "concurrency": 32}, 0.3),
    ),
    loaded="load",
)

LATENCY = Scenario(
    "redis-latency-idle",
    "Redis: from a start to its handler, the worker idle",
    Store.REDIS,
    "wait_for_jobs",
    (
        Entry(QUEUERT, "Queuert", "default"),
        Entry(BARE_REDIS, "bare", "BLPOP of a bell, then a claim by script"),
        Entry(ARQ, "arq", f"poll_delay 10 ms, {_PLAIN_FAST}", {**_FAST, "poll_delay": 0.01}),
        Entry(SAQ, "saq", _PLAIN_FAST, _FAST),
        Entry(RQ, "rq", "SimpleWorker, hiredis"),
        Entry(DRAMATIQ, "dramatiq", "8 threads, hiredis"),
        Entry(BULLMQ, "bullmq", _PLAIN_FAST, _FAST),
    ),
    metric="p50_ms",
    unit="ms, p50",
    more_is_better=False,
    share=0.01,
    paced=True,
    note="A second process starts one job each 20 ms, while the worker waits; the clock runs from before the start.",
)

REDIS = (START_SINGLE, START_BATCHES, DRAIN_DEFAULT, DRAIN_BEST, LATENCY)
