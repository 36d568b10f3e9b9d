"""A program that forks while an adapter is open: run by a test, with a server's address."""

from __future__ import annotations

import os
import sys

from queuert.notify import NotifyAdapter, Topic
from queuert.notify.postgres import PostgresNotify
from queuert.notify.redis import RedisNotify
from queuert.notify.sqlite import SQLiteNotify
from tests.notify.support import Party


def in_child(notify: NotifyAdapter) -> None:
    assert not notify.healthy
    notify.publish(Topic.JOBS, ["nobody opened it here"])
    child = Party(notify)
    heard, _ = child.listen(Topic.JOBS)
    child.publish(Topic.JOBS, "from the child")
    heard.wait_for("from the child")
    notify.close()
    assert not notify.healthy
    assert child.recorder.events == []
    sys.stdout.write("child: well\n")
    sys.stdout.flush()


def adapter_of(address: str) -> NotifyAdapter:
    if address.endswith(".db"):
        return SQLiteNotify(address)
    return PostgresNotify(address) if address.startswith("postgres") else RedisNotify(address, namespace="forking")


def main() -> None:
    # Others can see arguments, and an address may hold a password.
    address = os.environ["QUEUERT_URL"]
    notify = adapter_of(address)
    parent = Party(notify)
    heard, _ = parent.listen(Topic.JOBS)
    process = os.fork()
    if process == 0:
        status = 1
        try:
            in_child(notify)
            status = 0
        finally:
            os._exit(status)
    heard.wait_for("from the child")
    assert os.waitpid(process, 0)[1] == 0
    parent.publish(Topic.JOBS, "from the parent")
    heard.wait_for("from the parent")
    assert "nobody opened it here" not in heard.keys
    assert heard.wildcards == 0
    assert parent.recorder.events == []
    notify.close()
    sys.stdout.write("parent: well\n")


if __name__ == "__main__":
    main()
