"""Very many jobs, and no memory left: operations look at what they take, and a refusal leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis

from queuert.errors import JobIdConflictError, StateUnavailableError
from queuert.ids import new_id, new_token
from queuert.state.redis import RedisState
from queuert.state.redis.sync_store import RedisStore
from queuert.state.types import ClaimedJob, ClaimRequest, Finish, FinishKind, NewJob, ReapRequest, Renewal
from queuert.testing.conformance.builders import AT_ONCE
from queuert.testing.redis_scan import scan
from tests.conftest import StartRedis

pytestmark = [pytest.mark.fault, pytest.mark.timeout(240)]

MANY = 100_000
CANCELLED = 20_000
BATCH = 2_000


class Bench:
    """A store with a namespace of its own."""

    def __init__(self, url: str) -> None:
        self.namespace = new_id()
        self.redis = redis.Redis.from_url(url, decode_responses=True)
        self.store: RedisStore = RedisState(url, namespace=self.namespace).sync_store(max_connections=1)
        self.store.open()

    def close(self) -> None:
        self.store.close()
        self.redis.close()

    def start(self, count: int, **what: Any) -> list[str]:
        """Start so many jobs; their ids."""
        ids: list[str] = []
        while len(ids) < count:
            batch = min(BATCH, count - len(ids))
            new = [NewJob(new_id(), "work", "1", **what) for _ in range(batch)]
            ids += [one.id for one in self.store.start_jobs(new)]
        return ids

    def claim(self, limit: int, holder: str = "holder") -> list[ClaimedJob]:
        return self.store.claim(ClaimRequest({"work": 600.0}, limit, holder, new_token()))

    def calls(self) -> int:
        """How many commands the server was given so far, those of scripts included."""
        stats: Any = self.redis.info("commandstats")
        return sum(int(one["calls"]) for one in stats.values())

    def faults(self) -> list[str]:
        return scan(self.redis, self.namespace)

    def expire(self, claimed: Sequence[ClaimedJob]) -> list[str]:
        """Let leases expire and be reaped; the ids."""
        self.store.renew([Renewal(one.lease, 0.001) for one in claimed])
        reaped: list[str] = []
        while len(reaped) < len(claimed):
            reaped += [one.id for one in self.store.reap(ReapRequest({"work": AT_ONCE})).reaped]
        return reaped


@pytest.fixture
def bench(redis_url: str) -> Iterator[Bench]:
    bench = Bench(redis_url)
    yield bench
    bench.close()


@pytest.fixture
def small(private_redis: StartRedis) -> Iterator[Bench]:
    """On a server of its own, to be filled."""
    bench = Bench(private_redis().url())
    yield bench
    bench.close()


def test_a_hundred_thousand_in_flight(bench: Bench) -> None:
    """The reaper looks at those that have expired and at no other, and so do claims and finishes."""
    bench.start(MANY + 3)
    claimed: list[ClaimedJob] = []
    while len(claimed) < MANY:
        claimed += bench.claim(min(BATCH, MANY - len(claimed)), holder=f"holder-{len(claimed)}")

    def cost(action: Any) -> int:
        before = bench.calls()
        action()
        return bench.calls() - before

    assert cost(lambda: bench.store.reap(ReapRequest({"work": AT_ONCE}))) < 20
    assert cost(lambda: bench.claim(1)) < 60
    assert cost(lambda: bench.store.finish([Finish(claimed[MANY // 2], FinishKind.COMPLETE, output="1")])) < 60
    assert cost(lambda: bench.store.renew([Renewal(claimed[7].lease, 600.0)])) < 20
    lost = [claimed[1], claimed[MANY - 1]]
    assert sorted(bench.expire(lost)) == sorted(one.id for one in lost)


def test_very_many_are_cancelled(bench: Bench) -> None:
    """From the end to the front, so that all are in the middle: what is left is claimed, and dead entries go."""
    ids = bench.start(CANCELLED)
    left = {ids[0], ids[CANCELLED // 2], ids[-1]}
    to_delete = [id for id in reversed(ids) if id not in left]
    for at in range(0, len(to_delete), BATCH):
        bench.store.cancel_chains(to_delete[at : at + BATCH], reason="not wanted")
    assert {one.id for one in bench.claim(10)} == left
    assert entries(bench) == 0
    assert bench.faults() == []


def test_dead_entries_go_though_nobody_claims(bench: Bench) -> None:
    """Starting and cancelling again and again, of a type that nobody works on, fills no memory."""
    stays = bench.start(300)
    for _ in range(5):
        bench.store.cancel_chains(bench.start(BATCH), reason="not wanted")
    for _ in range(20):
        cursor = None
        while True:
            swept = bench.store.release_stranded(cursor=cursor)
            cursor = swept.cursor
            if cursor is None:
                break
    assert entries(bench) < 300 + 2 * BATCH
    assert [one.id for one in bench.claim(1000)] == stays


def entries(bench: Bench) -> int:
    """How long the waiting lists are."""
    lists = bench.redis.scan_iter(match=f"{{queuert:{bench.namespace}}}:w:*", count=1000)
    lengths: list[Any] = [bench.redis.llen(str(key)) for key in lists]
    return sum(lengths)


def fill(bench: Bench) -> None:
    """Leave no memory, by far."""
    memory: Any = bench.redis.info("memory")
    bench.redis.config_set("maxmemory", int(memory["used_memory"]) * 4 // 5)


def test_no_memory_is_left(small: Bench) -> None:
    """What would add is refused before it has written anything; what ends jobs or gives them back may go on."""
    small.start(50)
    limited = small.start(20, limit_key="key")
    [blocker] = small.start(1, priority=-5)
    blocked = small.start(10, blockers=(blocker,))
    claimed = small.claim(10)
    before = small.store.count_jobs()
    fill(small)
    more: list[dict[str, Any]] = [{}, {"limit_key": "other"}, {"blockers": (blocker,)}]
    for what in more:
        with pytest.raises(StateUnavailableError, match="maxmemory"):
            small.start(5, **what)
        assert small.faults() == []
    assert [(one.status, one.count) for one in small.store.count_jobs()] == [(one.status, one.count) for one in before]
    refused = attempts(
        small,
        lambda: small.claim(5),
        lambda: small.store.finish([Finish(claimed[0], FinishKind.COMPLETE, output='"x"')]),
        lambda: small.store.finish([Finish(claimed[1], FinishKind.RETRY)]),
        lambda: small.store.finish([Finish(claimed[2], FinishKind.CONTINUE, continuation=NewJob("n", "work", "1"))]),
        lambda: small.store.cancel_chains(limited[:3], reason="no"),
        lambda: small.store.cancel_chains([blocker], reason="no"),
        lambda: small.store.renew([Renewal(claimed[3].lease, 600.0)]),
        lambda: small.store.release([claimed[4].lease]),
        lambda: small.store.delete_chains(blocked[:1]),
        lambda: small.store.retry_chains(limited[:1]),
        lambda: small.store.reap(ReapRequest({"work": AT_ONCE})),
        lambda: small.store.release_stranded(),
    )
    assert refused > 0, "memory was left: the test shows nothing"
    small.redis.config_set("maxmemory", 0)
    while taken := small.claim(100):
        small.store.finish([Finish(one, FinishKind.COMPLETE, output="1") for one in taken])
    assert small.faults() == []


def attempts(bench: Bench, *actions: Any) -> int:
    """Try each; how many were refused. Either way nothing is written by halves."""
    refused = 0
    for action in actions:
        fill(bench)
        try:
            action()
        except StateUnavailableError:
            refused += 1
        assert bench.faults() == []
    return refused


def test_very_many_conflicts(bench: Bench) -> None:
    """All of them are named."""
    taken = [NewJob(str(number), "work", "1", id_chosen=True) for number in range(9_000)]
    bench.store.start_jobs(taken)
    with pytest.raises(JobIdConflictError) as caught:
        bench.store.start_jobs(taken)
    assert len(caught.value.ids) == 9_000


def test_the_oldest_is_one_that_waits(bench: Bench) -> None:
    """And none that was cancelled in the middle of a long list and then came to its head."""
    [first, *others] = bench.start(200)
    [last] = bench.start(1)
    bench.store.cancel_chains(others, reason="not wanted")
    assert [one.id for one in bench.claim(1)] == [first]
    assert entries(bench) == 200
    bench.store.count_jobs()
    assert entries(bench) == 1
    assert [one.id for one in bench.claim(1)] == [last]
