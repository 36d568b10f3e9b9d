"""A client of a run: it makes its starts at the planned moments, and records the answers.

The client records each call before it makes it and when it gets the answer. If it is killed between the two, the
outcome is unknown, and its successor knows where to continue: it repeats the call with the same id.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from queuert.client import Client, NewChain
from queuert.client.sync_chain import Chain
from queuert.deduplication import Deduplicate
from queuert.errors import QueuertError, StateUnavailableError
from queuert.run_at import after
from queuert.testing.chaos.plan import Op
from queuert.testing.chaos.records import Records, read
from queuert.testing.chaos.worker import EventRecords, state_for
from queuert.testing.chaos.workload import JOB_TYPES, Task, custom_start, effect, job_types_of, load

_TIMEOUT = 60.0
_PAUSE = 0.1
_CONNECTIONS = 5
_DUELLISTS = 4


class RolledBack(Exception):
    """Raised to roll back a transaction."""


class ChaosClient:
    """One client process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        directory = Path(settings["directory"])
        self._name: int = settings["client"]
        self._log = Records(directory / f"client-{self._name}.jsonl")
        self._workload = None if settings["workload"] is None else load(settings["workload"])
        self._job_types = job_types_of(self._workload)
        records = EventRecords(Records(directory / "events.jsonl"), -1)
        self._client = Client(state_for(settings), self._job_types, observability=records, max_connections=_CONNECTIONS)
        self._pool = ThreadPoolExecutor(_DUELLISTS)

    def run(self) -> int:
        """Make the starts that have no answer yet."""
        done, begun = self._past()
        for op in (Op(**{**fields, "ids": tuple(fields["ids"])}) for fields in self._settings["ops"]):
            if op.number not in done:
                time.sleep(max(0.0, self._settings["began"] + op.at - time.time()))
                self._make(op, repeated=op.number in begun)
        self._pool.shutdown()
        self._client.close()
        return 0

    def _past(self) -> tuple[set[int], set[int]]:
        lines = list(read(self._log.path))
        return {one["op"] for one in lines if one["m"] == "done"}, {one["op"] for one in lines}

    def _make(self, op: Op, *, repeated: bool) -> None:
        make = {"duel": self._duel, "transaction": self._in_transaction, "rollback": self._in_transaction}
        call: Callable[[Op, bool], bool] = make.get(op.how, self._start)
        deadline = time.monotonic() + _TIMEOUT
        while not call(op, repeated) and time.monotonic() < deadline:
            repeated = True
            time.sleep(_PAUSE)
        self._log.add(m="done", op=op.number)

    # --- calls --------------------------------------------------------------------------------------------------------

    def _start(self, op: Op, repeated: bool) -> bool:
        chains = self._chains(op, repeated)
        with self._reported(op, op.ids) as tell:
            tell([(chain.id, chain) for chain in self._client.start_chains(chains)])
            if op.how != "group":
                return True
        if tell.outcome != "ack":
            return False
        return self._wait_for_group(op, repeated)

    def _wait_for_group(self, op: Op, repeated: bool) -> bool:
        """Start a chain that waits for the other chains of its group, which run already."""
        *blockers, last = op.ids
        waiting = NewChain(effect, Task(), id=last, blockers=blockers, attach=True)
        with self._reported(op, (last,)) as tell:
            tell([(last, chain) for chain in self._client.start_chains([waiting])])
        return tell.outcome != "unknown"

    def _chains(self, op: Op, repeated: bool) -> list[NewChain[Any]]:
        if op.how == "custom":
            assert self._workload is not None
            [id] = op.ids
            made = custom_start(self._workload, id, op.number)
            made.attach = repeated
            return [made]
        ids = op.ids[:-1] if op.how == "group" else op.ids
        job_type = JOB_TYPES[op.type]
        run_at = after(seconds=op.delay) if op.delay else None
        ttl = op.ttl or None
        return [
            NewChain(
                job_type,
                _task(op, index),
                id=id,
                attach=repeated,
                run_at=run_at,
                result_ttl=ttl,
                limit_key=op.limit_key or None,
            )
            for index, id in enumerate(ids)
        ]

    def _duel(self, op: Op, repeated: bool) -> bool:
        if repeated:
            return True  # Without an id of its own, a start whose outcome is unknown cannot be repeated.
        ready = threading.Barrier(_DUELLISTS)

        def fight() -> None:
            ready.wait()
            with self._reported(op, ("",)) as tell:
                key = Deduplicate(op.key)
                tell([("", self._client.start_chain(effect, Task(**op.input), deduplication=key))])

        list(self._pool.map(lambda _: fight(), range(_DUELLISTS)))
        return True

    def _in_transaction(self, op: Op, repeated: bool) -> bool:
        with self._reported(op, op.ids) as tell:
            [id] = op.ids
            try:
                with self._transaction() as execute:
                    connection = execute(id, op.how)
                    chain = self._client.start_chain(JOB_TYPES[op.type], Task(**op.input), id=id, connection=connection)
                    if op.how == "rollback":
                        raise RolledBack
            except RolledBack:
                tell([(id, None)])
            else:
                tell([(id, chain)])
        # A row with the same key is rejected, so the call can be repeated; a rejection is an answer.
        return tell.outcome != "unknown"

    @contextmanager
    def _transaction(self) -> Iterator[Callable[[str, str], Any]]:
        store = self._settings["store"]
        if store == "redis":
            yield lambda id, how: None
            return
        with (_postgres if store == "postgres" else _sqlite)(self._settings["url"]) as connection:

            def insert(id: str, how: str) -> Any:
                table, mark = ("chaos.business", "%s") if store == "postgres" else ("chaos_business", "?")
                connection.execute(f"INSERT INTO {table} (id) VALUES ({mark})", (id,))
                return connection

            yield insert

    @contextmanager
    def _reported(self, op: Op, ids: tuple[str, ...]) -> Iterator[Tell]:
        """Record that a call begins, and how it ended. An error is an answer; an unknown outcome is recorded as
        unknown."""
        requested = ids[:-1] if op.how == "group" and len(ids) > 1 else ids
        call = f"{op.number}-{threading.get_ident()}-{time.monotonic_ns()}"
        self._log.add(m="begin", op=op.number, call=call, how=op.how, ids=requested, key=op.key, type=op.type)
        tell = Tell()
        try:
            yield tell
        except StateUnavailableError as error:
            tell.outcome, tell.error = "unknown", str(error)
        except (QueuertError, sqlite3.Error) as error:
            tell.outcome, tell.error = "error", f"{type(error).__name__}: {error}"
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("psycopg", "psycopg_pool"):
                raise
            refused = type(error).__name__ == "UniqueViolation"
            tell.outcome, tell.error = "error" if refused else "unknown", f"{type(error).__name__}: {error}"
        self._log.add(m="end", op=op.number, call=call, outcome=tell.outcome, results=tell.results, error=tell.error)


def _task(op: Op, index: int) -> Task:
    """Make the input of the job. Large texts are made here, because the plan contains only their size."""
    task = Task(**op.input)
    if op.how == "clash" and index:
        task.how = ""
    if op.size:
        task.ballast = "x" * op.size
    return task


class Tell:
    """The answer to a call."""

    def __init__(self) -> None:
        self.outcome = "unknown"
        self.results: list[tuple[str, str, bool]] = []
        self.error = ""

    def __call__(self, results: list[tuple[str, Chain[Any] | None]]) -> None:
        """The call was acknowledged, with these ids."""
        self.outcome = "ack"
        self.results = [
            (requested, requested if one is None else one.id, bool(one and one.deduplicated))
            for requested, one in results
        ]


@contextmanager
def _postgres(url: str) -> Iterator[Any]:
    import psycopg

    with psycopg.connect(url, connect_timeout=3) as connection:
        yield connection


@contextmanager
def _sqlite(url: str) -> Iterator[Any]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
    finally:
        connection.close()


def main(settings: dict[str, Any]) -> int:
    """Run a client until it has made all its starts; return the exit code."""
    return ChaosClient(settings).run()
