"""A worker process that writes its events to its standard output: ``python -m tests.faults.child SETTINGS``."""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
import threading

from queuert import AsyncClient, InProcessWorker, PostgresState
from queuert.observability.events import Event
from queuert.policies import LeasePolicy
from queuert.worker import leases, prefetch
from tests.faults.application import JOB_TYPES, processors_for
from tests.faults.witness import CHILD
from tests.support.worker_process import RECORDS


class EventPipe:
    """Sends each event to the parent process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def emit(self, event: Event) -> None:
        """Write one line for each event."""
        line = base64.b64encode(pickle.dumps(event)) + b"\n"
        with self._lock:
            os.write(1, line)


def main() -> int:
    """Run a worker until it is asked to stop."""
    # The default of a minute would be long for a test.
    leases.FINISH_SECONDS = 0.0
    # What follows upon a handler that never waits does so in the same turn of the event loop, on a slow machine too.
    prefetch._MAX_INLINE_SECONDS = 3600.0
    settings = json.loads(sys.argv[1])
    url, answer_timeout = os.environ["QUEUERT_URL"], settings.pop("answer_timeout")
    state = PostgresState(url, answer_timeout=answer_timeout, application_name=CHILD)
    processors = processors_for(os.environ[RECORDS], lease=LeasePolicy(*settings.pop("lease")))
    client = AsyncClient(state, JOB_TYPES, observability=EventPipe())
    return InProcessWorker(client, processors, **settings).run()


if __name__ == "__main__":
    sys.exit(main())
