"""A worker as a process, which says when it claims: ``python -m tests.state.sqlite.child PATH NAME``."""

from __future__ import annotations

import sys

from queuert import AsyncClient, InProcessWorker
from queuert.observability.events import Event, WorkerStarted
from queuert.state.sqlite import SQLiteState
from tests.state.sqlite.application import JOB_TYPES, processors


def say(line: str) -> None:
    """Tell whoever started this process."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Teller:
    """Says when the worker claims."""

    def emit(self, event: Event) -> None:
        """Of all events, this one."""
        if isinstance(event, WorkerStarted):
            say("started")


def main() -> int:
    """Run a worker until it is told to stop."""
    client = AsyncClient(SQLiteState(sys.argv[1], synchronous="normal"), JOB_TYPES, observability=Teller())
    return InProcessWorker(client, processors(say), name=sys.argv[2], concurrency=4, shutdown_timeout=1.0).run()


if __name__ == "__main__":
    sys.exit(main())
