"""A worker on Redis as a process, which tells its events: ``python -m tests.redis.child NAMESPACE SETTINGS``."""

from __future__ import annotations

import json
import os
import sys

from queuert import AsyncClient, InProcessWorker
from queuert.policies import LeasePolicy
from queuert.state.redis import RedisState
from tests.faults.child import EventPipe
from tests.redis.application import JOB_TYPES, processors_for
from tests.support.worker_process import RECORDS


def main() -> int:
    """Run a worker until it is told to stop."""
    state = RedisState(os.environ["QUEUERT_URL"], namespace=sys.argv[1], connect_timeout=2.0, answer_timeout=2.0)
    settings = json.loads(sys.argv[2])
    processors = processors_for(os.environ[RECORDS], lease=LeasePolicy(*settings.pop("lease")))
    client = AsyncClient(state, JOB_TYPES, observability=EventPipe())
    return InProcessWorker(client, processors, **settings).run()


if __name__ == "__main__":
    sys.exit(main())
