"""Ears and witnesses: what tests of notify adapters wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import psycopg

from queuert.notify import Hint, NotifyAdapter, Subscription, Topic
from queuert.notify.postgres import ListenerTimes, PostgresNotify
from queuert.observability import Observers
from queuert.observability.events import Event
from queuert.policies import Backoff

WAIT = 20.0
"""Seconds: an upper bound for what takes milliseconds."""

QUICK = ListenerTimes(self_test=0.5, retest=0.1, probe=0.1, answer=1.0, linger=0.05, backoff=Backoff(0.01, 0.05))
"""For tests of what happens when a time is over."""

E = TypeVar("E", bound=Event)


class Heard:
    """A callback that remembers its hints."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []
        self._changed = threading.Condition()

    def __call__(self, hint: Hint) -> None:
        with self._changed:
            self.hints.append(hint)
            self._changed.notify_all()

    @property
    def keys(self) -> set[str]:
        """All keys that were named."""
        with self._changed:
            return {key for hint in self.hints for key in hint.keys or ()}

    @property
    def wildcards(self) -> int:
        """How many hints named no keys."""
        with self._changed:
            return sum(hint.keys is None for hint in self.hints)

    def wait_for(self, *keys: str) -> None:
        """Wait until all these keys were named."""
        self.wait_until(lambda: self.keys >= set(keys), f"{keys} of {self.hints}")

    def wait_for_wildcard(self, count: int = 1) -> None:
        """Wait until so many hints named no keys."""
        self.wait_until(lambda: self.wildcards >= count, f"{count} wildcards in {self.hints}")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, WAIT), f"not heard: {what}"

    def forget(self) -> None:
        with self._changed:
            self.hints.clear()


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
        if isinstance(self.adapter, PostgresNotify) and topic not in self._listening:
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

    def __call__(self, hint: Hint) -> None:
        if hint.keys is not None:
            self.entered.set()
            assert self._open.wait(WAIT)

    def open(self) -> None:
        self._open.set()


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


@contextmanager
def wiretap(dsn: str, *channels: str) -> Iterator[Wiretap]:
    tap = Wiretap(dsn, *channels)
    try:
        yield tap
    finally:
        tap.connection.close()
