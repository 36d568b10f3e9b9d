"""Waits with a timeout: for what a stopping worker ends, and for the code in a ``with`` block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from queuert.worker import forks
from queuert.worker.threads import HandlerThreads


async def ended_within(seconds: float, tasks: Iterable[asyncio.Future[Any]]) -> bool:
    """Wait for tasks, and return whether all have ended. It does not cancel them, and does not raise their errors."""
    all_tasks = set(tasks)
    _, pending = await asyncio.wait(all_tasks, timeout=seconds) if all_tasks else ((), ())
    return not pending


def cancel_and_ignore(task: asyncio.Future[Any]) -> None:
    """Cancel a task without waiting for it, and ignore what it raises."""
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    task.cancel()


async def run_within(seconds: float, work: Coroutine[Any, Any, Any]) -> bool:
    """Run a coroutine with a timeout, and return whether it has ended. What it raises is raised."""
    task = asyncio.ensure_future(work)
    try:
        ended = await ended_within(seconds, [task])
    except BaseException:
        cancel_and_ignore(task)
        raise
    if ended:
        await task
    else:
        cancel_and_ignore(task)
    return ended


async def called_within(seconds: float, name: str, calls: Iterable[Callable[[], object]]) -> bool:
    """Call functions at the same time, with a timeout, and return whether all have returned. The first error is raised.

    Each has a thread of its own, since handlers that did not end may occupy all threads of the event loop.
    """
    threads = HandlerThreads(name)
    tasks = [asyncio.ensure_future(threads.run(call)) for call in calls]
    try:
        ended = await ended_within(seconds, tasks)
    finally:
        threads.close()
    for task in tasks:
        cancel_and_ignore(task)  # Of those that have ended, the errors beside the first one are ignored, too.
    for task in tasks:
        if task.done():
            await task
    return ended


class CountedThreads(ThreadPoolExecutor):
    """The default executor of an event loop, which also knows its calls under way."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="asyncio")
        self.under_way: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in a thread."""
        future = super().submit(forks.call, fn, *args, **kwargs)
        self.under_way.add(future)
        future.add_done_callback(self.under_way.discard)
        return future


async def cancel_leftovers(seconds: float, threads: CountedThreads) -> tuple[int, int]:
    """Cancel all other tasks of the event loop, wait for them and its threads, and return how many of each remain.

    Closing the event loop would wait for the tasks without a timeout, and the end of the process for the threads.
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
    """Call ``action`` unless the ``with`` block ends within so many seconds; never with None."""
    handle = None if seconds is None else asyncio.get_running_loop().call_later(seconds, action)
    try:
        yield
    finally:
        if handle is not None:
            handle.cancel()
