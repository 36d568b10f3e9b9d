"""Leaks that are planted in the workers and clients of a run, by a workload that does nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

from queuert import Processors
from queuert.new_chain import NewChain
from queuert.observability.events import AttemptCompleted, Event, ListenerRestored
from queuert.testing.chaos import Workload
from queuert.testing.chaos.worker import EventRecords
from tests.chaos.workload import workload as honest

_BYTES = 1 << 20

_kept: list[Any] = []


def _leaking(leak: Callable[[], object], *kinds: type[Event]) -> Workload:
    """A workload that keeps something more for each event of these kinds, in the processes that make its handlers."""

    def processors() -> Processors:
        emit = EventRecords.emit

        def emit_and_keep(self: EventRecords, event: Event) -> None:
            emit(self, event)
            if isinstance(event, kinds):
                _kept.append(leak())

        EventRecords.emit = emit_and_keep  # type: ignore[method-assign]
        return honest.processors()

    return Workload(processors, _start)


def _start(random: Random, number: int) -> NewChain[Any]:
    return honest.start(random, number)


files = _leaking(lambda: os.dup(0), ListenerRestored)
"""An open file for each time that a connection was lost."""
memory = _leaking(lambda: b"x" * _BYTES, ListenerRestored)
"""A megabyte for each."""
files_of_jobs = _leaking(lambda: os.dup(0), AttemptCompleted)
"""An open file for each job that ended."""
