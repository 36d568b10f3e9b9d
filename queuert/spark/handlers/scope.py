"""Ties a handler to its Spark work: if the attempt must stop, the Spark work is cancelled; its progress is reported."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from queuert.errors import ConfigurationError, DefinitionError, LeaseLostError
from queuert.jobs import AbortReason
from queuert.observability.adapter import ObservabilityAdapter, Observers, observers
from queuert.observability.events import Identity, SparkProgressed, SparkUnreachable
from queuert.spark.errors import FenceLostError, found_in
from queuert.spark.handlers.progress import SparkProgress, TaskCounts
from queuert.spark.options import Fence
from queuert.worker import Attempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.query import StreamingQuery

    from queuert.spark.handlers.classic import ClassicWork
    from queuert.spark.handlers.connect import ConnectWork

T = TypeVar("T")

OnProgress = Callable[[SparkProgress], None]
"""Called with the progress, in a thread of the scope, so it must return quickly."""

_AGAIN = 0.2
"""Seconds between two cancellations while an aborted handler is still running."""

_LAST_LOOKS = 20
_BETWEEN_LAST_LOOKS = 0.05
"""Seconds between the last reads of the progress."""

_TIMEOUT = 10.0
"""Seconds that leaving a scope waits for a call to Spark in its thread."""


@contextmanager
def spark_scope(
    attempt: Attempt[Any, Any],
    spark: SparkSession,
    *,
    pool: str | None = None,
    on_progress: OnProgress | None = None,
    every: float = 1.0,
    observability: ObservabilityAdapter | Iterable[ObservabilityAdapter] | None = None,
) -> Iterator[SparkScope]:
    """Tie the Spark work of a ``with`` block to an attempt.

    If the attempt must stop (its lease is lost, its chain is cancelled, its time is over, its worker stops), the Spark
    jobs and streaming queries that were started inside are cancelled, and later ones are refused. The errors of Spark
    then become :class:`~queuert.errors.LeaseLostError`, as in other places: do not catch it. All that still runs when
    the block ends is cancelled as well.

    Use it in a plain function, which the worker runs in a thread; in a coroutine use :func:`run_in_scope`. Any number
    of handlers can share one session; set its ``spark.scheduler.mode`` to ``FAIR``, so that short jobs do not wait for
    long ones.

    Args:
        attempt: the attempt of the handler.
        spark: a session, classic or Spark Connect.
        pool: the scheduler pool of its jobs; by default that of the thread. Not with Spark Connect.
        on_progress: called when the progress has changed.
        every: seconds between two reads of the progress.
        observability: the observers of the progress events, :class:`~queuert.observability.events.SparkProgressed`;
            pass ``client.observers``. By default the standard log.

    Raises:
        LeaseLostError: the attempt must stop.
        DefinitionError: it was entered in an event loop, which it would block.
        ConfigurationError: ``every`` is not above 0, or ``pool`` is set with Spark Connect.

    Example::

        @processors.handles(summarise)
        def run(attempt: Attempt[Day, int]) -> Outcome[int]:
            with spark_scope(attempt, spark):
                return spark.read.parquet(attempt.input.path).distinct().count()
    """
    _refuse_event_loop()
    attempt.abort.raise_if_set()
    scope = SparkScope(attempt, spark, _work(attempt, spark, pool), on_progress, every, observers(observability))
    with scope._watched(), _mapped(attempt), scope.bound():
        yield scope


async def run_in_scope(
    attempt: Attempt[Any, Any], spark: SparkSession, work: Callable[[SparkScope], T], **options: Any
) -> T:
    """For coroutines: run a function in a thread, inside a :func:`spark_scope`, and return what it returns.

    If the coroutine is cancelled, its Spark work is cancelled too, and this waits until that has ended. Options and
    errors are those of :func:`spark_scope`.

    Example::

        @processors.handles(summarise)
        async def run(attempt: Attempt[Day, int]) -> Outcome[int]:
            return await run_in_scope(attempt, spark, lambda scope: spark.read.parquet(attempt.input.path).count())
    """
    entered: list[SparkScope] = []
    cancelled = threading.Event()

    def inside() -> T:
        with spark_scope(attempt, spark, **options) as scope:
            entered.append(scope)
            if cancelled.is_set():
                raise LeaseLostError(attempt.job_id, "the coroutine was cancelled")
            return work(scope)

    running = asyncio.create_task(asyncio.to_thread(inside))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        cancelled.set()
        for scope in entered:
            scope.cancel("the coroutine was cancelled")
        await asyncio.wait([running])
        # Reading the exception marks it as retrieved: the coroutine was cancelled and does not need it.
        running.exception()
        raise


class SparkScope:
    """The Spark work of one attempt, inside a :func:`spark_scope`.

    Attributes:
        tag: the job tag and the job group of the Spark work, as Spark's web pages show them.
        fence: what the data source ``queuert`` checks in the transaction that commits a write; see :meth:`fenced`.
        progress: the latest progress.
    """

    def __init__(
        self,
        attempt: Attempt[Any, Any],
        spark: SparkSession,
        work: ClassicWork | ConnectWork,
        on_progress: OnProgress | None,
        every: float,
        heard_by: Observers,
    ) -> None:
        if not every > 0:
            raise ConfigurationError(f"every must be above 0 seconds, got {every}")
        self.tag = tag_of(attempt)
        self.fence = fence_of(attempt)
        self.progress = SparkProgress()
        self._attempt = attempt
        self._work = work
        self._on_progress = on_progress
        self._every = every
        self._observers = heard_by
        self._cancelled: str | None = None
        self._left = False
        self._wake = threading.Event()
        self._failing: set[str] = set()

    # --- for handlers -------------------------------------------------------------------------------------------------

    def bound(self) -> Any:
        """Return a context manager for threads that the handler starts: their Spark work then belongs to the scope too.

        Example::

            def load(name: str) -> int:
                with scope.bound():
                    return spark.table(name).count()

            with ThreadPoolExecutor() as threads:
                counts = list(threads.map(load, names))
        """
        return self._work.bound()

    def fenced(self, writer: DataFrameWriter) -> DataFrameWriter:
        """Return the writer with a fence, so that the write commits only while this attempt has its lease.

        Spark cannot cancel a commit that has begun, so the lease is checked inside it. Without the fence, a worker that
        has lost its lease could still write rows that the next attempt writes again.
        """
        return writer.option("fence", self.fence)

    def track(self, query: StreamingQuery) -> None:
        """Stop this streaming query with the scope. Only Spark Connect needs this call."""
        self._work.track(query)

    def check(self) -> None:
        """Raise LeaseLostError if the attempt must stop: call it in long steps between two uses of Spark."""
        self._attempt.abort.raise_if_set()

    def cancel(self, reason: str) -> None:
        """Cancel what runs, and refuse later work. From any thread."""
        self._cancelled = self._cancelled or reason
        self._wake.set()

    # --- the thread of the scope --------------------------------------------------------------------------------------

    @contextmanager
    def _watched(self) -> Iterator[None]:
        self._work.open()
        thread = threading.Thread(target=self._watch, name=f"queuert-spark-{self._attempt.job_id}", daemon=True)
        thread.start()
        self._attempt.abort.on_abort(self._on_abort)
        try:
            yield
        except BaseException:
            self.cancel("the handler raised")
            raise
        finally:
            self._left = True
            self._wake.set()
            thread.join(_TIMEOUT)
            self._work.close()

    def _on_abort(self) -> None:
        # This runs in the event loop, or in the thread that renews leases: neither may wait for Spark.
        self.cancel(str(self._attempt.abort.reason))

    def _watch(self) -> None:
        while not self._left:
            self._wake.wait(_AGAIN if self._cancelled else self._every)
            self._wake.clear()
            if self._cancelled:
                self._try("cancellation", self._cancel)
            elif not self._left:
                self._try("progress", self._maybe_flush)
        if not self._cancelled:
            self._try("progress", self._look_last)
        # The handler may have ended as soon as its job was cancelled, while a thread that it started continues.
        self._try("cancellation", self._cancel)

    def _try(self, operation: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            if operation not in self._failing:
                self._failing.add(operation)
                self._observers.emit(SparkUnreachable(**self._identity(), operation=operation, error=repr(error)))
        else:
            self._failing.discard(operation)

    def _cancel(self) -> None:
        self._work.cancel(self._cancelled or "its handler has ended")

    def _look_last(self) -> None:
        # Spark records the end of a job a moment after its result arrives.
        for _ in range(_LAST_LOOKS):
            if not self._maybe_flush().open:
                return
            time.sleep(_BETWEEN_LAST_LOOKS)

    def _maybe_flush(self) -> TaskCounts:
        counts = self._work.count_jobs()
        progress = self.progress.advanced(counts)
        if progress != self.progress:
            self._tell(progress)
        return counts

    def _tell(self, progress: SparkProgress) -> None:
        self.progress = progress
        self._attempt.record_progress(
            progress.done, progress.known, fraction=progress.fraction, message="tasks of Spark"
        )
        if self._on_progress is not None:
            self._on_progress(progress)
        if self._observers.want(SparkProgressed):
            event = SparkProgressed(
                **self._identity(),
                done=progress.done,
                known=progress.known,
                active=progress.active,
                fraction=progress.fraction,
            )
            self._observers.emit(event)

    def _identity(self) -> Identity:
        attempt = self._attempt
        return {
            "worker": attempt.worker,
            "job_id": attempt.job_id,
            "chain_id": attempt.chain_id,
            "type": attempt.type,
            "attempt": attempt.number,
        }


def tag_of(attempt: Attempt[Any, Any]) -> str:
    """Return the job tag of an attempt: ``queuert:{job id}:{attempt}:{beginning of the lease token}``.

    Spark keeps refusing a group that was cancelled, and a job that is started again under its old id begins with
    attempt 1 again: the token distinguishes the two. Commas, which a tag cannot contain, are escaped as in a URL.
    """
    return f"queuert:{quote(attempt.job_id, safe=':/-_.~')}:{attempt.number}:{attempt.token[:8]}"


def fence_of(attempt: Attempt[Any, Any]) -> str:
    """Return the fence of an attempt, in the form of the option ``fence``."""
    return str(Fence(attempt.job_id, attempt.number, attempt.token))


def _work(attempt: Attempt[Any, Any], spark: SparkSession, pool: str | None) -> ClassicWork | ConnectWork:
    tag = tag_of(attempt)
    if hasattr(spark, "_jsparkSession"):
        from queuert.spark.handlers.classic import ClassicWork

        return ClassicWork(spark, tag, f"{attempt.type}, attempt {attempt.number} of job {attempt.job_id}", pool)
    if pool is not None:
        raise ConfigurationError("pool must not be set with Spark Connect, whose sessions have no scheduler pools")
    from queuert.spark.handlers.connect import ConnectWork

    return ConnectWork(spark, tag)


def _refuse_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise DefinitionError("spark_scope would block the event loop: use `await run_in_scope(...)` in a coroutine")


@contextmanager
def _mapped(attempt: Attempt[Any, Any]) -> Iterator[None]:
    """Raise errors of Spark as LeaseLostError if the attempt must stop, or if its fence was refused."""
    try:
        yield
    except Exception as error:
        reason = attempt.abort.reason
        if reason is None and _is_of_fence(error):
            reason = AbortReason.TAKEN_BY_ANOTHER_WORKER
        if reason is not None and _is_of_spark(error):
            raise LeaseLostError(attempt.job_id, reason) from error
        raise
    attempt.abort.raise_if_set()


def _is_of_fence(error: Exception) -> bool:
    return isinstance(error, FenceLostError) or isinstance(found_in(error), FenceLostError)


def _is_of_spark(error: BaseException | None) -> bool:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    while error is not None:
        if isinstance(error, Py4JError | PySparkException | FenceLostError):
            return True
        error = error.__cause__
    return False
