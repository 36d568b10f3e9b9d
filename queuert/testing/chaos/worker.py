"""A worker of a run. It is the public worker, with handlers that leave traces, and with its events in a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from queuert.client import AsyncClient
from queuert.observability import events
from queuert.state.adapter import StateAdapter
from queuert.testing.chaos import stacks
from queuert.testing.chaos.handlers import Handlers
from queuert.testing.chaos.records import Records
from queuert.testing.chaos.workload import job_types_of, load
from queuert.urls import state_from_url
from queuert.worker import InProcessWorker
from queuert.worker.run import run

_KEPT = (
    events.WorkerStarted, events.WorkerStopping, events.WorkerStopped, events.AttemptStarted, events.AttemptCompleted,
    events.AttemptFailed, events.AttemptRetried, events.AttemptAborted, events.AttemptInterrupted, events.FinishFailed,
    events.FinishRejected, events.JobReaped, events.JobsReleased, events.StrandedJobsReleased, events.ListenerLost,
    events.ListenerRestored, events.LoopFailed, events.LoopRecovered, events.StoreCallFailed,
)  # fmt: skip


class EventRecords:
    """Writes the events that the checks need to a file."""

    def __init__(self, records: Records, slot: int) -> None:
        self._records = records
        self._slot = slot

    def wants(self, kind: type[events.Event]) -> bool:
        """Whether the event is written."""
        return issubclass(kind, _KEPT)

    def emit(self, event: events.Event) -> None:
        """Write one line for each event."""
        if isinstance(event, _KEPT):
            names = ("worker", "job_id", "attempt", "holder", "reason", "loop", "operation", "error", "failed")
            found = {name: str(value) for name in names if (value := getattr(event, name, None)) is not None}
            self._records.add(name=type(event).__name__, pid=os.getpid(), slot=self._slot, **found)


def state_for(settings: dict[str, Any]) -> StateAdapter:
    """Open the store of a child. On Postgres, notifications use an address of their own, so that they can be
    disconnected alone."""
    url: str = settings["url"]
    if not url.startswith("postgresql"):
        return state_from_url(url, **({} if url.startswith("sqlite") else {"answer_timeout": "3"}))
    from queuert.state.postgres import PostgresState

    return PostgresState(
        url,
        listen_dsn=settings.get("listen_url"),
        connect_timeout=3.0,
        answer_timeout=3.0,
        application_name=application_of(os.getpid()),
    )


def application_of(pid: int) -> str:
    """The application name of a process's sessions, by which the server shows them through any proxy."""
    return f"queuert {pid}"


def main(settings: dict[str, Any]) -> int:
    """Run a worker until it is asked to stop; return its exit code."""
    directory = Path(settings["directory"])
    shift = settings.get("shift", 0.0)
    traces = Records(directory / "traces.jsonl", shift=shift)
    handlers = Handlers(settings["store"], traces, directory / "gates", settings["slot"])
    workload = None if settings["workload"] is None else load(settings["workload"])
    own = handlers.steady_processors() if settings.get("steady") else handlers.processors(limits=settings["limits"])
    groups = [own, *([] if workload is None else [workload.processors()])]
    records = EventRecords(Records(directory / "events.jsonl", shift=shift), settings["slot"])
    client = AsyncClient(state_for(settings), job_types_of(workload), observability=records)
    worker = InProcessWorker(
        client,
        groups,
        name=f"chaos-{os.getpid()}",
        concurrency=8,
        max_connections=settings["connections"],
        shutdown_timeout=settings["shutdown_timeout"],
        poll_interval=0.5,
    )
    return run(worker, loop_factory=stacks.new_event_loop)
