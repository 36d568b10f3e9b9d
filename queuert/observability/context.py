"""Which attempt the current code runs for, so that every log record of a handler can say it.

A worker binds the fields around each attempt; they follow into coroutines, tasks and the threads of plain handlers.
With the standard library's ``dictConfig``, put the filter on a *handler*, where the records of all loggers pass::

    logging.config.dictConfig({
        "version": 1,
        "filters": {"attempt": {"()": "queuert.observability.context.ContextFilter"}},
        "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s%(queuert_context)s"}},
        "handlers": {"out": {"class": "logging.StreamHandler", "filters": ["attempt"], "formatter": "line"}},
        "root": {"handlers": ["out"], "level": "INFO"},
    })

The fields have one set of names, in :func:`current`, on records, in text and in JSON; none is a name of yours.

With structlog, :mod:`queuert.integrations.structlog` has a processor. With loguru, a patcher::

    loguru.logger.configure(patcher=lambda record: record["extra"].update(current()))
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Literal, Protocol

from queuert.observability.escaping import escape

FIELDS = ("queuert_worker", "queuert_job_id", "queuert_chain_id", "queuert_type", "queuert_attempt")
"""The names of the fields, in the order in which they are written."""

LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s%(queuert_context)s"
"""The format of records as lines, for handlers with a ``ContextFilter``."""


class Running(Protocol):
    """The attempt that runs: what is logged in it and waited for in it belongs to it."""

    def fields(self) -> Mapping[str, object]:
        """The fields, by the names in ``FIELDS``."""
        ...

    def waits_for(self, job_types: Collection[str]) -> None:
        """Take note that its handler waits for chains that stand at jobs of these types, and keeps its slot."""
        ...


# One variable rather than five: the fields belong together, and are changed and read as one.
current_attempt: ContextVar[Running | None] = ContextVar("queuert_attempt", default=None)
"""The attempt that the current code runs for, if it does: a worker sets it in the context of each attempt."""


class _Job(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def chain_id(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def attempt(self) -> int: ...


def fields_of(worker: str, job: _Job) -> dict[str, object]:
    """Return the fields of an attempt of this worker, by the names in ``FIELDS``."""
    return dict(zip(FIELDS, (worker, job.id, job.chain_id, job.type, job.attempt), strict=True))


def current() -> Mapping[str, object]:
    """The fields of the attempt that the current code runs for, by the names in ``FIELDS``; empty outside of one."""
    attempt = current_attempt.get()
    return MappingProxyType({} if attempt is None else dict(attempt.fields()))


@contextmanager
def bind(attempt: Running) -> Iterator[None]:
    """Set the attempt for the length of a ``with`` block. Enter and leave it in the same task or thread."""
    token = current_attempt.set(attempt)
    try:
        yield
    finally:
        current_attempt.reset(token)


class ContextFilter(logging.Filter):
    """Adds the attempt's fields to each record that passes, and lets all of them pass.

    A record gets ``queuert_worker``, ``queuert_job_id``, ``queuert_chain_id``, ``queuert_type`` and
    ``queuert_attempt`` (None outside of an attempt), and ``queuert_context``: all of them as one text with a space
    before it, or nothing, as for events, whose sentences say what they are about. What a record has already it keeps.
    Control characters are escaped.

    Args:
        empty: whether records outside of attempts get the five fields as well, as None. Set it to False for a formatter
            that writes whatever a record has, such as one of JSON; a format that names the fields needs them.
    """

    def __init__(self, *, empty: bool = True) -> None:
        super().__init__()
        self._empty = empty

    def filter(self, record: logging.LogRecord) -> Literal[True]:
        """Add the fields."""
        fields = {name: _shown(value) for name, value in current().items()}
        attributes = vars(record)
        for name in FIELDS if fields or self._empty else ():
            attributes.setdefault(name, fields.get(name))
        if "queuert_context" not in attributes:
            attributes["queuert_context"] = "" if "queuert_event" in attributes else _as_text(attributes)
        return True


def _shown(value: object) -> object:
    return escape(value) if isinstance(value, str) else value


def _as_text(attributes: Mapping[str, object]) -> str:
    if attributes.get("queuert_job_id") is None:
        return ""
    return f" [{' '.join(f'{name}={attributes.get(name)}' for name in FIELDS)}]"
