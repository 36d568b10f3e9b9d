"""A deterministic explorer: operations on connections of their own, their statements in every order.

The operations are the store's own methods, run on threads. A gate on each connection lets one statement through at a
time, so that the explorer decides whose turn it is. A statement that waits for a lock is seen in ``pg_blocking_pids``;
its operation goes on by itself once the other has let go.

The statements between ``BEGIN`` and ``COMMIT`` are steps, ``COMMIT`` is one, ``BEGIN`` is none: it takes no lock and no
snapshot. An order is a tuple of places: whose step comes first, second, and so on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg
from psycopg.pq.abc import PGresult

from queuert.state.postgres.errors import mapped_errors
from queuert.state.postgres.protocol import BEGIN, PooledConnection, Step, sync_begin_with, sync_execute_pipeline
from queuert.state.postgres.settings import PostgresSettings
from queuert.state.postgres.statements import Statements
from queuert.state.postgres.sync_store import PostgresStore

Operation = Callable[[PostgresStore], object]
"""What one party does; its result, or the error it raised, is kept."""

_TIMEOUT = 20.0
_NOT_STEPS = ("_begun", "_enter_gen", "_connect_gen", "close_gen")


class _GatedConnection(PooledConnection):
    """Asks its party before each statement."""

    party: Party | None = None

    def wait(self, gen: Generator[Any, Any, Any], *arguments: Any, **more: Any) -> Any:
        name = getattr(gen, "__name__", "")
        if self.party is not None and name not in _NOT_STEPS:
            self.party.ask()
        return super().wait(gen, *arguments, **more)


class _OneConnection:
    """Replaces the store's pool: always the same connection, as it is."""

    prepares = False

    def __init__(self, connection: _GatedConnection) -> None:
        self._connection = connection

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        with mapped_errors():
            yield self._connection

    @contextmanager
    def raw_connection(self) -> Iterator[psycopg.Connection[Any]]:
        yield self._connection

    def limited(self, connection: object) -> AbstractContextManager[None]:
        return mapped_errors()

    def watched(self, connection: object) -> AbstractContextManager[None]:
        return nullcontext()


class SteppedStore(PostgresStore):
    """What it sends in one round trip goes a statement at a time: on the server others can come in between."""

    def _exchanged(self, connection: PooledConnection, steps: Sequence[Step]) -> list[PGresult]:
        try:
            # The first sets how long to wait for locks, and takes none.
            answers = sync_begin_with(connection, BEGIN, steps[:2], prepare=False)
            for step in steps[2:]:
                answers += sync_execute_pipeline(connection, [step], prepare=False)
        except psycopg.Error:
            connection.rollback()
            raise
        return answers


class Party:
    """One operation on its own connection and thread, held before each of its steps."""

    def __init__(self, settings: PostgresSettings, connection: _GatedConnection, operation: Operation) -> None:
        self._operation = operation
        self._connection = connection
        self.pid = connection.info.backend_pid
        self._store = SteppedStore(settings, Statements("queuert"), 1)
        vars(self._store).update(_connections=_OneConnection(self._connection))
        self._turn = threading.Semaphore(0)
        self.arrived = threading.Semaphore(0)
        self.done = False
        self.result: object = None
        self._connection.party = self
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Run up to the first step."""
        self._thread.start()

    def ask(self) -> None:
        """Called on the party's thread: say that a step is next, and wait for leave."""
        self.arrived.release()
        if not self._turn.acquire(timeout=_TIMEOUT):
            raise TimeoutError("the explorer has forgotten this party")

    def go(self) -> None:
        """Let one step through."""
        self._turn.release()

    def _run(self) -> None:
        try:
            self.result = self._operation(self._store)
        except Exception as error:
            self.result = error
        self.done = True
        self.arrived.release()

    def close(self) -> None:
        """Let go of the connection, once the operation has ended."""
        self._thread.join(_TIMEOUT)
        self._connection.party = None


@dataclass
class Run:
    """One order of the parties' steps, as it was carried out."""

    order: tuple[int, ...] = ()
    choices: list[tuple[int, ...]] = field(default_factory=list)
    """Who could have been chosen at each step."""
    results: tuple[object, ...] = ()


class Explorer:
    """Runs operations in all orders of their steps.

    Args:
        dsn: the database; ``setup`` brings it to the same state before each order.
        setup: called before each order; makes the operations.
        check: called after each order with what came of it; raises when an invariant is broken.
    """

    def __init__(self, dsn: str, setup: Callable[[], Sequence[Operation]], check: Callable[[Run], None]) -> None:
        self._dsn = dsn
        self._setup = setup
        self._check = check

    def explore(self, sample: int | None = None) -> int:
        """Run every order, or a sample of so many, the same each time; an AssertionError names the first that fails.

        Returns how many there were.
        """
        chance = Random(7)
        waiting: list[tuple[int, ...]] = [()]
        count = 0
        with ExitStack() as stack:
            observer = stack.enter_context(psycopg.connect(self._dsn, autocommit=True))
            connections: list[_GatedConnection] = []
            while waiting and (sample is None or count < sample):
                prefix = waiting.pop(-1 if sample is None else chance.randrange(len(waiting)))
                operations = self._setup()
                while len(connections) < len(operations):
                    connections.append(stack.enter_context(_connected(self._dsn)))
                run = self._run(observer, connections, operations, prefix)
                count += 1
                try:
                    self._check(run)
                except AssertionError as error:
                    raise AssertionError(f"in the order {run.order}, with {run.results}: {error}") from error
                waiting += _others(run, len(prefix))
        return count

    def run(self) -> Run:
        """Run one order, that of whoever comes first."""
        operations = self._setup()
        with ExitStack() as stack:
            observer = stack.enter_context(psycopg.connect(self._dsn, autocommit=True))
            connections = [stack.enter_context(_connected(self._dsn)) for _ in operations]
            return self._run(observer, connections, operations, ())

    def _run(
        self,
        observer: psycopg.Connection[Any],
        connections: Sequence[_GatedConnection],
        operations: Sequence[Operation],
        prefix: Sequence[int],
    ) -> Run:
        """Run one order that begins like this and goes on with whoever comes first."""
        settings = PostgresSettings(self._dsn)
        parties = [Party(settings, *pair) for pair in zip(connections, operations, strict=False)]
        run = Run()
        blocked: set[int] = set()
        for place, party in enumerate(parties):
            party.start()
            _settle(observer, party, place, blocked)
        while not all(party.done for party in parties):
            self._step(observer, parties, blocked, run, prefix)
        for party in parties:
            party.close()
        run.results = tuple(party.result for party in parties)
        return run

    @staticmethod
    def _step(
        observer: psycopg.Connection[Any], parties: Sequence[Party], blocked: set[int], run: Run, prefix: Sequence[int]
    ) -> None:
        able = tuple(n for n, party in enumerate(parties) if not party.done and n not in blocked)
        if able:
            step = len(run.order)
            chosen = prefix[step] if step < len(prefix) else able[0]
            run.choices.append(able)
            run.order += (chosen,)
            parties[chosen].go()
            _settle(observer, parties[chosen], chosen, blocked)
        for place in sorted(blocked):
            # Without anybody able, all wait for each other: the server finds the deadlock and ends one of them.
            _settle(observer, parties[place], place, blocked)


def _connected(dsn: str) -> _GatedConnection:
    connection = _GatedConnection.connect(dsn, autocommit=True, prepare_threshold=None)
    with suppress(psycopg.errors.InsufficientPrivilege):
        # A deadlock is found all the same, only sooner.
        connection.execute("SET deadlock_timeout = '1ms'")
    return connection


def _settle(observer: psycopg.Connection[Any], party: Party, place: int, blocked: set[int]) -> None:
    """Wait until the party stands before its next step, has ended, or waits for a lock."""
    for _ in range(10_000):
        if party.arrived.acquire(timeout=0.001):
            blocked.discard(place)
            return
        row = observer.execute("SELECT cardinality(pg_blocking_pids(%s))", [party.pid]).fetchone()
        if row is not None and row[0] > 0:
            blocked.add(place)
            return
    raise AssertionError(f"party {place} neither arrived nor waits for a lock")


def _others(run: Run, since: int) -> Iterator[tuple[int, ...]]:
    """The beginnings that differ from this order in one later step: each order is reached from just one other."""
    for step in range(since, len(run.order)):
        for other in run.choices[step][1:]:
            yield (*run.order[:step], other)
