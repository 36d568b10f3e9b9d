"""Calls for many jobs are several scripts: none is long, and no worker gets between them what it should not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import pytest
import redis

from queuert import Client, JobType, JobTypes, NewChain
from queuert.errors import JobIdConflictError
from queuert.ids import new_id, new_token
from queuert.jobs import ChainStatus, JobStatus
from queuert.limits import Limits
from queuert.observability.events import ChainClosed, ChainRetried
from queuert.policies import Keep, Retention, RetryPolicy
from queuert.run_at import after
from queuert.state.paging import ChainFilter, JobFilter, Page, PageRequest
from queuert.state.redis import RedisState
from queuert.state.redis.portions import LISTED, WRITTEN, in_order, portions
from queuert.state.redis.scripts import all_names
from queuert.state.redis.sync_store import RedisStore
from queuert.state.types import (
    ClaimedJob,
    ClaimRequest,
    Finish,
    FinishKind,
    NewJob,
    PruneRequest,
    ReapRequest,
    Renewal,
    WorkerlessCompletion,
)
from queuert.testing.events import EventLog
from tests.conftest import StartRedis

FEW, MANY = 200, 400

job_type = JobType("work", input=int, output=int)


class Observed(RedisStore):
    """A store that calls a function after each script, and notes how many commands the server ran for it."""

    after_script: Callable[[str], object] | None = None
    server: redis.Redis | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.commands: list[tuple[str, int]] = []

    def _run(self, name: str, arguments: list[str]) -> Any:
        return self._watch(name, lambda: super(Observed, self)._run(name, arguments))

    def _commit(self, name: str, arguments: list[str]) -> Any:
        return self._watch(name, lambda: super(Observed, self)._commit(name, arguments))

    def _watch(self, name: str, run: Callable[[], Any]) -> Any:
        before = self._count()
        answer = run()
        self.commands.append((name, self._count() - before))
        if self.after_script is not None:
            self.after_script(name)
        return answer

    def _count(self) -> int:
        if self.server is None:
            return 0
        stats: Mapping[str, Any] = self.server.info("commandstats")
        return sum(one["calls"] for name, one in stats.items() if name not in ("cmdstat_info", "cmdstat_evalsha"))


def opened(url: str, server: redis.Redis | None = None) -> Observed:
    observed = Observed(RedisState(url, namespace=new_id()).sync_store(max_connections=1)._settings, 1)
    observed.server = server
    observed.open()
    return observed


@pytest.fixture
def store(redis_url: str) -> Iterator[Observed]:
    store = opened(redis_url)
    yield store
    store.close()


def jobs(count: int, type: str = "work", **more: Any) -> list[NewJob]:
    return [NewJob(new_id(), type, "1", **more) for _ in range(count)]


def start(store: RedisStore, new: Sequence[NewJob]) -> list[str]:
    return [one.id for one in store.start_jobs(new)]


def claim(store: RedisStore, *types: str, limit: int = MANY, **more: Any) -> list[ClaimedJob]:
    return store.claim(ClaimRequest(dict.fromkeys(types or ("work",), 600.0), limit, "holder", new_token(), **more))


def pairs(store: RedisStore) -> tuple[list[str], list[str]]:
    """Chains, and for each of them one that waits for it."""
    blockers = start(store, jobs(4 * WRITTEN, "blocker"))
    return blockers, start(store, [NewJob(new_id(), "work", "1", blockers=(id,)) for id in blockers])


def test_no_job_is_claimed_between_two_scripts_that_close_its_chain(store: Observed) -> None:
    """Blockers are closed, which would make the jobs that wait for them due, after the chains of these."""
    got: list[ClaimedJob] = []

    def claim_between(name: str) -> None:
        if name != "claim":
            got.extend(claim(store))

    store.after_script = claim_between
    blockers, waiting = pairs(store)
    store.cancel_chains([*blockers, *waiting], reason="no")
    blockers, waiting = pairs(store)
    completions = [WorkerlessCompletion(id, id, output="1") for id in (*blockers, *waiting)]
    assert all(one.written for one in store.complete_chains(completions))
    blockers, waiting = pairs(store)
    store.delete_chains([*blockers, *waiting])
    assert got == []


def test_a_chain_that_is_retried_waits_again_before_anybody_can_claim_it(store: Observed) -> None:
    blockers, waiting = pairs(store)
    store.cancel_chains([*blockers, *waiting], reason="no")
    got: list[ClaimedJob] = []

    def claim_between(name: str) -> None:
        if name != "claim":
            got.extend(claim(store))

    store.after_script = claim_between
    store.retry_chains([*waiting, *blockers])
    assert got == []


def before_the_last_part(store: Observed, name: str, act: Callable[[], object], after_calls: int = 5) -> None:
    """Act as another client after so many scripts: by default the check of four parts, and the first write."""
    calls: list[str] = []

    def interfere(called: str) -> None:
        calls.append(called)
        if called == name and calls.count(name) == after_calls:
            store.after_script = None
            act()

    store.after_script = interfere


def test_what_another_client_retries_meanwhile_is_left_as_it_is(store: Observed) -> None:
    ids = start(store, jobs(4 * WRITTEN))
    store.cancel_chains(ids, reason="no")
    before_the_last_part(store, "retry_chains", lambda: store.retry_chains(ids[-1:]))
    assert [one.written for one in store.retry_chains(ids)] == [True] * 99 + [False]
    assert len(claim(store)) == 100


def test_a_job_that_begins_meanwhile_needs_no_trigger(store: Observed) -> None:
    [first, *ids] = start(store, [*jobs(1), *jobs(4 * WRITTEN - 1, run_at=after(hours=1))])
    before_the_last_part(store, "trigger_jobs", lambda: claim(store, limit=1))
    assert [one.id for one in store.trigger_jobs([*ids, first])] == [*ids, first]
    assert len(claim(store)) == 99


@pytest.mark.parametrize("change", ["cancel_chains", "retry_chains", "change_waiting_jobs", "trigger_jobs"])
def test_the_others_are_changed_if_a_chain_is_deleted_meanwhile(store: Observed, change: str) -> None:
    ids = start(store, jobs(4 * WRITTEN, run_at=after(hours=1)))
    if change == "retry_chains":
        store.cancel_chains(ids, reason="no")
    before_the_last_part(store, change, lambda: store.delete_chains(ids[-2:-1]))
    match change:
        case "cancel_chains":
            written = [one.chain_id for one in store.cancel_chains(ids, reason="no") if one.written]
        case "retry_chains":
            written = [one.chain_id for one in store.retry_chains(ids) if one.written]
        case "change_waiting_jobs":
            written = [one.chain_id for one in store.change_waiting_jobs(ids, priority=7) if one.written]
        case _:
            written = [one.id for one in store.trigger_jobs(ids)]
    present = [one for one in store.get_jobs(ids) if one is not None]
    assert written == [one.id for one in present] == [*ids[:-2], ids[-1]]
    assert {(one.status, one.priority) for one in present} == {
        {
            "cancel_chains": (JobStatus.CANCELLED, 0),
            "retry_chains": (JobStatus.READY, 0),
            "change_waiting_jobs": (JobStatus.SCHEDULED, 7),
            "trigger_jobs": (JobStatus.READY, 0),
        }[change]
    }


@pytest.mark.parametrize("change", ["cancel", "retry", "reschedule", "reprioritize"])
def test_a_client_reports_what_it_changed_if_a_chain_is_deleted_meanwhile(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Of a call of three scripts, each after its check, the third write finds one chain less."""
    log, run, calls = EventLog(), RedisStore._commit, []
    with Client(RedisState(redis_url, namespace=new_id()), JobTypes(job_type), observability=log) as client:
        ids = [one.id for one in client.start_chains([NewChain(job_type, one) for one in range(3 * WRITTEN)])]
        if change == "retry":
            client.cancel_chains(ids)
        left = [*ids[:-2], ids[-1]]

        def interrupted(store: RedisStore, name: str, arguments: list[str]) -> Any:
            if name in ("cancel_chains", "retry_chains", "change_waiting_jobs"):
                calls.append(name)
                client.delete_chain(ids[-2])
            return run(store, name, arguments)

        monkeypatch.setattr(RedisStore, "_commit", interrupted)
        log.forget()
        changed = [True] * len(ids[:-2]) + [False, True]
        match change:
            case "cancel":
                assert client.cancel_chains(ids) == changed
                assert [one.chain_id for one in log.of(ChainClosed)] == left
            case "retry":
                assert client.retry_chains(ids) == left
                assert [one.chain_id for one in log.of(ChainRetried)] == left
            case "reschedule":
                assert client.reschedule_chains(ids, after(hours=1)) == changed
            case _:
                assert client.reprioritize_chains(ids, 3) == changed
        assert len(calls) == 1


def test_one_that_is_deleted_while_it_closes_with_a_completed_chain(store: Observed) -> None:
    """The chain is completed by then: the others are cancelled, and that one has no result."""
    [parent, *children] = start(store, jobs(1 + 2 * WRITTEN))
    before_the_last_part(store, "cancel_chains", lambda: store.delete_chains(children[-1:]), 2)
    completion = WorkerlessCompletion(parent, parent, output="1")
    results = store.complete_chains([completion], cancel=children, reason="with it")
    assert [(one.chain_id, one.written) for one in results] == [(id, True) for id in [parent, *children[:-1]]]


def test_a_chain_that_is_closed_after_the_check_closes_nothing_else(store: Observed) -> None:
    [parent, *children] = start(store, jobs(1 + 2 * WRITTEN))
    before_the_last_part(store, "complete_chains", lambda: store.cancel_chains([parent], reason="before"), 1)
    completion = WorkerlessCompletion(parent, parent, output="1")
    [result] = store.complete_chains([completion], cancel=children, reason="with it")
    assert not result.written
    assert {one.status for one in store.get_chains(children) if one is not None} == {ChainStatus.OPEN}


def test_what_comes_before_a_job_of_a_long_list(store: Observed) -> None:
    ids = start(store, jobs(MANY))
    facts = [store.get_wait_facts(ids[at]) for at in (0, 200, MANY - 1)]
    assert [one.ahead for one in facts if one is not None] == [0, 200, MANY - 1]
    store.cancel_chains(ids[:100], reason="no")
    after_those = store.get_wait_facts(ids[200])
    assert after_those is not None
    assert after_those.ahead == 100


def test_finishes_are_checked_before_any_is_written(store: Observed) -> None:
    start(store, jobs(MANY))
    held = claim(store)
    finishes = [Finish(one, FinishKind.CONTINUE, continuation=jobs(1, "next")[0]) for one in held]
    taken = start(store, jobs(1, "other"))[0]
    finishes[-1] = Finish(held[-1], FinishKind.CONTINUE, continuation=NewJob(taken, "next", "1"))
    with pytest.raises(JobIdConflictError):
        store.finish(finishes)
    assert claim(store, "next") == []


def test_a_claim_finds_the_one_of_many_keys_that_is_free(store: Observed) -> None:
    limits = {"work": Limits(per_key=1)}
    new = [NewJob(new_id(), "work", "1", limit_key=str(key), priority=1) for key in range(3_000) for _ in range(2)]
    start(store, new)
    assert len(claim(store, limit=3_000, limits=limits)) == 3_000
    [free] = start(store, jobs(1, limit_key="free"))
    assert [one.id for one in claim(store, limits=limits)] == [free]


def operations(store: Observed, count: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Calls for so many jobs, each with what it needs."""
    types = [f"type-{number}" for number in range(count)]
    ids = start(store, jobs(count))
    yield "get_jobs", lambda: store.get_jobs(ids)
    yield "get_chains", lambda: store.get_chains(ids)
    yield "get_chain_states", lambda: store.get_chain_states(ids)
    yield "closed_chains", lambda: store.closed_chains(ids)
    yield "get_blocker_links", lambda: store.get_blocker_links(ids, limit=100)
    yield "get_dependent_links", lambda: store.get_dependent_links(ids, statuses=(JobStatus.BLOCKED,), limit=100)
    yield "change_waiting_jobs", lambda: store.change_waiting_jobs(ids, run_at=after(hours=1))
    yield "trigger_jobs", lambda: store.trigger_jobs(ids)
    yield "wait_facts", lambda: store.get_wait_facts(ids[-1])
    yield "cancel_chains", lambda: store.cancel_chains(ids, reason="no")
    yield "retry_chains", lambda: store.retry_chains(ids)
    yield "complete_chains", lambda: store.complete_chains([WorkerlessCompletion(id, id, output="1") for id in ids])
    yield "update_result_ttl", lambda: store.update_result_ttl(ids, 3_600.0)
    yield "list_chains", lambda: store.list_chains(ChainFilter(), PageRequest(count))
    yield "delete_chains", lambda: store.delete_chains(ids)
    for type in types:
        start(store, jobs(2, type))
    held: list[ClaimedJob] = []
    yield "claim", lambda: held.extend(claim(store, *types, limit=count))
    yield "reap", lambda: store.reap(ReapRequest(dict.fromkeys(types, RetryPolicy())))
    yield "renew", lambda: store.renew([Renewal(one.lease, 600.0) for one in held])
    yield "lost_reasons", lambda: store.lost_reasons([one.lease for one in held])
    yield "release", lambda: store.release([one.lease for one in held])
    held += claim(store, *types, limit=count)
    finishes = [Finish(one, FinishKind.CONTINUE, continuation=jobs(1, "next")[0]) for one in held[count:]]
    yield "finish", lambda: store.finish(finishes)
    yield "count_jobs", lambda: store.count_jobs()
    yield "demand", lambda: store.get_demand()
    start(store, jobs(count))
    store.finish([Finish(one, FinishKind.COMPLETE, output="1") for one in claim(store, limit=count)])
    yield "prune", lambda: store.prune(PruneRequest({"work": Retention(completed=Keep(count=1))}, limit=count))
    yield "release_stranded", lambda: store.release_stranded()


def longest(url: str, count: int) -> dict[str, int]:
    """The commands of the longest script of each operation."""
    found: dict[str, int] = {}
    with redis.Redis.from_url(url) as server:
        store = opened(url, server)
        for name, call in operations(store, count):
            store.commands.clear()
            call()
            found[name] = max(commands for _, commands in store.commands)
        store.close()
    return found


@pytest.mark.timeout(240)
def test_a_script_is_as_long_for_twice_the_jobs(private_redis: StartRedis) -> None:
    """Counted in commands, which nothing else on the machine changes: what a worker does at once is one script."""
    url = private_redis().url()
    few, many = longest(url, FEW), longest(url, MANY)
    grown = {name: (few[name], many[name]) for name in few if many[name] > few[name] + 20}
    assert set(grown) <= {"claim", "finish", "list_chains"}
    assert all(more <= 2.1 * less for less, more in grown.values())
    assert max(commands for name, commands in many.items() if name not in grown) < 1_500


FILTERS: Sequence[ChainFilter | JobFilter] = [
    JobFilter(),
    JobFilter(types=tuple(f"type-{n}" for n in (*range(LISTED + 20), 3))),
    *(JobFilter(statuses=(status,)) for status in (JobStatus.READY, JobStatus.SCHEDULED, JobStatus.CANCELLED)),
    JobFilter(statuses=(JobStatus.SCHEDULED, JobStatus.CANCELLED), types=("type-1", "type-2", "type-7")),
    JobFilter(statuses=(JobStatus.BLOCKED,)),
    ChainFilter(),
    *(ChainFilter(statuses=(status,)) for status in ChainStatus),
    ChainFilter(statuses=(ChainStatus.CANCELLED, ChainStatus.FAILED), types=("type-2", "type-4", "type-9")),
    ChainFilter(statuses=(ChainStatus.CANCELLED, ChainStatus.OPEN)),
]


def pages(store: RedisStore, filter: ChainFilter | JobFilter, limit: int, *, oldest_first: bool) -> Iterator[str]:
    """The ids of a list, read page by page."""
    cursor: str | None = None
    while True:
        request = PageRequest(limit, cursor, oldest_first)
        found: Page[Any] = (
            store.list_jobs(filter, request) if isinstance(filter, JobFilter) else store.list_chains(filter, request)
        )
        yield from (one.id for one in found.items)
        cursor = found.next_cursor
        if cursor is None:
            return


@pytest.mark.quick
@pytest.mark.parametrize("oldest_first", [False, True], ids=["newest first", "oldest first"])
def test_lists_of_very_many_types(store: Observed, oldest_first: bool) -> None:
    """One script merges the lists of some types."""
    new = [job for number in range(2 * LISTED + 20) for job in jobs(2, f"type-{number}")]
    new += [job for number in range(4) for job in jobs(2, f"type-{number}", run_at=after(hours=1))]
    soon = jobs(2, "type-5", run_at=after(seconds=0.001))
    Random(1).shuffle(new)
    ids = [id for part in portions([*new, *soon], 40) for id in start(store, part)]
    store.cancel_chains(ids[::5], reason="no")
    all_jobs = [job for job in store.get_jobs(ids) if job is not None]
    all_jobs.sort(key=lambda job: (job.created_at, job.id), reverse=not oldest_first)
    assert len(all_jobs) == len(ids)
    for filter in FILTERS:
        expected = [job.id for job in all_jobs if filter.types is None or job.type in filter.types]
        if filter.statuses is not None:
            statuses = {job.id: job.status for job in all_jobs}
            cancelled = {id for id, status in statuses.items() if status is JobStatus.CANCELLED}
            chains = {id: ChainStatus.CANCELLED if id in cancelled else ChainStatus.OPEN for id in ids}
            shown = statuses if isinstance(filter, JobFilter) else chains
            expected = [id for id in expected if shown[id] in filter.statuses]
        assert list(pages(store, filter, 7, oldest_first=oldest_first)) == expected, filter


@pytest.mark.quick
@pytest.mark.parametrize("oldest_first", [False, True], ids=["newest first", "oldest first"])
def test_a_type_that_is_new_while_a_page_is_read(store: Observed, oldest_first: bool) -> None:
    """With it there are more types than one script reads: the parts go on where the list of all has stopped."""
    ids = [id for number in range(LISTED) for id in start(store, jobs(4, f"type-{number}"))]

    def start_another(name: str) -> None:
        store.after_script = None
        start(store, jobs(1, "new"))

    store.after_script = start_another
    found = list(pages(store, JobFilter(), 1_000, oldest_first=oldest_first))
    expected = ids if oldest_first else ids[::-1]
    assert [id for id in found if id in set(ids)] == expected
    assert len(found) == len(set(found))


@pytest.mark.quick
@pytest.mark.parametrize("filter", [ChainFilter(), JobFilter()], ids=["chains", "jobs"])
def test_a_chain_that_is_deleted_while_a_page_is_read_does_not_end_the_list(
    store: Observed, filter: ChainFilter | JobFilter
) -> None:
    ids = [id for _ in range(3) for id in start(store, jobs(4))]

    def delete_one(name: str) -> None:
        store.after_script = None
        store.delete_chains([ids[1]])

    store.after_script = delete_one
    assert list(pages(store, filter, 4, oldest_first=True)) == [ids[0], *ids[2:]]


def test_a_list_by_status_reads_what_has_the_status(private_redis: StartRedis) -> None:
    url = private_redis().url()
    with redis.Redis.from_url(url) as server:
        store = opened(url, server)
        one, *_ = start(store, [job for number in range(2 * LISTED) for job in jobs(1, f"type-{number}")])
        start(store, jobs(2_000))
        store.cancel_chains([one], reason="no")
        for filter in (ChainFilter(statuses=(ChainStatus.CANCELLED,)), JobFilter(statuses=(JobStatus.CANCELLED,))):
            store.commands.clear()
            assert list(pages(store, filter, 100, oldest_first=False)) == [one]
            by_time = [commands for name, commands in store.commands if name == "list_by_time"]
            # The first one tells that there are too many types: 2 * LISTED + 1, so three parts.
            assert len(by_time) == 4
            assert max(by_time) <= 2 * LISTED
        store.commands.clear()
        assert len(list(pages(store, ChainFilter(), 1_000, oldest_first=False))) == 2 * LISTED + 2_000
        assert max(commands for _, commands in store.commands) <= 800
        store.close()


NOT_OF_MANY = {
    *("begin_phase", "get_progress", "get_steps", "record_step", "wait_for_event", "why_lost"),  # Of one job.
    *("get_blockers", "get_chain_attributes", "list_members", "send_event"),  # Of one chain.
    *("count_held", "list_workers", "next_due", "record_heartbeat", "release_claim", "remove_worker"),  # Of workers.
    *("list_paused_job_types", "list_type_traits", "pause_job_types", "resume_job_types"),
    *("delete_schedules", "fire_schedule", "list_schedules", "pause_schedules", "put_schedules"),
    *("get_webhook_records", "put_webhook_record", "record_webhook_attempts"),
    *("event_log_settings", "set_event_level", "set_event_retention"),
    # These stop at a limit that is passed to them.
    *("chains_of_key", "get_activity", "list_webhook_attempts", "maintain_activity", "maintain_event_log"),
    *("prune_webhook_attempts", "read_events"),
    "compact",  # Of 250 entries: tests/redis/test_many.py.
}


def test_every_script_is_called_for_many_jobs_or_has_no_need(store: Observed) -> None:
    """Give a new operation a line in ``operations``, or name its script in ``NOT_OF_MANY`` with the reason."""
    for _, call in operations(store, 2 * WRITTEN):
        call()
    called = {name for name, _ in store.commands}
    assert set(all_names()) - called == NOT_OF_MANY


@pytest.mark.parametrize(
    ("given", "ordered"),
    [
        ([], [["a", "b", "c"]]),
        ([("c", "a")], [["b", "c", "a"]]),
        ([("c", "b"), ("b", "a")], [["c", "b", "a"]]),
        ([("a", "b"), ("b", "a")], [["c"], ["a", "b"]]),
        ([("a", "b"), ("b", "a"), ("b", "c")], [["a", "b", "c"]]),
        ([("elsewhere", "a"), ("a", "elsewhere"), ("b", "a"), ("b", "a")], [["b", "c", "a"]]),
    ],
)
def test_the_order_of_chains_that_wait_for_each_other(given: list[tuple[str, str]], ordered: list[list[str]]) -> None:
    assert in_order(["a", "b", "c"], given) == ordered
