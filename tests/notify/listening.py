"""A program that listens until it is killed: run by a test, with a server's address."""

from __future__ import annotations

import os
import signal
import sys

from queuert.notify import Topic
from queuert.notify.postgres import PostgresNotify
from tests.notify.support import IMPATIENT, Party


def main() -> None:
    party = Party(PostgresNotify(os.environ["QUEUERT_URL"], timeouts=IMPATIENT))
    heard, _ = party.listen(Topic.JOBS)
    party.publish(Topic.JOBS, "ready")
    heard.wait_for("ready")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
