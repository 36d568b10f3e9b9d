"""A client of the run itself: it starts the chains that directed faults need, and manages chains.

It does not use a proxy. The client log contains its calls like all others.
"""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from queuert.client import Client, NewChain
from queuert.errors import QueuertError, StateUnavailableError
from queuert.job_types import JobType, JobTypes
from queuert.jobs import ChainStatus, JobStatus
from queuert.observability.events import Event
from queuert.state.adapter import StateAdapter
from queuert.testing.chaos.fleet import Missed
from queuert.testing.chaos.records import Records
from queuert.testing.chaos.workload import Done, Task, effect, flaky, plain, poison, threaded

_FIRST = 100
_ATTEMPTS = 12
_PAUSE = 0.25
_LOOKED_AT = 200


class _Silence:
    """A notifications adapter that receives nothing: the records have all that the client does."""

    def emit(self, event: Event) -> None:
        """Drop the event."""


class Operator:
    """Starts and manages chains."""

    def __init__(self, state: StateAdapter, job_types: JobTypes, directory: Path, seed: int) -> None:
        self._log = Records(directory / "client-outsider.jsonl")
        self._client = Client(state, job_types, observability=_Silence(), max_connections=6)
        self._calls = itertools.count(1)
        self._ids = itertools.count(1)
        self._seed = seed

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def start(self, job_type: JobType[Task, Done], tasks: Iterable[Task], *, priority: int = _FIRST) -> list[str]:
        """Start a chain for each task, by default with priority over others; return their ids.

        Raises:
            Missed: the store did not answer.
        """
        given = list(tasks)
        ids = [f"o{self._seed}-{next(self._ids)}" for _ in given]

        def start(repeated: bool) -> None:
            self._client.start_chains(
                NewChain(job_type, task, id=id, attach=repeated, priority=priority)
                for id, task in zip(ids, given, strict=True)
            )

        self._call("start", "start", ids, job_type.name, start)
        return ids

    def start_behind(self, id: str, connection: Any) -> str:
        """Start a chain that waits for another, in a caller's transaction; return its id. The call is not recorded yet.

        Raises:
            Missed: the store refused it.
        """
        waiting = f"o{self._seed}-{next(self._ids)}"
        try:
            self._client.start_chain(effect, Task(), id=waiting, blockers=[id], connection=connection)
        except QueuertError as error:
            raise Missed(str(error)) from error
        return waiting

    def note(self, id: str, outcome: str) -> None:
        """Record a start by ``start_behind`` by the outcome of the caller's transaction: ack, unknown or error."""
        call = f"{next(self._calls)}"
        self._log.add(m="begin", op="start", call=call, how="start", ids=[id], key="", type=effect.name)
        results = [[id, id, False]] if outcome == "ack" else []
        self._log.add(m="end", op="start", call=call, outcome=outcome, results=results, error="")

    # --- management calls ---------------------------------------------------------------------------------------------

    def cancel(self, random: Random) -> str:
        """Cancel some open chains."""
        ids = self._some(random, [ChainStatus.OPEN], 4)
        self._outside("cancel", ids, lambda: self._client.cancel_chains(ids, reason="chaos"))
        return f"{len(ids)} chains"

    def retry(self, random: Random) -> str:
        """Retry some closed chains."""
        ids = self._some(random, [ChainStatus.CANCELLED, ChainStatus.FAILED], 3, but=poison)
        self._outside("retry", ids, lambda: self._client.retry_chains(ids))
        return f"{len(ids)} chains"

    def delete(self, random: Random) -> str:
        """Delete some chains, open and closed."""
        ids = self._some(random, [ChainStatus.OPEN, ChainStatus.COMPLETED, ChainStatus.CANCELLED], 3)
        self._outside("delete", ids, lambda: self._client.delete_chains(ids))
        return f"{len(ids)} chains"

    def complete(self, random: Random) -> str:
        """Complete a chain while its handler runs."""
        [id] = self._some(random, [ChainStatus.OPEN], 1)
        self._outside("complete", [id], lambda: self._client.complete_chain(id, Done(attempt=0)))
        return id

    def trigger(self, random: Random) -> str:
        """Trigger some scheduled jobs."""
        page = self._requested(lambda: self._client.list_jobs(statuses=[JobStatus.SCHEDULED], limit=_LOOKED_AT))
        ids = [job.id for job in page if job.type != poison.name]
        ids = random.sample(ids, min(2, len(ids)))
        if not ids:
            raise Missed("no job is scheduled")
        self._outside("trigger", ids, lambda: self._client.trigger_jobs(ids))
        return f"{len(ids)} jobs"

    def _some(
        self, random: Random, statuses: list[ChainStatus], count: int, *, but: JobType[Any, Any] | None = None
    ) -> list[str]:
        types = [one for one in (effect, threaded, plain, flaky) if one is not but]
        listed = self._requested(lambda: self._client.list_chains(job_types=types, statuses=statuses, limit=_LOOKED_AT))
        # Directed faults need their own chains.
        ids = [chain.id for chain in listed if not chain.id.startswith("o")]
        if not ids:
            raise Missed("there is no such chain")
        return random.sample(ids, min(count, len(ids)))

    def _requested(self, call: Any) -> Any:
        reported = ""
        for _ in range(_ATTEMPTS):
            try:
                return call()
            except QueuertError as error:
                reported = str(error)
                time.sleep(_PAUSE)
        raise Missed(reported)

    def _outside(self, op: str, ids: list[str], act: Callable[[], object]) -> None:
        self._call(op, "outside", ids, "", lambda repeated: act())

    def _call(self, op: str, how: str, ids: list[str], type: str, act: Callable[[bool], object]) -> None:
        """Repeat a call until there is an answer, and record each call with its answer.

        Raises:
            Missed: there was no answer, or a refusal.
        """
        reported = ""
        for attempt in range(_ATTEMPTS):
            call = f"{next(self._calls)}"
            self._log.add(m="begin", op=op, call=call, how=how, ids=ids, key="", type=type)
            outcome = "ack"
            try:
                act(attempt > 0)
            except StateUnavailableError as error:
                outcome, reported = "unknown", str(error)
            except (QueuertError, sqlite3.Error) as error:
                outcome, reported = "error", f"{error.__class__.__name__}: {error}"
            results = [[id, id, False] for id in ids] if outcome == "ack" else []
            self._log.add(m="end", op=op, call=call, outcome=outcome, results=results, error=reported)
            if outcome == "ack":
                return
            if outcome == "error":
                break
            time.sleep(_PAUSE)
        raise Missed(f"{op}: {reported}")
