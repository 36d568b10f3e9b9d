"""The Spark work of one attempt in a Spark Connect session, identified by a tag that the server knows."""

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
    """Ties threads to a tag; counts and cancels the Spark work that they start.

    The server does not report to whom a streaming query belongs: those to be stopped are named by :meth:`track`.
    """

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark = spark
        self._tag = tag
        self._threads: set[int] = set()
        self._operations: dict[str | None, TaskCounts] = {}
        self._queries: list[StreamingQuery] = []

    def open(self) -> None:
        """Begin to listen for progress."""
        session: Any = self._spark
        session.registerProgressHandler(self._on_progress)

    def close(self) -> None:
        """Stop listening for progress."""
        session: Any = self._spark
        session.removeProgressHandler(self._on_progress)

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Tie the Spark work of this thread to the attempt; afterwards restore its settings."""
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

        Every tracked query is stopped, also one that is no longer active: its thread may still be finishing after the
        interruption of its job, and only a stop waits for that.
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
        """Stop this query with the attempt as well."""
        self._queries.append(query)

    def count_jobs(self) -> TaskCounts:
        """Return the tasks so far, as the server reported them."""
        return sum(list(self._operations.values()), TaskCounts())

    def _on_progress(
        self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool
    ) -> None:
        # Called for every operation of the session, in the thread that waits for the operation.
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
        # The server forgets a query an hour after its end. The name of the error condition depends on the version of
        # Spark.
        if f"query {query.id} is not found" not in str(error):
            raise
