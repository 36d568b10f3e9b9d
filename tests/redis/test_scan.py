"""The scan finds what it says it finds: a namespace with everything in it is damaged in every way, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pytest
import redis

from queuert.activity import Activity, ActivityReport
from queuert.deduplication import Deduplicate
from queuert.errors import QueuertError
from queuert.ids import new_token
from queuert.limits import Limits
from queuert.state.paging import JobFilter, PageRequest
from queuert.state.redis import RedisState
from queuert.state.redis.sync_store import RedisStore
from queuert.state.types import ClaimedJob, ClaimRequest, Finish, FinishKind, NewJob, PruneRequest, ReapRequest
from queuert.testing.conformance.builders import LAST_ATTEMPT, complete, due_later, fail, go_on
from queuert.testing.redis_scan import scan
from queuert.workers import WorkerHeartbeat

Client: TypeAlias = Any
NAMESPACE = "damaged [x]*"


def k(name: str) -> str:
    """A key of the namespace."""
    return f"{{queuert:{NAMESPACE}}}:{name}"


def new(id: str, **what: Any) -> NewJob:
    return NewJob(id, "work", "1", id_chosen=True, **what)


def take(store: RedisStore, *ids: str) -> dict[str, ClaimedJob]:
    """Claim all that is due, and release what is not wanted."""
    claimed = store.claim(ClaimRequest({"work": 600.0}, 50, "holder", new_token()))
    store.release([one.lease for one in claimed if one.id not in ids])
    return {one.id: one for one in claimed if one.id in ids}


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    """A database with a job in every place and a chain of every kind."""
    store = RedisState(redis_url, namespace=NAMESPACE).sync_store(max_connections=1)
    store.open()
    store.start_jobs([new(id) for id in ("done", "failed", "chain", "running")])
    store.start_jobs([new("keyed-running", limit_key="key")])
    held = take(store, "done", "failed", "chain", "running", "keyed-running")
    store.finish([complete(held["done"]), fail(held["failed"]), go_on(held["chain"], new("chain-2"))])
    store.update_result_ttl(["done"], 3600.0)
    store.start_jobs(
        [
            new("ready", attributes={"mode": ["red", "blue"], "size": "1"}),
            new("late", run_at=due_later()),
            new("keyed", limit_key="key"),
        ]
    )
    store.start_jobs([new("blocked", blockers=("ready", "done")), new("single", deduplication=Deduplicate("once"))])
    beat = WorkerHeartbeat("holder", "holder", "host", 1, "1", ("work",), 1, 0, 1.0)
    did = Activity(datetime.now(UTC).replace(second=0, microsecond=0), 60, "work", started=1)
    store.record_heartbeat(beat, 60.0, ActivityReport(1, [did]))
    store.close()
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        assert scan(client, NAMESPACE, alone=True) == []
        yield client


def entry(client: Client, id: str) -> str:
    gen, due = client.hmget(k(f"j:{id}"), "gen", "due")
    return f"{gen}:{due}:{id}"


def member(client: Client, kind: str) -> str:
    return str(client.zrange(k(kind), 0, 0)[0])


DAMAGES: dict[str, tuple[Callable[[Client], object], str]] = {
    # keys
    "a key of no kind": (lambda c: c.set(k("what:x"), "1"), "no known kind"),
    "a key of another prefix": (lambda c: c.set("elsewhere", "1"), "without the prefix"),
    "a key that will go": (lambda c: c.expire(k("j:ready"), 1000), "has an end of its own"),
    "a rate that stays": (lambda c: c.zadd(k("rate:4:work:"), {"1:x": 1}), "kept for ever"),
    "a key of another type": (lambda c: (c.delete(k("blocked")), c.set(k("blocked"), "x")), "not of the type"),
    # jobs and payloads
    "an input without a job": (lambda c: c.set(k("i:nobody"), "1"), "input without a job"),
    "an output without a job": (lambda c: c.set(k("o:nobody"), "1"), "output without a job"),
    "an error without a job": (lambda c: c.set(k("e:nobody"), "1"), "error without a job"),
    "blockers without a job": (lambda c: c.zadd(k("bl:nobody"), {"ready": 0}), "blockers without a job"),
    "open blockers without a job": (lambda c: c.sadd(k("bo:nobody"), "ready"), "open blockers without a job"),
    "no input": (lambda c: c.delete(k("i:ready")), "its input is missing"),
    "no output": (lambda c: c.delete(k("o:done")), "completed without an output"),
    "a job is gone": (lambda c: c.delete(k("j:ready")), "input without a job"),
    "a keyed job is gone": (lambda c: c.delete(k("j:keyed")), "input without a job"),
    "a scheduled job is gone": (lambda c: c.delete(k("j:late")), "input without a job"),
    "a running job is gone": (lambda c: c.delete(k("j:running")), "input without a job"),
    "a blocked job is gone": (lambda c: c.delete(k("j:blocked")), "input without a job"),
    "an ended job is gone": (lambda c: c.delete(k("j:done")), "input without a job"),
    "a strange status": (lambda c: c.hset(k("j:ready"), "status", "odd"), "its status is 'odd'"),
    "no type": (lambda c: c.hdel(k("j:ready"), "type"), "type or times are missing"),
    "no time": (lambda c: c.hdel(k("j:ready"), "due"), "type or times are missing"),
    "generations begin anew": (lambda c: c.delete(k("gen")), "but the last was 0"),
    "ended, and not finished": (lambda c: c.hdel(k("j:done"), "finished"), "completed, but its end is None"),
    "finished, and not ended": (lambda c: c.hset(k("j:ready"), "finished", 5), "ready, but its end is 5"),
    "running without a token": (lambda c: c.hdel(k("j:running"), "token"), "without a token or a holder"),
    # places
    "in no waiting list": (lambda c: c.lrem(k("w:0:work"), 1, entry(c, "ready")), "ready, but 0 times"),
    "twice in a waiting list": (lambda c: c.rpush(k("w:0:work"), entry(c, "ready")), "ready, but 2 times"),
    "in another waiting list": (
        lambda c: (c.lrem(k("w:0:work"), 1, entry(c, "ready")), c.rpush(k("w:1:work"), entry(c, "ready"))),
        "belongs elsewhere",
    ),
    "a list that nobody looks at": (lambda c: c.delete(k("ranks:work")), "nobody looks at it"),
    "another generation": (lambda c: c.hset(k("j:ready"), "gen", 1), "ready, but 0 times"),
    "not among all keyed": (lambda c: c.delete(k("kz:work")), "kz:work: "),
    "not among those of its key": (lambda c: c.delete(k("kk:4:work:key")), "kk:4:work:key: "),
    "not among the keys": (lambda c: c.delete(k("keys:work")), "keys:work: key is missing"),
    "keyed and gone": (lambda c: c.zadd(k("kz:work"), {"0:0:0:nobody": 0}), "nobody does not belong there"),
    "a key of nobody": (lambda c: c.zadd(k("keys:work"), {"other": 0}), "other does not belong there"),
    "not scheduled": (lambda c: c.zrem(k("sched:work"), "late"), "sched:work: late is missing"),
    "scheduled and ready": (lambda c: c.zadd(k("sched:work"), {"ready": 5}), "ready does not belong there"),
    "scheduled for another time": (lambda c: c.zadd(k("sched:work"), {"late": 5}), "late has 5 instead of"),
    "no lease": (lambda c: c.zrem(k("lease:work"), "running"), "lease:work: running is missing"),
    "a lease of nothing": (lambda c: c.zadd(k("lease:work"), {"ready": 5}), "ready does not belong there"),
    "another lease": (lambda c: c.zadd(k("lease:work"), {"running": 5}), "running has 5 instead of"),
    "not in the holder's list": (lambda c: c.lpop(k("p:holder")), "is running, and not in it"),
    "twice in the holder's list": (lambda c: c.rpush(k("p:holder"), entry(c, "running")), "1 times too often"),
    "another holder's too": (lambda c: c.rpush(k("p:other"), entry(c, "running")), "p:other: holds"),
    "a holder that nobody knows": (lambda c: c.delete(k("holders")), "holders: holder is missing"),
    "not among the blocked": (lambda c: c.delete(k("blocked")), "blocked is missing"),
    "blocked and ready": (lambda c: c.zadd(k("blocked"), {"ready": 0}), "ready does not belong there"),
    "blocked by nothing": (lambda c: c.hset(k("j:blocked"), "open", 0), "blocked by nothing"),
    "ready and blocked": (lambda c: c.hset(k("j:ready"), "open", 1), "ready, with 1 open blockers"),
    "a worker that stays": (lambda c: c.delete(k("workers:until")), "workers:until:: holder is missing"),
    "a worker of nothing": (lambda c: c.zadd(k("workers:until"), {"x": 5}), "x does not belong there"),
    # numbers
    "a wrong number": (lambda c: c.hincrby(k("n:work"), "ready", 1), "n:work: ready is"),
    "a number of nothing": (lambda c: c.hset(k("n:work"), "cancelled", 3), "cancelled is 3, but there are 0"),
    "a number left at zero": (lambda c: c.hset(k("n:other"), "ready", 2), "n:other: ready is 2"),
    "running of a key": (lambda c: c.hset(k("rk:work"), "key", 2), "rk:work: key is 2, but there are 1"),
    "not in the index": (lambda c: c.zrem(k("ix:work"), "ready"), "ix:work: ready is missing"),
    "created at another time": (lambda c: c.zadd(k("ix:work"), {"ready": 5}), "ready has 5 instead of"),
    "a type that nobody knows": (lambda c: c.srem(k("types"), "work"), "types: ['work']"),
    "a type of nothing": (lambda c: c.sadd(k("types"), "other"), "types: ['other']"),
    # chains
    "an index is missing": (lambda c: c.hset(k("j:chain-2"), "index", 2), "its jobs are"),
    "not among the chain's jobs": (lambda c: c.zrem(k("c:chain"), "chain-2"), "c:chain: is not what the jobs say"),
    "a chain of one": (lambda c: c.zadd(k("c:ready"), {"ready": 0}), "of no chain with two jobs"),
    "continued by another": (lambda c: c.hset(k("j:chain"), "next", "other"), "continued by other instead of"),
    "closed, and its job goes on": (
        lambda c: c.hset(k("j:chain"), "chain_status", "completed"),
        "'completed', but its last job chain-2 is ready",
    ),
    "open, and its job has ended": (lambda c: c.hset(k("j:done"), "chain_status", "open"), "'open', but its last job"),
    "closed at no time": (lambda c: c.hdel(k("j:failed"), "closed"), "'failed', closed at None"),
    "not among the closed": (lambda c: c.delete(k("closed:4:work:failed")), "closed:4:work:failed: failed is missing"),
    "no end of its own": (lambda c: c.delete(k("expires")), "expires:: done is missing"),
    "open with an end": (lambda c: c.hset(k("j:ready"), "expires", 5), "open, and has an end"),
    "not among the deduplicated": (lambda c: c.delete(k("d:4:work:once")), "d:4:work:once: single is missing"),
    "not among the open ones": (lambda c: c.delete(k("do:4:work:once")), "do:4:work:once: single is missing"),
    "a key without a chain": (lambda c: c.zadd(k("do:4:work:once"), {"done": 5}), "done does not belong there"),
    "attributes of nobody": (lambda c: c.set(k("a:nobody"), "{}"), "attributes without a chain"),
    "not among those of an attribute": (lambda c: c.delete(k("at:4:mode:red")), "at:4:mode:red: ready is missing"),
    "an attribute of another": (lambda c: c.zadd(k("at:4:mode:red"), {"late": 1}), "late does not belong there"),
    # blockers
    "unknown to its blocker": (lambda c: c.zrem(k("bb:ready"), "blocked"), "bb:ready: blocked is missing"),
    "a dependent of nobody": (lambda c: c.zadd(k("bb:ready"), {"late": 0}), "late does not belong there"),
    "a blocker that is gone": (lambda c: c.zadd(k("bl:blocked"), {"nobody": 9}), "there is no such chain"),
    "a blocker that knows nothing": (lambda c: c.hdel(k("j:ready"), "dependents"), "does not know that jobs wait"),
    "a closed one counts as open": (lambda c: c.sadd(k("bo:blocked"), "done"), "but open are ['ready']"),
    "an open one does not": (lambda c: c.delete(k("bo:blocked")), "bo:blocked: [], but open are ['ready']"),
    "a wrong number of open ones": (lambda c: c.hset(k("j:blocked"), "open", 2), "counts 2 open blockers"),
    "a wrong number of blockers": (lambda c: c.hset(k("j:blocked"), "blockers", 1), "counts 1 blockers, but bl: has 2"),
}  # fmt: skip


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_damage_is_found(client: Client, damage: str) -> None:
    do, reported = DAMAGES[damage]
    do(client)
    found = scan(client, NAMESPACE, alone=True)
    assert [one for one in found if reported in one], found


def test_it_reads_with_a_client_that_does_not_decode(client: Client, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as raw:
        assert scan(raw, NAMESPACE) == []
        client.delete(k("i:ready"))
        assert scan(raw, NAMESPACE) == ["job ready: its input is missing"]


def test_other_namespaces_do_not_matter(client: Client, redis_url: str) -> None:
    """The name's own special characters are none in a pattern."""
    client.set("{queuert:damaged xxx}:what:x", "1")
    assert scan(client, NAMESPACE) == []
    assert scan(client, "empty") == []


def test_large_keys_are_read_in_pieces(redis_url: str) -> None:
    """More entries than one command reads, in every kind of key."""
    store = RedisState(redis_url, namespace=NAMESPACE).sync_store(max_connections=1)
    store.open()
    store.start_jobs([new(f"ready-{number}") for number in range(2500)])
    store.start_jobs([new(f"keyed-{number}", limit_key=str(number)) for number in range(2500)])
    held = store.claim(ClaimRequest({"work": 60.0}, 2600, "holder", new_token()))
    store.finish([Finish(held[0], FinishKind.COMPLETE, output="1")])
    store.close()
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        assert scan(client, NAMESPACE) == []
        client.rpush(k("p:holder"), str(client.lindex(k("p:holder"), 2400)))
        assert len(scan(client, NAMESPACE)) == 1


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_no_damage_stops_the_server(client: Client, redis_url: str, damage: str) -> None:
    """What hands and evictions leave behind may be an error to an operation, but none goes on for ever."""
    DAMAGES[damage][0](client)
    store = RedisState(redis_url, namespace=NAMESPACE, answer_timeout=5.0).sync_store(max_connections=1)
    store.open()
    limited = {"work": Limits(per_key=5)}
    operations: list[Callable[[], object]] = [
        lambda: store.count_jobs(),
        lambda: store.claim(ClaimRequest({"work": 600.0}, 50, "holder", new_token())),
        lambda: store.claim(ClaimRequest({"work": 600.0}, 50, "holder", new_token(), limited)),
        lambda: store.reap(ReapRequest({"work": LAST_ATTEMPT})),
        lambda: store.release_stranded(),
        lambda: store.next_due(["work"]),
        lambda: store.prune(PruneRequest()),
        lambda: store.list_jobs(JobFilter(), PageRequest(limit=10)),
        lambda: store.list_workers(),
        lambda: store.list_type_traits(),
        lambda: store.cancel_chains(["ready"], reason="no"),
        lambda: store.retry_chains(["failed"]),
        lambda: store.delete_chains(["blocked"], cascade=True),
    ]
    for operation in operations:
        with suppress(QueuertError, ValueError, KeyError):
            operation()
        assert client.ping()
    store.close()
