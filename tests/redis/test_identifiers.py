"""Ids, types, keys and names of every kind: none is confused with another, and all keys stay in one slot."""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis

from queuert.activity import Activity, ActivityFilter, ActivityReport
from queuert.deduplication import Deduplicate
from queuert.embedded.ports import ReservedPort
from queuert.event_log import EventFilter, EventLevel
from queuert.ids import new_id, new_token
from queuert.jobs import ChainStatus, JobStatus
from queuert.limits import Limits, Rate, TypeTraits
from queuert.policies import Keep, Retention
from queuert.schedules import MissedRuns
from queuert.state.paging import ChainFilter, JobFilter, PageRequest
from queuert.state.redis import RedisState
from queuert.state.redis.scripts import all_names
from queuert.state.redis.sync_store import RedisStore
from queuert.state.steps import EventWait, NewEvent, NewStep
from queuert.state.types import (
    ClaimedJob,
    ClaimRequest,
    Finish,
    FinishKind,
    InputEdit,
    NewJob,
    PruneRequest,
    ReapRequest,
    Renewal,
    ScheduleRecord,
    WorkerlessCompletion,
)
from queuert.state.webhooks import NewWebhookAttempt, WebhookWrite
from queuert.testing.conformance.builders import LAST_ATTEMPT, complete, due_later, go_on, retry
from queuert.testing.redis_scan import scan
from queuert.workers import WorkerHeartbeat
from tests.conftest import StartRedis

TEXTS = [
    "plain", ":", "a:b", ":exp", "5:a:b", "{x}", "}{", "{}", "{", "}", " ", "two words", "tab\t", "new\nline", "\r\n",
    "%d%s%", "%%", "back\\slash", "\\", "'\"", "*?[a-z]^$()", "0", "-1", "1e309", "null", "true", "été", "日本語",
    "\U0001f600", "a\u0301", "\u202e", "x" * 512, "é" * 500, "\x01\x7f",
]  # fmt: skip
SLOTS = 16_384


def slot_of(key: bytes) -> int:
    """Where a cluster keeps a key."""
    begin = key.find(b"{")
    end = key.find(b"}", begin + 1)
    hashed = key[begin + 1 : end] if begin >= 0 and end > begin + 1 else key
    return binascii.crc_hqx(hashed, 0) % SLOTS


def test_slots_are_those_of_the_specification() -> None:
    """As the documentation of clusters gives them."""
    assert slot_of(b"123456789") == 12739
    assert slot_of(b"{user1000}.following") == slot_of(b"{user1000}.followers") == slot_of(b"user1000")


@pytest.fixture
def cluster(private_redis: StartRedis) -> Iterator[redis.Redis]:
    """A cluster of one server, which refuses a script that touches keys of two slots."""
    with closing(ReservedPort()) as port:
        server = private_redis(options={"cluster-enabled": "yes", "cluster-port": port.number})
    with redis.Redis.from_url(server.url()) as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS))
        while b"cluster_state:ok" not in bytes(client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True) or b""):
            pass
        yield client


class Recorded(RedisStore):
    """A store that remembers which scripts it ran, and which of them to tell a caller so."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.ran: set[str] = set()
        self.committed: set[str] = set()

    def _run(self, name: str, arguments: Any) -> Any:
        self.ran.add(name)
        return super()._run(name, arguments)

    def _commit(self, name: str, arguments: Any) -> Any:
        self.ran.add(name)
        self.committed.add(name)
        return super()._commit(name, arguments)


@pytest.mark.parametrize("namespace", ["default", ":a b*?[x]\\ é%"])
def test_all_operations_with_texts_of_every_kind(cluster: redis.Redis, namespace: str) -> None:
    address = cluster.connection_pool.connection_kwargs
    state = RedisState(f"redis://:{address['password']}@{address['host']}:{address['port']}", namespace=namespace)
    store = Recorded(state._settings, 2)
    store.open()
    try:
        for text in TEXTS:
            Tour(store, text).go()
            assert scan(cluster, namespace) == [], text
        never = sorted(set(all_names()) - store.ran)
        assert not never, f"scripts that Tour never runs: {never}; let it call them, with self.text for each text"
        keys = [bytes(key) for key in cluster.scan_iter(count=1000)]
        assert len({slot_of(key) for key in keys}) == 1
        assert scan(cluster, namespace, alone=True) == []
    finally:
        store.close()


class Tour:
    """Every operation, with one text in every place where there can be one."""

    def __init__(self, store: RedisStore, text: str) -> None:
        self.store = store
        self.text = text

    def named(self, suffix: str) -> str:
        """An id of which the text is the beginning or the end."""
        room = 512 - len(suffix)
        return (
            self.text[:200] + suffix if len(self.text) > room or len(self.text.encode()) > 900 else self.text + suffix
        )

    def new(self, id: str, **what: Any) -> NewJob:
        given: dict[str, Any] = {"limit_key": self.text, **what}
        return NewJob(id, self.text, f'"{id.encode().hex()}"', id_chosen=True, **given)

    def claim(self, *, limits: bool = False) -> list[ClaimedJob]:
        limited = {self.text: Limits(concurrency=50, per_key=50, rate=Rate(1000, per=60))} if limits else {}
        claimed = self.store.claim(ClaimRequest({self.text: 60.0}, 50, self.text, new_token(), limited))
        assert {one.input for one in claimed} == {f'"{one.id.encode().hex()}"' for one in claimed}
        return claimed

    def go(self) -> None:
        self.start_and_work()
        self.intervene()
        self.recur()
        self.look()

    def start_and_work(self) -> None:
        store, text = self.store, self.text
        key = Deduplicate(text, excluding=(text,))
        [first] = store.start_jobs([self.new(text, deduplication=key, trace_context=text)])
        [again] = store.start_jobs([self.new(self.named("-other"), deduplication=Deduplicate(text))])
        store.start_jobs([self.new(text, deduplication=Deduplicate(text, debounce=1e-6))])
        assert (first.id, again.id, again.existing) == (text, text, True)
        store.start_jobs(
            [self.new(self.named("-waits"), blockers=(text,)), self.new(self.named("-free"), limit_key=None)]
        )
        store.start_jobs([self.new(self.named("-late"), run_at=due_later())])
        held = {one.id: one for one in self.claim(limits=True)}
        assert held.keys() == {text, self.named("-free")}
        assert store.renew([Renewal(one.lease, 60.0) for one in held.values()]) == [True, True]
        assert store.lost_reasons([one.lease for one in held.values()]) == [None, None]
        assert store.why_lost(held[text].lease) is None
        step = store.record_step(held[text].lease, NewStep(1, text, 1, f'"{text.encode().hex()}"'))
        assert store.get_steps(text) == [step]
        assert store.wait_for_event(held[text].lease, EventWait(2, text, 1, text, 60.0)).waits
        progress = f'{{"message":"{text.encode().hex()}"}}'
        begun = store.begin_phase(held[text].lease, progress)
        assert store.get_progress(text) == progress
        assert store.send_event(text, NewEvent(text, text, "1")).written
        assert not store.send_event(text, NewEvent(text, text, "2")).written
        assert store.wait_for_event(held[text].lease, EventWait(2, text, 1, text, 60.0)).result == "1"
        phase = NewStep(3, text, 1, "1", started_at=begun, progress=progress)
        assert store.record_step(held[text].lease, phase).started_at == begun
        assert store.release([held[self.named("-free")].lease]) == 1
        following = self.new(self.named("-next"))
        store.finish([go_on(held[text], following)])
        [lost] = [one for one in self.claim() if one.id == following.id]
        request = ClaimRequest({text: 60.0}, 1, text, lost.token)
        assert store.release_claim(request) == (2, 0)
        [tail] = [one for one in self.claim() if one.id == following.id]
        child = self.new(self.named("-child"))
        store.finish([Finish(tail, FinishKind.WAIT, starts=(child,), blockers=(child.id,))])
        assert store.count_held([text])
        facts = store.get_wait_facts(child.id)
        assert facts is not None
        assert (facts.running, facts.running_of_key) == (1, 0)
        [chained] = [one for one in self.claim() if one.id == child.id]
        store.finish([complete(chained)])
        [resumed] = self.claim()
        assert [one.chain_id for one in store.get_blockers(resumed.id)] == [child.id]
        links = store.get_blocker_links([resumed.chain_id], limit=10)
        assert [one.blocker_id for one in links if one.job_id == resumed.id] == [child.id]
        dependents = store.get_dependent_links([child.id], statuses=(JobStatus.RUNNING,), limit=1)
        assert [one.job_id for one in dependents] == [resumed.id]
        store.finish([retry(resumed)])
        [retried] = self.claim()
        store.finish([complete(retried)])
        [waiting] = self.claim()
        assert waiting.id == self.named("-waits")
        self.expire(waiting)

    def expire(self, claimed: ClaimedJob) -> None:
        self.store.renew([Renewal(claimed.lease, 0.001)])
        while not (reaped := self.store.reap(ReapRequest({self.text: LAST_ATTEMPT})).reaped):
            pass
        assert [(one.id, one.holder) for one in reaped] == [(claimed.id, self.text)]

    def intervene(self) -> None:
        store, text = self.store, self.text
        late, waits, free = self.named("-late"), self.named("-waits"), self.named("-free")
        store.retry_chains([waits])
        assert [one.written for one in store.change_waiting_jobs([waits], priority=1)] == [True]
        [edited] = store.change_waiting_jobs([waits], edit=InputEdit(waits, "1"))
        assert edited.written
        assert [one.id for one in store.trigger_jobs([late])] == [late]
        store.cancel_chains([late], reason=text)
        [done] = store.complete_chains([WorkerlessCompletion(waits, waits, None, self.new(self.named("-outside")))])
        assert done.written
        store.cancel_chains([waits, free], reason=text)
        dead = [one.id for one in store.start_jobs([self.new(new_id(), limit_key=None) for _ in range(400)])]
        store.cancel_chains(dead[1:], reason=text)
        store.release_stranded()  # Which finds a list with many dead entries.
        store.delete_chains(dead)
        assert store.next_due([text]) is None
        store.update_result_ttl([late], 3600.0)
        pruned = store.prune(PruneRequest({text: Retention(cancelled=Keep(count=1))}, limit=10))
        assert late not in pruned.chain_ids
        assert list(store.delete_chains([late], cascade=True).chain_ids) == [late]

    def recur(self) -> None:
        store, text = self.store, self.text
        record = ScheduleRecord(text, text, "1", None, 3600.0, "UTC", MissedRuns.SKIP, limit_key=text)
        store.put_schedules([record])
        assert store.set_schedules_paused([text], False) == 1
        [found] = [one for one in store.list_schedules() if one.name == text]
        assert found.next_at is not None
        store.due_schedules([text])
        fired = store.fire_schedule(text, found.next_at, None, [])
        assert fired == []
        assert store.delete_schedules([text]) == 1
        store.pause_job_types([text], reason=text)
        assert [(one.type, one.reason) for one in store.list_paused_job_types()] == [(text, text)]
        assert store.resume_job_types([text]) == [text]
        now = store.record_heartbeat(worker(text), 60.0)
        assert [one.id for one in store.list_workers()] == [text]
        traits = TypeTraits(text, completed_by_client=True, overdue_after=1.5, closes_with_parent=True)
        store.record_heartbeat(replace(worker("worker"), traits=(traits,)), 60.0)
        assert traits in store.list_type_traits()
        store.remove_worker("worker")
        did = Activity(now.replace(second=0, microsecond=0), 60, text, started=1)
        old = replace(did, begins_at=did.begins_at - timedelta(days=1))
        store.record_heartbeat(worker(text), 60.0, ActivityReport(1, [did, old]))
        store.remove_worker(text, ActivityReport(2, [did]))
        store.maintain_activity()
        filter = ActivityFilter(now - timedelta(hours=1), types=(text,), per_worker=True)
        assert store.get_activity(filter) == [replace(did, worker=text, started=2)]

    def look(self) -> None:
        store, text = self.store, self.text
        [job] = store.get_jobs([text])
        assert job is not None
        assert (job.id, job.chain_id, job.type, job.holder, job.limit_key) == (text, text, text, text, text)
        assert (job.deduplication_key, job.status) == (text, JobStatus.CONTINUED)
        [state] = store.get_chain_states([text])
        assert state is not None
        assert state.id == text
        [chain] = store.get_chains([text])
        assert chain is not None
        assert (chain.status, chain.tail_id) == (ChainStatus.COMPLETED, self.named("-next"))
        assert store.chains_of_key(text, text, only_open=False) == [text]
        page = PageRequest(limit=100)
        listed = store.list_chains(ChainFilter(types=(text,)), page).items
        assert text in {one.id for one in listed}
        assert text in {one.id for one in store.list_jobs(JobFilter(types=(text,)), page).items}
        assert [one.id for one in store.list_chain_jobs(text, page).items][-1] == text
        assert [one.id for one in store.list_dependents(text, page).items] == []
        events = store.list_events(EventFilter(types=(text,), chain_id=text), PageRequest(limit=100))
        assert {(one.job_id, one.type, one.chain_id, one.chain_type) for one in events} >= {(text, text, text, text)}
        assert {one.worker for one in events} == {text, None}
        store.set_event_level(EventLevel.ALL, [text])
        assert text in store.get_event_log().levels
        store.set_event_level(None, [text])
        store.set_event_retention(14)
        store.maintain_event_log()
        assert {one.type for one in store.count_jobs([text])} == {text}
        [attributes] = store.get_chain_attributes([text])
        assert attributes is not None
        assert store.put_webhook_record(WebhookWrite(text, text, text, "1", None))
        [record] = store.get_webhook_records(text, [text])
        assert (record.kind, record.id, record.body) == (text, text, text)
        assert store.get_webhook_records(text) == [record]
        attempt = NewWebhookAttempt(text, text, text, 1, 200, text, 0.1, None, text)
        store.record_webhook_attempts([attempt])
        [stored] = store.list_webhook_attempts(text, PageRequest()).items
        assert (stored.endpoint_id, stored.delivery_id, stored.error, stored.response) == (text, text, text, text)
        assert store.prune_webhook_attempts(3600.0) == 0
        assert {one.type for one in store.get_demand([text])} <= {text}


def worker(text: str) -> WorkerHeartbeat:
    """A worker that tells of itself."""
    return WorkerHeartbeat(text, text, text, 1, text, (text,), 1, 0, 1.0)
