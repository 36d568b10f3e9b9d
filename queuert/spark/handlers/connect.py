"""The Spark work of one attempt in a Spark Connect session: found by a tag, which the server knows."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from queuert.spark.handlers.progress import TaskCounts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class ConnectWork:
    """Ties threads to a tag, and counts and cancels what they started.

    The server does not say whose a streaming query is: those to be stopped are named by :meth:`track`.
    """

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark = spark
        self._tag = tag
        self._threads: set[int] = set()
        self._operations: dict[str | None, TaskCounts] = {}
        self._queries: list[StreamingQuery] = []

    def open(self) -> None:
        """Begin to hear of progress."""
        session: Any = self._spark
        session.registerProgressHandler(self._on_progress)

    def close(self) -> None:
        """Hear no more of it."""
        session: Any = self._spark
        session.removeProgressHandler(self._on_progress)

    @contextmanager
    def bound(self) -> Iterator[None]:
        """What this thread does in Spark belongs to the attempt; afterwards it is as it was."""
        thread = threading.get_ident()
        self._spark.addTag(self._tag)
        self._threads.add(thread)
        try:
            yield
        finally:
            self._threads.discard(thread)
            self._spark.removeTag(self._tag)

    def cancel(self, reason: str) -> None:
        """Stop the operations and the tracked streaming queries that run.

        Every tracked query is stopped, also one that is no longer active: its thread may be finish still, for the
        interruption took a job from it, and only a stop waits for that.
        """
        self._spark.interruptTag(self._tag)
        failed: Exception | None = None
        for query in list(self._queries):
            try:
                _stop(query)
                self._queries.remove(query)
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed

    def track(self, query: StreamingQuery) -> None:
        """This query is to be stopped as well."""
        self._queries.append(query)

    def count_jobs(self) -> TaskCounts:
        """The tasks so far, as the server told them."""
        return sum(list(self._operations.values()), TaskCounts())

    def _on_progress(
        self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool
    ) -> None:
        # Called for every operation of the session, in the thread that waits for it.
        if threading.get_ident() in self._threads and stages:
            given = list(stages)
            self._operations[operation_id] = TaskCounts(
                sum(stage.num_completed_tasks for stage in given),
                sum(stage.num_tasks for stage in given),
                0 if done else inflight_tasks,
            )


def _stop(query: StreamingQuery) -> None:
    from pyspark.errors import PySparkException

    try:
        query.stop()
    except PySparkException as error:
        # The server forgets a query an hour after its end. How the condition is named depends on the version of Spark.
        if f"query {query.id} is not found" not in str(error):
            raise
