"""Waits with a bound: timers, and what a worker that stops waits for no longer than it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from queuert.worker.threads import HandlerThreads


async def ended_within(seconds: float, tasks: Iterable[asyncio.Future[Any]]) -> bool:
    """Wait for all of these; whether they have ended. They are not cancelled, and what they raise is not raised."""
    waited_for = set(tasks)
    _, pending = await asyncio.wait(waited_for, timeout=seconds) if waited_for else ((), ())
    return not pending


def left_behind(task: asyncio.Future[Any]) -> None:
    """Cancel a task for which nobody waits any more; what it raises is of no interest."""
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    task.cancel()


async def run_within(seconds: float, work: Coroutine[Any, Any, Any]) -> bool:
    """Run this for so long at most; whether it has ended. What it raises is raised."""
    task = asyncio.ensure_future(work)
    try:
        ended = await ended_within(seconds, [task])
    except BaseException:
        left_behind(task)
        raise
    if ended:
        await task
    else:
        left_behind(task)
    return ended


async def called_within(seconds: float, name: str, calls: Iterable[Callable[[], object]]) -> bool:
    """Call these at the same time, for so long at most; whether all have returned. What they raise is raised.

    Each has a thread of its own. Those of the event loop may all be taken, by handlers that did not end.
    """
    threads = HandlerThreads(name)
    tasks = [asyncio.ensure_future(threads.run(call)) for call in calls]
    try:
        ended = await ended_within(seconds, tasks)
    finally:
        threads.close()
    for task in tasks:
        if task.done():
            await task
        else:
            left_behind(task)
    return ended


class CountedThreads(ThreadPoolExecutor):
    """Threads for an event loop, as it has by itself, which know what they are at."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="asyncio")
        self.under_way: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in a thread."""
        future = super().submit(fn, *args, **kwargs)
        self.under_way.add(future)
        future.add_done_callback(self.under_way.discard)
        return future


async def leftovers(seconds: float, threads: CountedThreads) -> tuple[int, int]:
    """Cancel all other tasks of the event loop, and wait for these and its threads; how many of each do not end.

    Closing the event loop would wait for them without a limit, and so would the end of the process for the threads.
    """
    current = asyncio.current_task()
    tasks = {task for task in asyncio.all_tasks() if task is not current}
    for task in tasks:
        task.cancel()
    deadline = asyncio.get_running_loop().time() + seconds
    await ended_within(seconds, tasks)
    calls = [asyncio.wrap_future(future) for future in list(threads.under_way)]
    await ended_within(max(0.0, deadline - asyncio.get_running_loop().time()), calls)
    return sum(not task.done() for task in tasks), len(threads.under_way)


@contextmanager
def timer(seconds: float | None, action: Callable[[], None]) -> Iterator[None]:
    """Do something unless the ``with`` block ends within so many seconds; None is for ever."""
    handle = None if seconds is None else asyncio.get_running_loop().call_later(seconds, action)
    try:
        yield
    finally:
        if handle is not None:
            handle.cancel()
