"""A worker of a run. It is the public worker, with handlers that leave traces, and with its events in a file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from queuert.client import AsyncClient
from queuert.observability import events
from queuert.state.adapter import StateAdapter
from queuert.testing.chaos import stacks
from queuert.testing.chaos.handlers import Handlers
from queuert.testing.chaos.records import Records
from queuert.testing.chaos.workload import LEASE, LOOPBACK, job_types_of, load
from queuert.urls import state_from_url
from queuert.webhooks import TargetPolicy, endpoints
from queuert.webhooks.endpoints import DELIVERY_TYPE
from queuert.worker import InProcessWorker, webhooks
from queuert.worker.processors import Processors
from queuert.worker.run import run
from queuert.worker.webhooks import WebhookSettings, webhook_processors

_KEPT = (
    events.WorkerStarted, events.WorkerStopping, events.WorkerStopped, events.AttemptStarted, events.AttemptCompleted,
    events.AttemptFailed, events.AttemptRetried, events.AttemptAborted, events.AttemptInterrupted, events.FinishFailed,
    events.FinishRejected, events.JobReaped, events.JobsReleased, events.StrandedJobsReleased, events.ListenerLost,
    events.ListenerRestored, events.LoopFailed, events.LoopRecovered, events.StoreCallFailed,
)  # fmt: skip


_TIMEOUT = 1.0
"""Seconds that a request of a webhook may take."""


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


def delivering(client: AsyncClient, port: int) -> Processors:
    """Return the processors of a worker that delivers to the receiver, and nowhere else.

    Leases and delays are short, as those of the other jobs are: with the delays of a user a run would take days.
    """
    schedule = (0.0, *[0.2] * 500)
    _shorten(endpoints, SCHEDULE=schedule, PROBE_EVERY=0.5, _BUSY_DELAY=0.2, _LEAST_JITTER=0.2)
    _shorten(webhooks, SCHEDULE=schedule, PROBE_EVERY=0.5, _RENEW_EVERY=0.5, _TAKE_OVER_AFTER=2.0, _IDLE=0.5)
    targets = TargetPolicy(
        allow_http=True,
        allow_ports=[port],
        allow_networks=[f"{LOOPBACK}/32"],
        connect_timeout=_TIMEOUT,
        timeout=_TIMEOUT,
    )
    processors = webhook_processors(client, WebhookSettings(targets, interval=0.2))
    delivery = processors[DELIVERY_TYPE]
    # An attempt that could not write its record, as the store was away, is repeated by the policy, not by the schedule.
    retry = replace(delivery.retry, initial_delay=0.2, max_delay=1.0)
    processors._by_name[DELIVERY_TYPE] = replace(delivery, lease=LEASE, retry=retry)
    return processors


def _shorten(module: ModuleType, **values: Any) -> None:
    """Change constants of a module in this process."""
    assert vars(module).keys() >= values.keys(), "constants of webhooks have other names: change them here"
    vars(module).update(values)


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
    # The health of a receiver has times of its worker's clock.
    if settings.get("limits") and settings.get("receiver") and not shift:
        groups.append(delivering(client, settings["receiver"]))
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
