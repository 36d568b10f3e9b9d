"""The embedded Postgres of a process: one a directory, however often it is asked for."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from queuert.embedded.postgres import EmbeddedPostgres


@dataclass(frozen=True, slots=True)
class _Running:
    server: EmbeddedPostgres
    owner: int
    """The process that started it; a forked child uses its parent's."""


_running: dict[Path | None, _Running] = {}
# Re-entrant: an interrupted start is cleaned up by whoever comes next in the same thread.
_lock = threading.RLock()


def shared_postgres(directory: str | os.PathLike[str] | None = None) -> str:
    """Start the process's Postgres, unless it runs, and return its connection string.

    Args:
        directory: where its data are kept; None for a temporary one, which is as fast as the machine can be and goes
            when the process ends. Another process cannot use a directory at the same time.

    Raises:
        EmbeddedServerError: there is no Postgres to run, the directory is in use, or the server did not start.
    """
    path = None if directory is None else Path(directory).resolve()
    with _lock:
        known = _running.get(path)
        if known is None:
            known = _running[path] = _Running(EmbeddedPostgres(path, durable=path is not None), os.getpid())
        if known.owner == os.getpid():
            known.server.start()
        return known.server.dsn()
