"""A program that forks while an adapter is open: run by a test, with a server's address."""

from __future__ import annotations

import contextlib
import os
import sys

from queuert.notify import NotifyAdapter, Topic
from queuert.notify.postgres import NotifyThrottle, PostgresNotify, PostgresSession
from queuert.notify.redis import RedisNotify
from queuert.notify.sqlite import SQLiteNotify
from tests.notify.support import Party


def in_child(notify: NotifyAdapter) -> None:
    assert not notify.healthy
    notify.publish(Topic.JOBS, ["nobody opened it here"])
    if isinstance(notify, PostgresNotify):
        # The parent's throttle would wait for its lock, which nobody releases here.
        assert notify.piggyback(Topic.JOBS, ["nobody opened it here"], notify._address) is None
    child = Party(notify)
    heard, _ = child.listen(Topic.JOBS)
    if isinstance(notify, PostgresNotify):
        _rested(notify)
        assert notify.piggyback(Topic.JOBS, ["work"], notify._address) == ("queuert_jobs", "work")
    child.publish(Topic.JOBS, "from the child")
    heard.wait_for("from the child")
    notify.close()
    assert not notify.healthy
    assert child.recorder.events == []
    sys.stdout.write("child: well\n")
    sys.stdout.flush()


def _rested(notify: PostgresNotify) -> NotifyThrottle:
    """Return the throttle of a connected adapter, which allows to send."""
    listener = notify._listener
    assert listener is not None
    session = listener.session
    assert isinstance(session, PostgresSession)
    session.throttle.next_at = 0.0
    return session.throttle


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
    with contextlib.ExitStack() as held:
        if isinstance(notify, PostgresNotify):
            # As if another thread were about to send at that moment.
            held.enter_context(_rested(notify)._lock)
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
