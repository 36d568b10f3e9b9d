"""The log of a worker process: readable lines, or one JSON object a line; or the application's own."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

from queuert.cli.exit_codes import UsageError
from queuert.observability.context import LINE, ContextFilter
from queuert.observability.escaping import escape_json

LEVELS = ("debug", "info", "warning", "error")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "queuert_context"}
_MULTILINE = ("queuert_error_traceback", "queuert_stack")


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time, level, logger and message, and all that the record has besides.

    The fields of Queuert's events and attempts (``queuert_job_id`` and so on) and what was given as ``extra=`` have the
    names that they have on the record. An extra that is called like one of the four is ``extra_time`` and so on.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = self.formatStack(record.stack_info)
        own = tuple(entry)
        for name, value in vars(record).items():
            if name not in _STANDARD and value is not None:
                entry[f"extra_{name}" if name in own else name] = value
        return escape_json(_as_json(entry))


def _as_json(entry: dict[str, object]) -> str:
    try:
        return json.dumps(entry, ensure_ascii=False, default=repr, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        # Numbers that JSON has not, keys that are no names, or an object that contains itself.
        shown = {name: value if isinstance(value, str | int) else repr(value) for name, value in entry.items()}
        return json.dumps(shown, ensure_ascii=False)


class LineFormatter(logging.Formatter):
    """A record as one line with the fields of its attempt, and the traceback of a failed attempt below it, indented.

    Whatever has line breaks, a message or the words of an exception, goes on indented: no text can look like a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, or lines."""
        text = super().format(record)
        for name in _MULTILINE:
            if below := getattr(record, name, None):
                text = f"{text}\n{below.rstrip()}"
        return "\n    ".join(text.splitlines())


def configure(level: str | None, *, as_json: bool) -> None:
    """Send the log to stderr, unless the application has handlers of its own, which stay as they are.

    The fields of the attempt are added to the records of all handlers.

    Raises:
        UsageError: the application has handlers on the root logger, and JSON was asked for.
    """
    root = logging.getLogger()
    if root.handlers:
        if as_json:
            raise UsageError(
                "--log-json must not be given where the application configures logging itself: remove the option, or "
                "give its handlers queuert.cli.logs.JsonFormatter"
            )
        if level is not None:
            root.setLevel(level.upper())
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter() if as_json else LineFormatter(LINE))
        root.addHandler(handler)
        root.setLevel((level or "info").upper())
    for one in _handlers():
        if not any(isinstance(each, ContextFilter) for each in one.filters):
            one.addFilter(ContextFilter())


def _handlers() -> Iterator[logging.Handler]:
    """All handlers of all loggers: those that do not propagate are the application's too."""
    yield from logging.getLogger().handlers
    for logger in tuple(logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            yield from logger.handlers
