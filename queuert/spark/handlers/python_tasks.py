"""The end of cancelled tasks in Python, where the driver can reach them.

Spark looks every two seconds, which nothing sets, whether a task whose code is in Python was cancelled, and ends the
process then. In a local session these processes are the driver's neighbours, so they need not wait for that look.
What is used of Spark for it has no interface in Python; where a version of Spark lacks it, Spark's own look remains.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PythonTasks:
    """The processes of the tasks of a tag that were cancelled."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        context: Any = spark.sparkContext
        self._jvm: Any = spark._jvm
        self._context = context._jsc.sc()
        self._tag = tag
        self._local = bool(self._context.isLocal())
        self._seen: set[int] = set()

    def end_cancelled(self) -> bool:
        """Kill the processes of the tasks that were cancelled already when this was last called; whether any are left.

        The pause between two calls is theirs to end by themselves.
        """
        cancelled = set(self._cancelled()) if self._local else set()
        for task in cancelled & self._seen:
            self._end(task)
        self._seen = cancelled
        return bool(cancelled)

    def _cancelled(self) -> Iterator[int]:
        """The tasks of the tag that run on, though nobody waits for them or would repeat them."""
        entries = self._context.taskScheduler().taskIdToTaskSetManager().entrySet().iterator()
        in_python = {pair._2() for pair in self._running()}
        while in_python and entries.hasNext():
            entry = entries.next()
            task, manager = entry.getKey(), entry.getValue()
            if task in in_python and manager.isZombie() and self._tag in _tags(manager.taskSet().properties()):
                yield task

    def _running(self) -> list[Any]:
        """Pairs of a process of Python and the task that it works for."""
        return list(self._jvm.org.apache.spark.api.python.PythonRunner.runningMonitorThreads().toArray())

    def _end(self, task: int) -> None:
        handles = list(self._handles())
        for worker in (pair._1() for pair in self._running() if pair._2() == task):
            for known in handles:
                handle = known.get(worker)
                if handle.isDefined():
                    with suppress(ProcessLookupError):  # it has ended meanwhile
                        os.kill(_pid(handle.get()), signal.SIGKILL)

    def _handles(self) -> Iterator[Any]:
        """Maps from Spark's end of a connection with a process to the process."""
        factories = self._field("org.apache.spark.SparkEnv", "pythonWorkers").get(self._context.env()).values()
        workers = self._field("org.apache.spark.api.python.PythonWorkerFactory", "daemonWorkers")
        each = factories.iterator()
        while each.hasNext():
            yield workers.get(each.next())

    def _field(self, of: str, name: str) -> Any:
        field = self._jvm.java.lang.Class.forName(of).getDeclaredField(name)
        field.setAccessible(True)
        return field


def _tags(properties: Any) -> list[str]:
    reported = properties.getProperty("spark.job.tags") if properties is not None else None
    return str(reported).split(",") if reported else []


def _pid(handle: Any) -> int:
    # Spark's own handle; before 4.3 Java's, of which nothing can be called from here but what tells its number.
    reported = str(handle.toString())
    return int(reported) if reported.isdecimal() else int(handle.pid())
