"""Traces across the queue: what a tracing middleware does, and how clients and workers call several of them as one.

Give one to the client, and the workers of that client trace their attempts with it as well::

    client = AsyncClient(state, job_types, middlewares=[OTelMiddleware()])

:class:`queuert.observability.otel_tracing.OTelMiddleware` and :class:`queuert.integrations.sentry.SentryMiddleware` are
such middlewares. ``docs/design/tracing.md`` says what is stored and emitted. Nothing that a tracing middleware raises
reaches a caller or a job: it goes to the log, once for each method.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Literal

from queuert.jobs import AbortReason
from queuert.state.types import ChainUpdate, ClaimedJob, Finish, FinishResult, ScheduleRecord, StartedJob
from queuert.trace_context import decoded_context, encoded_context

_log = logging.getLogger("queuert.observability")


@dataclass(slots=True, unsafe_hash=True)  # One for each start: a frozen one takes three times as long to make.
class Send:
    """Chains that are about to be started together."""

    types: tuple[str, ...]
    """The job types of their first jobs, each once."""
    count: int | None
    """None where only the write tells, as with the rows of a DataFrame."""
    in_callers_transaction: bool = False
    """Whether the caller commits it, later than it is sent, if at all."""
    schedule: ScheduleRecord | None = None
    """The schedule whose ticks they are."""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt ended, as far as its worker knows before the finish is written."""

    finish: Finish | None
    """None where nothing was left to be written: the lease is lost, or a client closed the chain."""
    reason: AbortReason | None
    """Why it was aborted, if it was."""
    error: BaseException | None
    """What the handler raised, or why its outcome could not be taken."""


@dataclass(frozen=True, slots=True)
class Change:
    """A client is about to complete, cancel or retry chains, instead of their handlers."""

    outcome: Literal["completed", "cancelled", "retried"]
    chain_ids: tuple[str, ...]
    in_callers_transaction: bool = False
    """Whether the caller commits it, later than it is written, if at all."""


class SendSpan:
    """Chains that are being started. The methods are called in the order in which they stand here."""

    shared = True
    """Whether all jobs get the same context, so that it is made once."""
    stored = True
    """Whether jobs get a context at all; else :meth:`inject` and :meth:`started` are not called."""

    def enter(self) -> None:
        """Make it the current one, in the caller's context."""

    def inject(self, job_type: str, job_id: str, carrier: MutableMapping[str, str]) -> None:
        """Add the trace context of a new job to its text map."""

    def started(self, jobs: Sequence[StartedJob]) -> None:
        """These were written, or found by their deduplication or id."""

    def counted(self, count: int) -> None:
        """So many were written, where that was not known before."""

    def exit(self, error: BaseException | None) -> None:
        """The start is over: restore what was current, in the same context, and end."""


class AttemptSpan:
    """An attempt that runs."""

    recorded = False
    """Whether it is sampled: its context is then stored with its finish."""

    def inject(self, carrier: MutableMapping[str, str]) -> None:
        """Add its context to the text map of the jobs that it creates, and of its finish."""

    def link(self, contexts: Sequence[Mapping[str, str]]) -> None:
        """The job waited for chains whose last attempts have these contexts."""

    def end(self, end: AttemptEnd) -> None:
        """Its finish is known. From any task."""

    def rejected(self, error: BaseException, instead: Finish) -> None:
        """The store did not take its finish, after ``end``: the attempt has failed, and is finished so instead."""


class SettleSpan:
    """Finishes that are being written."""

    def enter(self) -> None:
        """Make it the current one."""

    def settled(self, results: Sequence[FinishResult]) -> None:
        """The store has decided about them."""

    def exit(self, error: BaseException | None) -> None:
        """The write is over."""


class ChangeSpan:
    """Chains that a client completes, cancels or retries."""

    def enter(self) -> None:
        """Make it the current one, in the caller's context."""

    def changed(self, results: Sequence[ChainUpdate]) -> None:
        """The store has answered: these were changed, or were closed already."""

    def exit(self, error: BaseException | None) -> None:
        """The change is over: restore what was current, in the same context, and end."""


class TracingMiddleware:
    """The base of tracing middlewares: one object for the starts of a client and the attempts of its workers.

    Every method may return None where it has nothing to say. They are called from the event loop and from threads.
    """

    def begin_send(self, send: Send) -> SendSpan | None:
        """A client, or a schedule, starts chains."""
        return None

    def begin_attempt(self, job: ClaimedJob, worker: str) -> AttemptSpan | None:
        """A worker runs an attempt: make its span the current one.

        It is called in a context of its own, which ends with the attempt and in which the handler runs, so nothing need
        be restored. :func:`~queuert.trace_context.decoded_context` reads the contexts of the job.
        """
        return None

    def begin_settle(self, spans: Sequence[AttemptSpan], finishes: Sequence[Finish]) -> SettleSpan | None:
        """Finishes are written: those of these attempts, which it began and which are sampled."""
        return None

    def begin_change(self, change: Change) -> ChangeSpan | None:
        """A client completes, cancels or retries chains."""
        return None

    def received(self, jobs: Sequence[ClaimedJob], worker: str, seconds: float) -> None:
        """A worker has claimed jobs, at least one. The claim took so many seconds, until now."""


# --- several as one ---------------------------------------------------------------------------------------------------

_reported: set[tuple[type[Any], str]] = set()


def _report(owner: object, method: str, error: Exception) -> None:
    place = type(owner), method
    if place not in _reported:
        _reported.add(place)
        _log.error("%s.%s failed; further failures of it are not logged", place[0].__name__, method, exc_info=error)


def _call(owner: Any, method: str, *arguments: Any) -> Any:
    try:
        return getattr(owner, method)(*arguments)
    except Exception as error:
        _report(owner, method, error)
        return None


class Sending:
    """The send spans of one start, for the client: a context manager around it.

    It is a class, since each start enters one: a generator takes twice the time.
    """

    __slots__ = ("_shared", "_spans", "_stored", "_text")

    def __init__(self, spans: list[SendSpan]) -> None:
        self._spans = spans
        self._stored = [span for span in spans if span.stored]
        self._shared = all(span.shared for span in spans)
        self._text: str | None = None

    def __enter__(self) -> Sending:
        for span in self._spans:
            _call(span, "enter")
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        for span in reversed(self._spans):
            _call(span, "exit", error)

    def context(self, job_type: str, job_id: str) -> str | None:
        """The trace context of a new job, as it is stored."""
        if self._text is not None or not self._stored:
            return self._text
        carrier: dict[str, str] = {}
        for span in self._stored:
            _call(span, "inject", job_type, job_id, carrier)
        text = encoded_context(carrier)
        if self._shared:
            self._text = text
        return text

    def started(self, jobs: Sequence[StartedJob]) -> None:
        """These were written, or found."""
        for span in self._stored:
            _call(span, "started", jobs)

    def counted(self, count: int) -> None:
        """So many were written."""
        for span in self._stored:
            _call(span, "counted", count)


class AttemptTrace:
    """The spans of one attempt, for its runner."""

    __slots__ = ("_ended", "_spans", "committed", "error")

    def __init__(self, spans: list[tuple[TracingMiddleware, AttemptSpan]]) -> None:
        self._spans = spans
        self._ended = False
        self.error: BaseException | None = None
        """What the handler raised, or why its outcome could not be taken."""
        self.committed: Finish | None = None
        """What a ``complete()`` block of it has committed."""

    def context(self) -> str | None:
        """The context of the attempt as it is stored; None if it is not sampled."""
        carrier: dict[str, str] = {}
        for _, span in self._spans:
            if span.recorded:
                _call(span, "inject", carrier)
        return encoded_context(carrier) if carrier else None

    def link(self, contexts: Iterable[str | None]) -> None:
        """The job waited for chains whose last attempts have these contexts."""
        recorded = [span for _, span in self._spans if span.recorded]
        if recorded and (found := [context for text in contexts if (context := decoded_context(text))]):
            for span in recorded:
                _call(span, "link", found)

    def end(self, finish: Finish | None, reason: AbortReason | None) -> None:
        """Its finish is known. Idempotent."""
        if not self._ended:
            self._ended = True
            end = AttemptEnd(finish, reason, self.error)
            for _, span in self._spans:
                _call(span, "end", end)
            self.error = None  # Its traceback leads back to the attempt.

    def rejected(self, error: BaseException, instead: Finish) -> None:
        """The store did not take its finish, and this one is written instead."""
        for _, span in self._spans:
            _call(span, "rejected", error, instead)

    def of(self, middleware: TracingMiddleware) -> AttemptSpan | None:
        """Its sampled span of this middleware."""
        for owner, span in self._spans:
            if owner is middleware:
                return span if span.recorded else None
        return None


class _Settling:
    """The settle spans of one write."""

    __slots__ = ("_spans",)

    def __init__(self, spans: list[SettleSpan]) -> None:
        self._spans = spans

    def settled(self, results: Sequence[FinishResult]) -> None:
        """The store has decided."""
        for span in self._spans:
            _call(span, "settled", results)


class Changing:
    """The change spans of one call of a client."""

    __slots__ = ("_spans",)

    def __init__(self, spans: list[ChangeSpan]) -> None:
        self._spans = spans

    def changed(self, results: Sequence[ChainUpdate]) -> None:
        """The store has answered."""
        for span in self._spans:
            _call(span, "changed", results)


NO_SENDING: Final[AbstractContextManager[None]] = nullcontext()
"""Of a client without tracing."""

NO_CHANGING: Final[AbstractContextManager[Changing]] = nullcontext(Changing([]))
"""Of a client without tracing."""


class Tracing:
    """Several tracing middlewares as one; none can hurt another, or the work that it traces."""

    __slots__ = ("_middlewares",)

    def __init__(self, middlewares: Iterable[TracingMiddleware]) -> None:
        self._middlewares = tuple(middlewares)

    def sending(self, send: Send) -> AbstractContextManager[Sending | None]:
        """Around a start; of None if no middleware wants to hear more of it."""
        spans = [span for one in self._middlewares if (span := _call(one, "begin_send", send)) is not None]
        return Sending(spans) if spans else NO_SENDING

    @contextmanager
    def changing(self, change: Change) -> Iterator[Changing]:
        """Around a change of chains by a client."""
        spans = [span for one in self._middlewares if (span := _call(one, "begin_change", change)) is not None]
        with _entered(spans):
            yield Changing(spans)

    def received(self, jobs: Sequence[ClaimedJob], worker: str, seconds: float) -> None:
        """Jobs were claimed."""
        for one in self._middlewares:
            _call(one, "received", jobs, worker, seconds)

    def begin_attempt(self, job: ClaimedJob, worker: str) -> AttemptTrace | None:
        """An attempt begins, in a context of its own; None if no middleware wants to hear more of it.

        If it is sampled the job gets its context, for what it creates and for its finish.
        """
        spans: list[tuple[TracingMiddleware, AttemptSpan]] = []
        for one in self._middlewares:
            try:
                span = one.begin_attempt(job, worker)
            except Exception as error:
                _report(one, "begin_attempt", error)
            else:
                if span is not None:
                    spans.append((one, span))
        if not spans:
            return None
        trace = AttemptTrace(spans)
        if (context := trace.context()) is not None:
            job.attempt_trace_context = context
        return trace

    @contextmanager
    def settling(self, traces: Sequence[AttemptTrace], finishes: Sequence[Finish]) -> Iterator[_Settling]:
        """Around a write of finishes: those of the attempts that are sampled, each with its trace."""
        found: list[SettleSpan] = []
        for one in self._middlewares:
            ours = [
                (span, finish)
                for trace, finish in zip(traces, finishes, strict=True)
                if (span := trace.of(one)) is not None
            ]
            if ours:
                settle = _call(one, "begin_settle", [span for span, _ in ours], [finish for _, finish in ours])
                if settle is not None:
                    found.append(settle)
        with _entered(found):
            yield _Settling(found)


@contextmanager
def _entered(spans: Sequence[SettleSpan | ChangeSpan]) -> Iterator[None]:
    error: BaseException | None = None
    for span in spans:
        _call(span, "enter")
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        for span in reversed(spans):
            _call(span, "exit", error)


def tracing_of(middlewares: Iterable[object]) -> Tracing | None:
    """The tracing middlewares among those of a client, as one; None if there is none."""
    found = [one for one in middlewares if isinstance(one, TracingMiddleware)]
    return Tracing(found) if found else None
