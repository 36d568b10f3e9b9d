"""The log of a worker process: readable lines, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from queuert.observability.escaping import escape_json

LEVELS = ("debug", "info", "warning", "error")

_PREFIX = "queuert_"


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time, level, logger, message, and the fields of Queuert's events by their names."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = {name: value for name, value in vars(record).items() if name.startswith(_PREFIX)}
        entry |= {name.removeprefix(_PREFIX): value for name, value in fields.items() if value is not None}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return escape_json(json.dumps(entry, ensure_ascii=False, default=str))


class LineFormatter(logging.Formatter):
    """A record as one line, and the traceback of a failed attempt below it, indented.

    Whatever has line breaks, a message or the words of an exception, goes on indented: no text can look like a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, or lines."""
        text = super().format(record)
        traceback = getattr(record, f"{_PREFIX}error_traceback", None)
        return "\n    ".join((f"{text}\n{traceback.rstrip()}" if traceback else text).splitlines())


def configure(level: str, *, as_json: bool) -> None:
    """Send the log to stderr, from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if as_json else LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
