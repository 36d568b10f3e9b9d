"""How long a script occupies Redis: `python -m benchmarks.redis_scripts`.

A namespace gets many jobs of many types. Then each operation is called with as much as a call can carry, and the log of
the server tells how long the longest script of the call took. While a script runs, a Redis server does nothing else: so
long everybody else waits. The least of some rounds is taken, since whatever else runs on the machine only adds to it.
Beside it stands the processor time of the server for a script of the call, the mean, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import redis

from benchmarks.servers import RedisServer, valkey
from queuert.activity import ActivityFilter
from queuert.ids import new_id, new_token
from queuert.jobs import ChainStatus, JobStatus
from queuert.limits import Limits
from queuert.policies import Keep, Retention, RetryPolicy
from queuert.run_at import after
from queuert.state import Store
from queuert.state.paging import ChainFilter, JobFilter, PageRequest
from queuert.state.redis import RedisState
from queuert.state.redis.scripts import all_names, script
from queuert.state.types import (
    ClaimedJob,
    ClaimRequest,
    Finish,
    FinishKind,
    Lease,
    NewJob,
    PruneRequest,
    ReapRequest,
    Renewal,
    WorkerlessCompletion,
)
from queuert.workers import WorkerHeartbeat

TARGET = 5.0
"""Milliseconds that a script may take, but for a start, which is one script."""
_PORTION = 1_000
_LOGGED = 20_000
_LOGGED_FROM = 50
"""Microseconds: the log has the commands in scripts, too."""
_HOLDER = "worker"
_MANY = "many"
_KEYED = "keyed"


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest script of a call."""

    script: str
    milliseconds: float
    scripts: int
    mean: float
    """Milliseconds of the server's processor time for a script, with what it takes to read the call and to answer."""


@dataclass(slots=True)
class Namespace:
    """Jobs of many types, and what the operations of the benchmark are called with."""

    server: redis.Redis
    store: Store
    types: Sequence[str]
    ids: Sequence[str]
    """Of `many`, one type."""
    held: list[ClaimedJob] = field(default_factory=list)

    def processor_seconds(self) -> float:
        """Of the server, since its start. The main thread runs all scripts."""
        pid = self.server.info("server")["process_id"]
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9

    def claim(self, limit: int, types: Sequence[str] | None = None) -> list[ClaimedJob]:
        """Claim, and keep what was claimed."""
        request = ClaimRequest(dict.fromkeys(types or self.types, 600.0), limit, _HOLDER, new_token())
        self.held = self.store.claim(request)
        return self.held


def jobs(type: str, count: int, **more: Any) -> list[NewJob]:
    """New jobs of a type."""
    return [NewJob(new_id(), type, "1", **more) for _ in range(count)]


def start(store: Store, new: Sequence[NewJob]) -> list[str]:
    """Start in portions."""
    for at in range(0, len(new), _PORTION):
        store.start_jobs(new[at : at + _PORTION])
    return [one.id for one in new]


_READERS: Mapping[str, Callable[[Store, str, str], object]] = {
    "count": lambda store, type, _: store.count_jobs([type]),
    "demand": lambda store, type, _: store.get_demand([type]),
    "why": lambda store, _, last: store.get_wait_facts(last),
    "claim": lambda store, type, _: store.claim(ClaimRequest({type: 600.0}, 1, _HOLDER, new_token())),
}
"""What reads the waiting lists of a type, and is called with its last job."""


def behind_dead_entries(store: Store, type: str, count: int) -> str:
    """Start jobs and cancel all but the last one, from the end to the front. Return the id of the last one."""
    *cancelled, last = start(store, jobs(type, count + 1))
    store.cancel_chains(cancelled[::-1], reason="measured")
    return last


def operations(there: Namespace) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each operation in an order in which the next one finds what it needs, and what calls it."""
    store, types, ids = there.store, there.types, there.ids
    limits = {type: Limits(per_key=1, rate=None) for type in (_KEYED,)}
    now = datetime.now(UTC)

    yield "start 1", lambda: store.start_jobs(jobs(_MANY, 1))
    yield "start 1,000", lambda: store.start_jobs(jobs(_MANY, 1_000))
    yield "claim 1", lambda: there.claim(1)
    yield "claim 1,000 of all types", lambda: there.claim(1_000)
    yield "renew 1,000", lambda: store.renew([Renewal(Lease(one.id, one.token), 600.0) for one in there.held])
    yield "lost reasons of 1,000", lambda: store.lost_reasons([Lease(one.id, one.token) for one in there.held])
    yield "release 1,000", lambda: store.release([Lease(one.id, one.token) for one in there.held])
    there.claim(1_000)
    yield "finish 100", lambda: store.finish([Finish(one, FinishKind.COMPLETE, output="1") for one in there.held[:100]])
    yield "finish 900", lambda: store.finish([Finish(one, FinishKind.COMPLETE, output="1") for one in there.held[100:]])
    keyed = ClaimRequest({_KEYED: 600.0}, 1_000, _HOLDER, new_token(), limits=limits)
    yield "claim 1,000 with keys", lambda: store.claim(keyed)
    keyed_again = ClaimRequest({_KEYED: 600.0}, 1_000, _HOLDER, new_token(), limits=limits)
    yield "claim with full keys", lambda: store.claim(keyed_again)
    policies = dict.fromkeys(types, RetryPolicy())
    short = ClaimRequest(dict.fromkeys(types, 0.001), 1_000, _HOLDER, new_token())
    store.claim(short)
    yield "reap 100 of all types", lambda: store.reap(ReapRequest(policies))
    yield "next due", lambda: store.next_due(types)
    yield "count jobs", lambda: store.count_jobs()
    yield "demand", lambda: store.get_demand()
    yield "why", lambda: store.get_wait_facts(ids[-1])
    for name, call in _READERS.items():
        last = behind_dead_entries(store, name, len(ids))
        yield f"{name} behind {len(ids):,} dead", partial(call, store, name, last)
    yield "jobs of workers", lambda: store.count_held([_HOLDER] * 1_000)
    yield "jobs by ids", lambda: store.get_jobs(ids)
    yield "chains by ids", lambda: store.get_chains(ids)
    yield "states of chains", lambda: store.get_chain_states(ids)
    yield "closed chains", lambda: store.closed_chains(ids)
    yield "links of chains", lambda: store.get_blocker_links(ids, limit=100)
    yield "list 1,000 chains", lambda: store.list_chains(ChainFilter(), PageRequest(1_000))
    failed = ChainFilter(statuses=(ChainStatus.FAILED,))
    yield "list failed chains", lambda: store.list_chains(failed, PageRequest(100))
    blocked = JobFilter(statuses=(JobStatus.BLOCKED,))
    yield "list blocked jobs", lambda: store.list_jobs(blocked, PageRequest(100))
    yield "change waiting jobs", lambda: store.change_waiting_jobs(ids, run_at=after(hours=1))
    yield "trigger", lambda: store.trigger_jobs(ids)
    yield "cancel", lambda: store.cancel_chains(ids, reason="measured")
    yield "retry", lambda: store.retry_chains(ids)
    completions = [WorkerlessCompletion(id, id, output="1") for id in ids]
    yield "complete", lambda: store.complete_chains(completions)
    yield "change result TTLs", lambda: store.update_result_ttl(ids[: len(ids) // 2], 0.001)
    retention = {_MANY: Retention(completed=Keep(count=1))}
    yield "prune", lambda: store.prune(PruneRequest(retention))
    yield "delete", lambda: store.delete_chains(ids)
    yield "release stranded", lambda: store.release_stranded()
    beat = WorkerHeartbeat(_HOLDER, "worker", "host", 1, "0", tuple(types), 100, 0, 1.0, limits=limits)
    yield "heartbeat", lambda: store.record_heartbeat(beat, 60.0)
    yield "list workers", lambda: store.list_workers()
    yield "activity", lambda: store.get_activity(ActivityFilter(now - timedelta(hours=1)))
    # The last one: the scripts after it pay for the memory that it leaves to the garbage collector.
    yield f"start {len(ids):,}", lambda: store.start_jobs(jobs(_MANY, len(ids)))


def measured(there: Namespace, call: Callable[[], object], names: Mapping[str, str]) -> Longest:
    """The longest script of a call."""
    there.server.slowlog_reset()
    there.server.config_resetstat()
    before = there.processor_seconds()
    call()
    spent = there.processor_seconds() - before
    entries: list[dict[str, Any]] = there.server.slowlog_get(_LOGGED)
    found = [(one["duration"] / 1000, one["command"].split()) for one in entries]
    scripts = [(took, names[words[1].decode()]) for took, words in found if words[0].upper() == b"EVALSHA"]
    took, name = max(scripts, default=(0.0, "-"))
    calls = there.server.info("commandstats")["cmdstat_evalsha"]["calls"]
    return Longest(name, took, calls, spent / calls * 1000)


def round_of(server: RedisServer, type_count: int, job_count: int, id_count: int) -> dict[str, Longest]:
    """Fill a namespace, and measure each operation once."""
    names = {script(name).digest: name for name in all_names()}
    with server.emptied() as url, redis.Redis.from_url(url) as raw:
        for name in names.values():
            raw.script_load(script(name).text)
        store = RedisState(url).sync_store(max_connections=1)
        store.open()
        types = [f"type-{number}" for number in range(type_count)]
        for type in types:
            start(store, jobs(type, job_count // type_count))
        ids = start(store, jobs(_MANY, id_count))
        start(store, [one for key in range(id_count) for one in jobs(_KEYED, 1, limit_key=str(key % 10_000))])
        raw.config_set("slowlog-log-slower-than", _LOGGED_FROM)
        raw.config_set("slowlog-max-len", _LOGGED)
        # A server that forks copies each page that a script writes then.
        raw.config_set("auto-aof-rewrite-percentage", 0)
        there = Namespace(raw, store, types, ids)
        found = {name: measured(there, call, names) for name, call in operations(there)}
        store.close()
    return found


def report(rounds: Sequence[Mapping[str, Longest]]) -> str:
    """A table: of each operation its longest script, in the round in which that was shortest."""
    lines = [f"{'':<26}{'longest script':<22}{'ms':>8}{'mean':>8}{'scripts':>9}"]
    for name in rounds[0]:
        least = min((one[name] for one in rounds), key=lambda one: one.milliseconds)
        over = "  over" if least.milliseconds > TARGET else ""
        mean = min(one[name].mean for one in rounds)
        lines.append(f"{name:<26}{least.script:<22}{least.milliseconds:>8.2f}{mean:>8.2f}{least.scripts:>9}{over}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--types", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=100_000, help="of all these types together")
    parser.add_argument("--ids", type=int, default=20_000, help="in a call")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with valkey() as server:
        print(server.version())
        print(report([round_of(server, args.types, args.jobs, args.ids) for _ in range(args.rounds)]))


if __name__ == "__main__":
    main()
