"""Notifications that a Postgres store sends right behind a start, in the same round trip."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg
import pytest

from queuert import Client, JobType, JobTypes, PostgresState
from queuert.errors import JobIdConflictError
from queuert.notify.adapter import Notification, Topic
from queuert.notify.postgres import NotifyThrottle, PostgresNotify
from queuert.observability.adapter import Observers
from queuert.state.postgres.protocol import named
from queuert.state.types import NewJob

WORK = JobType("work", input=int, output=int)


class Recorded(PostgresNotify):
    """Notes what is published, and what stores send."""

    def __init__(self, dsn: str, **settings: Any) -> None:
        super().__init__(dsn, **settings)
        self.published: list[tuple[Topic, set[str]]] = []
        self.piggybacks: list[tuple[str, str] | None] = []

    def publish(self, topic: Topic, keys: Iterable[str]) -> None:
        self.published.append((topic, set(keys)))

    def piggyback(self, topic: Topic, keys: Iterable[str], address: object) -> tuple[str, str] | None:
        taken = super().piggyback(topic, keys, address)
        self.piggybacks.append(taken)
        return taken


class Received:
    """What a subscriber receives, once it listens."""

    def __init__(self, notify: PostgresNotify) -> None:
        self._arrived = threading.Condition()
        self._notifications: list[Notification] = []
        notify.subscribe(Topic.JOBS, self._add)

    def _add(self, notification: Notification) -> None:
        with self._arrived:
            self._notifications.append(notification)
            self._arrived.notify_all()

    def wait_for(self, keys: set[str] | None) -> None:
        wanted = None if keys is None else frozenset(keys)
        with self._arrived:
            assert self._arrived.wait_for(lambda: any(one.keys == wanted for one in self._notifications), 30)


def at_rest(notify: PostgresNotify) -> NotifyThrottle:
    """The throttle of a connected adapter, after a silence."""
    listener = notify._listener
    assert listener is not None
    session: Any = listener.session
    session.throttle.next_at = 0.0
    throttle: NotifyThrottle = session.throttle
    return throttle


@pytest.fixture
def notify(dsn: str) -> Iterator[Recorded]:
    notify = Recorded(dsn)
    notify.open(Observers())
    received = Received(notify)
    # It listens, so it is connected.
    received.wait_for(None)
    at_rest(notify)
    yield notify
    notify.close()


def client(dsn: str, notify: Recorded, **settings: Any) -> Client:
    """A client whose one connection has prepared its start: only such a start can carry a notification."""
    client = Client(PostgresState(dsn, **settings), JobTypes(WORK), notify=notify, max_connections=1)
    client.start_chain(WORK, 0)
    notify.published.clear()
    notify.piggybacks.clear()
    at_rest(notify)
    return client


def test_a_start_after_a_silence_sends_its_notification(dsn: str, notify: Recorded) -> None:
    received = Received(notify)
    with client(dsn, notify) as starter:
        starter.start_chain(WORK, 1)
    received.wait_for({"work"})
    assert notify.piggybacks == [("queuert_jobs", "work")]
    assert notify.published == []


def test_a_start_of_several_chains_sends_one(dsn: str, notify: Recorded) -> None:
    received = Received(notify)
    with client(dsn, notify) as starter:
        store: Any = starter._open_store()
        store.start_jobs([NewJob("a", "work", "1"), NewJob("b", "work", "1")])
        _, notified = store.start_and_notify([NewJob("c", "work", "1"), NewJob("d", "work", "1")], notify)
    assert notified
    received.wait_for({"work"})


def test_in_a_stream_notifications_are_collected(dsn: str, notify: Recorded) -> None:
    with client(dsn, notify) as starter:
        at_rest(notify).next_at = float("inf")
        starter.start_chain(WORK, 1)
        at_rest(notify)
    assert notify.piggybacks == [None]
    assert notify.published == [(Topic.JOBS, {"work"})]


def test_one_of_two_that_start_at_once_is_collected(notify: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    # However long this process is held up between the two.
    monkeypatch.setattr("queuert.notify.postgres.MIN_INTERVAL", 3600.0)
    address = notify._settings.address
    assert notify.piggyback(Topic.JOBS, {"work"}, address) == ("queuert_jobs", "work")
    assert notify.piggyback(Topic.JOBS, {"work"}, address) is None


def test_another_database_gets_none(template_databases: Any, notify: Recorded) -> None:
    with template_databases.database() as elsewhere, client(elsewhere, notify) as starter:
        starter.start_chain(WORK, 1)
    assert notify.published == [(Topic.JOBS, {"work"})]


def test_starts_that_take_several_statements_publish(dsn: str, notify: Recorded) -> None:
    with client(dsn, notify) as starter:
        first = starter.start_chain(WORK, 1)
        at_rest(notify)
        starter.start_chain(WORK, 1, blockers=[first])
        with psycopg.connect(dsn) as connection:
            starter.start_chain(WORK, 1, connection=connection)
    assert notify.piggybacks == [("queuert_jobs", "work")]
    assert notify.published == [(Topic.JOBS, set())]


def test_a_start_that_is_refused_raises_as_ever(dsn: str, notify: Recorded) -> None:
    with client(dsn, notify) as starter:
        starter.start_chain(WORK, 1, id="a")
        at_rest(notify)
        with pytest.raises(JobIdConflictError):
            starter.start_chain(WORK, 1, id="a")
        at_rest(notify)
        assert starter.start_chain(WORK, 1, id="b").id == "b"
    assert notify.piggybacks.count(("queuert_jobs", "work")) == 3


@pytest.mark.parametrize("fails", ["1 / 0", "pg_terminate_backend(pg_backend_pid())"])
def test_a_notification_that_fails_leaves_the_start_alone(dsn: str, notify: Recorded, fails: str) -> None:
    """Also if the connection is lost between the two."""
    with client(dsn, notify) as starter:
        broken = f"SELECT {fails}, %(channel)s::text, %(text)s::text".encode()
        store: Any = starter._open_store()
        statements = store._sql
        statements.prepared = {**statements.prepared, "notify_after_commit": named("notify_after_commit", broken)}
        started = starter.start_chain(WORK, 1)
        assert starter.get_chain(started.id).status == "open"
    assert notify.piggybacks == [("queuert_jobs", "work")]
    assert notify.published == [(Topic.JOBS, {"work"})]


def test_a_start_that_the_server_has_forgotten_is_prepared_again(dsn: str, notify: Recorded) -> None:
    with client(dsn, notify) as starter:
        store: Any = starter._open_store()
        with store._connections.connection() as own:
            own.pgconn.exec_(b"DEALLOCATE ALL")
        for number in range(2):
            at_rest(notify)
            assert starter.start_chain(WORK, number, id=f"{number}").id == f"{number}"
    assert notify.published == [(Topic.JOBS, {"work"})]


def test_without_prepared_statements_it_is_published(dsn: str, notify: Recorded) -> None:
    with client(dsn, notify, prepare_threshold=None) as starter:
        starter.start_chain(WORK, 1)
    assert notify.piggybacks == []
    assert notify.published == [(Topic.JOBS, {"work"})]


def test_a_closed_adapter_has_none(dsn: str) -> None:
    notify = PostgresNotify(dsn)
    assert notify.piggyback(Topic.JOBS, {"work"}, notify._settings.address) is None
