"""The raw ceiling on Redis: lists and hashes through redis-py, with no library around it.

A job is a hash with its input, status, attempt, token and output; its id is in a list, and its lease in a sorted set.
"""

from __future__ import annotations

import json
from typing import Any

import redis

from benchmarks.child import Latencies, Meter, Request, now, ready, serve
from benchmarks.contestants.support import batches
from queuert.ids import new_id, new_token

_WAITING, _PROCESSING, _LEASES, _BELL = "{bare}:waiting", "{bare}:processing", "{bare}:leases", "{bare}:bell"
_JOB = "{bare}:job:"

_START = """
local waiting, prefix = KEYS[1], ARGV[1]
for at = 2, #ARGV, 2 do
    redis.call('HSET', prefix .. ARGV[at], 'input', ARGV[at + 1], 'status', 'ready')
    redis.call('LPUSH', waiting, ARGV[at])
end
return (#ARGV - 1) / 2
"""

_STEP = """
local waiting, processing, leases = KEYS[1], KEYS[2], KEYS[3]
local prefix, limit, before, token = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for at = 5, #ARGV, 2 do
    local key = prefix .. ARGV[at]
    if redis.call('HGET', key, 'token') == before then
        redis.call('HSET', key, 'status', 'completed', 'output', ARGV[at + 1], 'finished', now)
        redis.call('HDEL', key, 'token')
        redis.call('ZREM', leases, ARGV[at])
        redis.call('LREM', processing, -1, ARGV[at])
    end
end
local claimed = {}
for _ = 1, limit do
    local id = redis.call('LMOVE', waiting, processing, 'RIGHT', 'LEFT')
    if not id then break end
    local key = prefix .. id
    redis.call('HSET', key, 'status', 'running', 'token', token, 'holder', 'bare')
    redis.call('HINCRBY', key, 'attempt', 1)
    redis.call('ZADD', leases, now + 60000, id)
    claimed[#claimed + 1] = id
    claimed[#claimed + 1] = redis.call('HGET', key, 'input')
end
return claimed
"""


def _connect(request: Request) -> Any:
    return redis.Redis.from_url(request.server)


def load(request: Request) -> None:
    """No-op jobs."""
    start_batches(request)


def start_batches(request: Request) -> dict[str, float]:
    """A script that writes many."""
    with _connect(request) as connection:
        start = connection.register_script(_START)
        with Meter(request.jobs) as meter:
            for numbers in batches(request.jobs):
                start([_WAITING], [_JOB, *(one for number in numbers for one in (new_id(), json.dumps(number)))])
    return meter.answer()


def start_single(request: Request) -> dict[str, float]:
    """A script that writes one."""
    with _connect(request) as connection:
        start = connection.register_script(_START)
        with Meter(request.jobs) as meter:
            for number in range(request.jobs):
                start([_WAITING], [_JOB, new_id(), json.dumps(number)])
    return meter.answer()


def drain(request: Request) -> dict[str, float]:
    """In one of several ways."""
    ways = {"move": _move, "moves": _move_in_pipelines, "claim": _claim, "step": _step}
    with _connect(request) as connection:
        with Meter(request.jobs) as meter:
            ways[request.option("way")](connection, request)
        if connection.llen(_WAITING):
            raise SystemExit("not all jobs have been taken")
    return meter.answer()


def _move(connection: Any, request: Request) -> None:
    """One LMOVE after the other: nothing is completed."""
    while connection.lmove(_WAITING, _PROCESSING, "RIGHT", "LEFT") is not None:
        pass


def _move_in_pipelines(connection: Any, request: Request) -> None:
    """Many LMOVEs a round trip: nothing is completed."""
    moved: list[Any] = [True]
    while moved[-1] is not None:
        pipeline = connection.pipeline(transaction=False)
        for _ in range(request.option("batch")):
            pipeline.lmove(_WAITING, _PROCESSING, "RIGHT", "LEFT")
        moved = pipeline.execute()


def _claim(connection: Any, request: Request) -> None:
    """Claims by script: nothing is completed."""
    step = connection.register_script(_STEP)
    limit = request.option("batch")
    while step([_WAITING, _PROCESSING, _LEASES], [_JOB, limit, "", new_token()]):
        pass


def _step(connection: Any, request: Request) -> None:
    """A script that completes what was claimed before, fenced, and claims the next."""
    step = connection.register_script(_STEP)
    limit, before = request.option("batch"), ""
    done: list[Any] = []
    while True:
        token = new_token()
        claimed = step([_WAITING, _PROCESSING, _LEASES], [_JOB, limit, before, token, *done])
        if not claimed:
            return
        done = [json.dumps(json.loads(one)) if at % 2 else one for at, one in enumerate(claimed)]
        before = token


def wait_for_jobs(request: Request) -> dict[str, float]:
    """A blocking pop of a bell, then a claim."""
    latencies, left = Latencies(request.jobs), request.jobs
    with _connect(request) as connection:
        step = connection.register_script(_STEP)
        ready()
        while left > 0:
            connection.blpop([_BELL], timeout=5)
            claimed = step([_WAITING, _PROCESSING, _LEASES], [_JOB, 10, "", new_token()])
            for value in claimed[1::2]:
                latencies.arrived(json.loads(value))
                left -= 1
    return latencies.answer()


def pace(request: Request) -> None:
    """Starts, each with a ring of the bell."""
    import time

    with _connect(request) as connection:
        for _ in range(request.jobs):
            connection.eval(_START, 1, _WAITING, _JOB, new_id(), json.dumps(now()))
            connection.lpush(_BELL, 1)
            time.sleep(0.02)


if __name__ == "__main__":
    serve(
        {
            "load": load,
            "start_single": start_single,
            "start_batches": start_batches,
            "drain": drain,
            "wait_for_jobs": wait_for_jobs,
            "pace": pace,
        }
    )
