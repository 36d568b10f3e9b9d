"""Ears and witnesses: what tests of notify adapters wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

import psycopg
import redis

from queuert.notify import InProcessNotify, Notification, NotifyAdapter, Subscription, Topic
from queuert.notify.encoding import MARK
from queuert.notify.postgres import ListenerTimeouts
from queuert.observability import Observers
from queuert.observability.events import Event, ListenerLost, ListenerRestored
from queuert.policies import Backoff

WAIT = 20.0
"""Seconds: an upper bound for what takes milliseconds."""

START = 120.0
"""Seconds: an upper bound for a program of Python, from its start to its end. Such a test sets a longer timeout."""

QUICK = ListenerTimeouts(self_test=10.0, retest=0.1, probe=0.1, answer=10.0, linger=0.05, backoff=Backoff(0.01, 0.05))
"""For tests of what happens when a time is over, on servers that answer: however slowly, that is no loss."""

IMPATIENT = replace(QUICK, answer=3.0)
"""For tests of servers that do not answer."""

DOUBTFUL = replace(QUICK, self_test=0.5, probe=3_600.0)
"""For tests of notifications that do not arrive. Nothing is asked meanwhile: poolers pass on what comes beside an
answer."""

STRANGE_KEYS = [
    *("", " ", "\n", "\t", "\x00", "a\x00b", MARK, f"{MARK}[]", f'{MARK}["a"]', "\x7f", "\ud800", "\udfff!"),
    *("'", '"', "\\", "\\x41", "{a,b}", "$1", "%s", "%(a)s", ";--", "NULL", "null", "[]", '["a"]', "*"),
    *("é", "日本語", "😀", "e\u0301", "\u202e", "\u2028", "x" * 4_000, "é" * 512),
]

E = TypeVar("E", bound=Event)


class Heard:
    """A callback that remembers its notifications."""

    def __init__(self) -> None:
        self.notifications: list[Notification] = []
        self._changed = threading.Condition()

    def __call__(self, notification: Notification) -> None:
        with self._changed:
            self.notifications.append(notification)
            self._changed.notify_all()

    @property
    def keys(self) -> set[str]:
        """All keys that were named."""
        with self._changed:
            return {key for notification in self.notifications for key in notification.keys or ()}

    @property
    def wildcards(self) -> int:
        """How many notifications named no keys."""
        with self._changed:
            return sum(notification.keys is None for notification in self.notifications)

    def wait_for(self, *keys: str) -> None:
        """Wait until all these keys were named."""
        self.wait_until(lambda: self.keys >= set(keys), f"{keys} of {self.notifications}")

    def wait_for_wildcard(self, count: int = 1) -> None:
        """Wait until so many notifications named no keys."""
        self.wait_until(lambda: self.wildcards >= count, f"{count} wildcards in {self.notifications}")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, WAIT), f"not heard: {what}"

    def forget(self) -> None:
        with self._changed:
            self.notifications.clear()


class Recorder:
    """An observability adapter that remembers its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def emit(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def of(self, kind: type[E]) -> list[E]:
        """The events of this class so far."""
        with self._changed:
            return [event for event in self.events if isinstance(event, kind)]

    def wait_for(self, kind: type[E], count: int = 1) -> E:
        """Wait for so many events of this class; the last of them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.of(kind)) >= count, WAIT), f"{kind} not in {self.events}"
        return self.of(kind)[count - 1]

    def wait_for_loss(self, reason: str) -> None:
        """Wait until a loss was told whose error says this."""
        with self._changed:
            lost = self._changed.wait_for(lambda: any(reason in one.error for one in self.of(ListenerLost)), WAIT)
            assert lost, f"no loss because of {reason!r} in {self.events}"

    def wait_until_restored(self) -> None:
        """Wait until no loss was told after which nothing was restored."""

        def restored() -> bool:
            reported = [event for event in self.events if isinstance(event, ListenerLost | ListenerRestored)]
            return bool(reported) and isinstance(reported[-1], ListenerRestored)

        with self._changed:
            assert self._changed.wait_for(restored, WAIT), f"not restored in {self.events}"


class Party:
    """An open adapter whose subscriptions are in force when `listen` returns."""

    def __init__(self, adapter: NotifyAdapter) -> None:
        self.adapter = adapter
        self.recorder = Recorder()
        self._listening: set[Topic] = set()
        adapter.open(Observers([self.recorder]))

    def listen(self, topic: Topic) -> tuple[Heard, Subscription]:
        """Subscribe; what is published afterwards is heard."""
        heard = Heard()
        subscription = self.adapter.subscribe(topic, heard)
        if not isinstance(self.adapter, InProcessNotify) and topic not in self._listening:
            heard.wait_for_wildcard()
            heard.forget()
        self._listening.add(topic)
        return heard, subscription

    def publish(self, topic: Topic, *keys: str) -> None:
        self.adapter.publish(topic, keys)


class Gate:
    """A callback that keeps its thread until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._open = threading.Event()

    def __call__(self, notification: Notification) -> None:
        if notification.keys is not None:
            self.entered.set()
            assert self._open.wait(WAIT)

    def open(self) -> None:
        self._open.set()


def held(party: Party) -> Gate:
    """Keep the party's thread busy, so that what it is given to publish gathers."""
    gate = Gate()
    party.listen(Topic.LEASES)
    party.adapter.subscribe(Topic.LEASES, gate)
    party.publish(Topic.LEASES, "wait")
    assert gate.entered.wait(WAIT)
    return gate


def recovers(party: Party, heard: Heard) -> None:
    """The party's connection was lost: it says so, and is back with a notification to look at everything."""
    lost = party.recorder.wait_for(ListenerLost)
    assert lost.error
    assert lost.retry_in > 0
    heard.wait_for_wildcard()
    party.recorder.wait_until_restored()
    assert party.adapter.healthy


class Wiretap:
    """A plain connection that listens, as any other program might."""

    def __init__(self, dsn: str, *channels: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        for channel in channels:
            self.connection.execute(f'LISTEN "{channel}"'.encode())

    def texts_until(self, last: str) -> list[str]:
        """The payloads that arrive before this one."""
        texts: list[str] = []
        for notice in self.connection.notifies(timeout=WAIT):
            if notice.payload == last:
                return texts
            texts.append(notice.payload)
        raise AssertionError(f"{last!r} did not arrive after {texts}")

    def notify(self, channel: str, payload: str) -> None:
        self.connection.execute("SELECT pg_notify(%s, %s)", [channel, payload])

    def listeners(self) -> int:
        """How many adapters are connected to this database."""
        row = self.connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = 'queuert notify' AND datname = current_database()"
        ).fetchone()
        return 0 if row is None else int(row[0])

    def end_listeners(self) -> int:
        """End the connections of all adapters on this database; how many there were."""
        return len(
            self.connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'queuert notify' AND datname = current_database()"
            ).fetchall()
        )

    def end_the_listener(self) -> None:
        """End the connection of the only adapter. One that was ended before may be listed for a moment yet."""
        deadline = time.monotonic() + WAIT
        while self.listeners() != 1:
            assert time.monotonic() < deadline
        assert self.end_listeners() == 1


@contextmanager
def wiretap(dsn: str, *channels: str) -> Iterator[Wiretap]:
    tap = Wiretap(dsn, *channels)
    try:
        yield tap
    finally:
        tap.connection.close()


class RedisTap:
    """A plain client that listens, as any other program might."""

    def __init__(self, url: str, *channels: str) -> None:
        # The driver does not tell the types of its subscriptions.
        self.client = cast(Any, redis.Redis.from_url(url))
        self._hearing = self.client.pubsub()
        for channel in channels:
            self._hearing.subscribe(channel)
            assert self._hearing.get_message(timeout=WAIT)["type"] == "subscribe"

    def texts_until(self, last: str) -> list[str]:
        """The texts that arrive before this one."""
        texts: list[str] = []
        while (message := self._hearing.get_message(timeout=WAIT)) is not None:
            text = message["data"].decode()
            if text == last:
                return texts
            texts.append(text)
        raise AssertionError(f"{last!r} did not arrive after {texts}")

    def publish(self, channel: str, text: str | bytes) -> None:
        self.client.publish(channel, text)

    def adapters(self) -> list[int]:
        """The ids of the connections of all adapters."""
        return [int(one["id"]) for one in self.client.client_list() if one["name"] == "queuert-notify"]

    def end_adapters(self) -> int:
        """End the connections of all adapters; how many there were."""
        ended = [self.client.client_kill_filter(_id=str(one)) for one in self.adapters()]
        return len(ended)

    def close(self) -> None:
        self._hearing.close()
        self.client.close()


@contextmanager
def redis_tap(url: str, *channels: str) -> Iterator[RedisTap]:
    tap = RedisTap(url, *channels)
    try:
        yield tap
    finally:
        tap.close()
