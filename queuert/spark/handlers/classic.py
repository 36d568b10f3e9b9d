"""The Spark work of one attempt in a classic session: found by a job tag and a job group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from queuert.spark.handlers.progress import TaskCounts
from queuert.spark.handlers.python_tasks import PythonTasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_GROUP = "spark.jobGroup.id"
_POOL = "spark.scheduler.pool"
_RESTORED = (_GROUP, "spark.job.description", "spark.job.interruptOnCancel", _POOL)


class ClassicWork:
    """Ties threads to a tag, and finds, counts and cancels what they started.

    Two handles are needed. The tag finds all that runs, streaming queries too, whatever else sets the job group; only
    cancelling the group also refuses the jobs that are submitted later.
    """

    def __init__(self, spark: SparkSession, tag: str, description: str, pool: str | None) -> None:
        self._spark = spark
        self._context = spark.sparkContext
        self._tag = tag
        self._description = description
        self._pool = pool
        self._streams = StreamsOfTag(tag)
        self._python = PythonTasks(spark, tag)
        self._finished: dict[int, TaskCounts] = {}

    def open(self) -> None:
        """Begin to hear of streaming queries."""
        self._streams.open(self._spark)

    def close(self) -> None:
        """Hear no more of them."""
        self._streams.close(self._spark)

    @contextmanager
    def bound(self) -> Iterator[None]:
        """What this thread does in Spark belongs to the attempt; afterwards it is as it was."""
        context: Any = self._context
        before = {name: context.getLocalProperty(name) for name in _RESTORED}
        session = _sessions(self._spark)
        active = session.getActiveSession()
        # Without it a data source in Python is not found in any thread but that which made the session.
        session.setActiveSession(self._spark._jsparkSession)
        context.addJobTag(self._tag)
        context.setJobGroup(self._tag, self._description)
        if self._pool is not None:
            context.setLocalProperty(_POOL, self._pool)
        try:
            yield
        finally:
            context.removeJobTag(self._tag)
            for name, value in before.items():
                context.setLocalProperty(name, value)
            if active.isDefined():
                session.setActiveSession(active.get())
            else:
                session.clearActiveSession()

    def cancel(self, reason: str) -> bool:
        """Stop the streaming queries and the jobs that run, and refuse those that would come later.

        Returns whether tasks run on that the next call can end.
        """
        context = self._java_context()
        context.cancelJobGroupAndFutureJobs(self._tag, reason)
        context.cancelJobsWithTag(self._tag, reason)
        for query in self._spark.streams.active:
            if str(query.runId) in self._streams.run_ids:
                query.stop()
        return self._python.end_cancelled()

    def track(self, query: StreamingQuery) -> None:
        """This query is to be stopped as well, whoever started it."""
        self._streams.run_ids.add(str(query.runId))

    def count_jobs(self) -> TaskCounts:
        """The tasks so far. Jobs that have ended are asked for once: Spark forgets them after a while."""
        jobs: set[int] = set(self._java_context().statusTracker().getJobIdsForTag(self._tag))
        running = TaskCounts()
        for job in jobs - self._finished.keys():
            counts = self._counts_of(job)
            if counts.open:
                running += counts
            else:
                self._finished[job] = counts
        return sum(self._finished.values(), running)

    def _java_context(self) -> Any:
        # What is needed of it has no counterpart in Python.
        context: Any = self._context
        return context._jsc.sc()

    def _counts_of(self, job: int) -> TaskCounts:
        tracker = self._context.statusTracker()
        info = tracker.getJobInfo(job)
        if info is None:
            return TaskCounts(open=1)
        ended = info.status in ("SUCCEEDED", "FAILED")
        counts = TaskCounts(open=0 if ended else 1)
        for stage in map(tracker.getStageInfo, info.stageIds):
            # A stage of an ended job in which nothing was done was skipped: its output was there already.
            if stage is not None and (stage.numCompletedTasks or not ended):
                counts += TaskCounts(stage.numCompletedTasks, stage.numTasks, 0 if ended else stage.numActiveTasks)
        return counts


class StreamsOfTag:
    """Hears which streaming queries were started under a tag: Spark tells it before ``start()`` returns.

    It is Java's interface, since that of pyspark fails on queries that have tags.
    """

    def __init__(self, tag: str) -> None:
        self.run_ids: set[str] = set()
        self._tag = tag
        self._listener: Any = None

    def open(self, spark: Any) -> None:
        """Be told by this session."""
        from pyspark import java_gateway

        gateway: Any = java_gateway
        gateway.ensure_callback_server_started(spark.sparkContext._gateway)
        wrapper = spark._jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
        self._listener = wrapper(self)
        spark._jsparkSession.streams().addListener(self._listener)

    def close(self, spark: Any) -> None:
        """Be told no more. Idempotent."""
        listener, self._listener = self._listener, None
        if listener is not None:
            spark._jsparkSession.streams().removeListener(listener)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """A query was started, in the thread that started it."""
        if event.jobTags().contains(self._tag):
            self.run_ids.add(event.runId().toString())

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Nothing to do: only the start tells whose a query is."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing to do."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Nothing to do."""

    class Java:
        """What py4j makes of it."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def _sessions(spark: Any) -> Any:
    """The object that holds the active session of each thread."""
    return spark._jvm.org.apache.spark.sql.classic.SparkSession
