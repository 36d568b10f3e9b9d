"""The Spark work of one attempt in a classic session, identified by a job tag and a job group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from queuert.spark.handlers.progress import TaskCounts
from queuert.spark.jvm import Java, java_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_GROUP = "spark.jobGroup.id"
_POOL = "spark.scheduler.pool"
_RESTORED = (_GROUP, "spark.job.description", "spark.job.interruptOnCancel", _POOL)


class ClassicWork:
    """Ties threads to a tag; tracks, counts and cancels the Spark work that they start.

    Both identifiers are needed. The tag finds everything that runs, streaming queries too, even if other code sets the
    job group. Only cancelling the group also refuses jobs that are submitted later.

    Some of this has no public interface in pyspark. If a version lacks it, jobs are cancelled and counted with public
    functions: jobs that are submitted later are not refused, and only tracked streaming queries are stopped.
    """

    def __init__(self, spark: SparkSession, tag: str, description: str, pool: str | None) -> None:
        self._spark = spark
        self._java = java_of(spark)
        self._context = spark.sparkContext
        self._tag = tag
        self._description = description
        self._pool = pool
        self._streams = StreamsOfTag(tag)
        self._finished: dict[int, TaskCounts] = {}

    def open(self) -> None:
        """Begin to listen for streaming queries."""
        if self._java is not None:
            self._streams.open(self._java)

    def close(self) -> None:
        """Stop listening for streaming queries."""
        if self._java is not None:
            self._streams.close(self._java)

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Tie the Spark work of this thread to the attempt; afterwards restore its settings."""
        context: Any = self._context
        before = {name: context.getLocalProperty(name) for name in _RESTORED}
        context.addJobTag(self._tag)
        context.setJobGroup(self._tag, self._description)
        if self._pool is not None:
            context.setLocalProperty(_POOL, self._pool)
        try:
            with _active_session(self._java):
                yield
        finally:
            context.removeJobTag(self._tag)
            for name, value in before.items():
                context.setLocalProperty(name, value)

    def cancel(self, reason: str) -> None:
        """Stop the streaming queries and the jobs that run, and refuse later ones.

        Tasks that run Python code continue until Spark notices, which it checks every two seconds.
        """
        if self._java is not None:
            context = self._java.context.sc()
            context.cancelJobGroupAndFutureJobs(self._tag, reason)
            context.cancelJobsWithTag(self._tag, reason)
        else:
            self._context.cancelJobGroup(self._tag)
            self._context.cancelJobsWithTag(self._tag)
        for query in self._spark.streams.active:
            if str(query.runId) in self._streams.run_ids:
                query.stop()

    def track(self, query: StreamingQuery) -> None:
        """Stop this query with the attempt as well, whichever thread started it."""
        self._streams.run_ids.add(str(query.runId))

    def count_jobs(self) -> TaskCounts:
        """Count the tasks so far. Ended jobs are read only once, since Spark forgets them after a while."""
        if self._java is not None:
            jobs: set[int] = set(self._java.context.sc().statusTracker().getJobIdsForTag(self._tag))
        else:
            jobs = set(self._context.statusTracker().getJobIdsForGroup(self._tag))
        running = TaskCounts()
        for job in jobs - self._finished.keys():
            counts = self._counts_of(job)
            if counts.open:
                running += counts
            else:
                self._finished[job] = counts
        return sum(self._finished.values(), running)

    def _counts_of(self, job: int) -> TaskCounts:
        tracker = self._context.statusTracker()
        info = tracker.getJobInfo(job)
        if info is None:
            return TaskCounts(open=1)
        ended = info.status in ("SUCCEEDED", "FAILED")
        counts = TaskCounts(open=0 if ended else 1)
        for stage in map(tracker.getStageInfo, info.stageIds):
            # A stage of an ended job without completed tasks was skipped, because its output existed already.
            if stage is not None and (stage.numCompletedTasks or not ended):
                counts += TaskCounts(stage.numCompletedTasks, stage.numTasks, 0 if ended else stage.numActiveTasks)
        return counts


class StreamsOfTag:
    """Records the streaming queries that were started under a tag. Spark calls it before ``start()`` returns.

    It implements the Java interface, since pyspark's listener fails on queries that have tags.
    """

    def __init__(self, tag: str) -> None:
        self.run_ids: set[str] = set()
        self._tag = tag
        self._listener: Any = None

    def open(self, java: Java) -> None:
        """Register with this session."""
        from pyspark import java_gateway

        gateway: Any = java_gateway
        gateway.ensure_callback_server_started(java.gateway)
        wrapper = java.classes.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
        self._listener = wrapper(self)
        java.session.streams().addListener(self._listener)

    def close(self, java: Java) -> None:
        """Unregister. Idempotent."""
        listener, self._listener = self._listener, None
        if listener is not None:
            java.session.streams().removeListener(listener)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Record a query, in the thread that started it."""
        if event.jobTags().contains(self._tag):
            self.run_ids.add(event.runId().toString())

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Do nothing: only the start says to which attempt a query belongs."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""

    class Java:
        """The Java interface that py4j implements with this class."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


@contextmanager
def _active_session(java: Java | None) -> Iterator[None]:
    """Make the session the active one of this thread: Spark finds Python data sources only there."""
    if java is None:
        yield
        return
    sessions = java.classes.org.apache.spark.sql.classic.SparkSession
    active = sessions.getActiveSession()
    sessions.setActiveSession(java.session)
    try:
        yield
    finally:
        if active.isDefined():
            sessions.setActiveSession(active.get())
        else:
            sessions.clearActiveSession()
