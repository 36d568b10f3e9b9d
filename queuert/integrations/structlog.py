"""structlog: the fields of the attempt in every event of a handler, and Queuert's own events as events of structlog.

It needs ``queuert[structlog]``. For a program that logs with structlog alone::

    structlog.configure(processors=[
        structlog.contextvars.merge_contextvars,
        add_attempt,
        structlog.processors.add_log_level,
        structlog.processors.JSONRenderer(),
    ])
    client = AsyncClient(state, job_types, observability=StructlogObservability())

For one that also formats the standard library's records, give ``add_attempt`` to ``ProcessorFormatter`` as well, in
``foreign_pre_chain``, behind an ``ExtraAdder``: it removes the fields that are empty outside of attempts. What a
middleware or a handler binds with ``structlog.contextvars`` ends with its attempt, whose last events have it too.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from dataclasses import fields
from typing import Any

from queuert.jobs import JobError
from queuert.observability import events
from queuert.observability.context import FIELDS, current
from queuert.optional_packages import needing_extras

with needing_extras():
    import structlog


def add_attempt(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor: add the fields of the attempt for which this is logged, by the names of ``current()``.

    What the event has already it keeps. Records of the standard library that come from a handler's process have the
    fields on themselves; outside of an attempt these fields are None, and are removed.
    """
    event.pop("queuert_context", None)
    for name in FIELDS:
        if event.get(name, "") is None:
            del event[name]
    found = current()
    if not found and (record := event.get("_record")) is not None:
        found = {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
    for name, value in found.items():
        event.setdefault(name, value)
    return event


class StructlogObservability:
    """Writes each event with structlog, at the event's own level: ``attempt_completed``, ``loop_failed`` and so on.

    The event's fields have the names that they have everywhere, such as ``queuert_job_id``. An error is four, as
    :class:`~queuert.observability.LogObservability` has them.

    Args:
        logger: where to write; by default ``structlog.get_logger("queuert")``.
    """

    def __init__(self, logger: Any = None) -> None:
        self._logger = structlog.get_logger("queuert") if logger is None else logger

    def emit(self, event: events.Event) -> None:
        """Write one event."""
        values: dict[str, Any] = {}
        for field in fields(event):
            value = getattr(event, field.name)
            name = "queuert_observed_event" if field.name == "event" else f"queuert_{field.name}"
            values[name] = str(value) if isinstance(value, JobError) else value
            if isinstance(value, JobError):
                values[f"{name}_kind"] = value.kind
                values[f"{name}_type"] = value.type
                values[f"{name}_traceback"] = value.traceback
        getattr(self._logger, event.own_level)(_snake_case(type(event).__name__), **values)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
