"""A program that forks while stores are open: run by a test, with a path."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from queuert import Client
from queuert.errors import ClosedError, QueuertError, StateError
from queuert.state.sqlite import SQLiteState
from queuert.testing.conformance.builders import ask, complete, job
from tests.state.sqlite.application import JOB_TYPES, single


def raises(kind: type[QueuertError], *calls: Callable[[], object]) -> bool:
    """Whether all of them raise this."""
    for call in calls:
        try:
            call()
        except kind:
            continue
        return False
    return True


def forked(work: Callable[[], None]) -> int:
    """The status of a child that does this."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitpid(process, 0)[1]


def main() -> None:
    """Fork between two operations, and in the middle of a transaction; the parent goes on both times."""
    state, memory = SQLiteState(sys.argv[1], answer_timeout=10.0), SQLiteState()
    store, in_memory = state.sync_store(), memory.sync_store()
    store.open()
    in_memory.open()
    in_memory.start_jobs([job()])
    client = Client(state, JOB_TYPES)
    client.start_chain(single, 1)
    store.start_jobs([job()])
    [held] = store.claim(ask())

    def between() -> None:
        assert raises(ClosedError, store.count_jobs, lambda: store.start_jobs([job()]), in_memory.count_jobs)
        assert raises(StateError, memory.sync_store)
        store.open()
        store.start_jobs([job("of the child")])
        store.close()
        assert client.start_chain(single, 2).id
        client.close()
        fresh = state.sync_store()
        fresh.open()
        assert {one.type for one in fresh.count_jobs()} == {"work", "of the child", "single"}
        fresh.close()

    def inside() -> None:
        assert raises(StateError, state.sync_store().open, lambda: client.start_chain(single, 3))

    for _ in range(5):
        assert forked(between) == 0
    with store.transaction(held) as transaction:
        assert forked(inside) == 0
        transaction.finish(complete(held))
    assert forked(between) == 0
    store.start_jobs([job("of the parent")])
    assert {one.type for one in store.count_jobs()} == {"work", "of the child", "single", "of the parent"}
    assert sum(one.count for one in in_memory.count_jobs()) == 1
    assert client.start_chain(single, 4).id
    assert sum(one.count for one in client.count_jobs()) == 2 + 12 + 1 + 1
    store.close()
    client.close()
    sys.stdout.write("well\n")


if __name__ == "__main__":
    main()
