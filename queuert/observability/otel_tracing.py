"""Traces of starts and attempts with OpenTelemetry, by its messaging conventions.

One line switches them on, for a client and for its workers::

    client = AsyncClient(state, job_types, middlewares=[OTelMiddleware()])

``queuert worker --otel`` does it for a worker process. It needs the API of OpenTelemetry only; without an SDK nothing
is recorded and nothing stored. ``docs/design/tracing.md`` lists the spans, their links and attributes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

from opentelemetry import baggage, propagate, trace
from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
)

from queuert.errors import ConfigurationError
from queuert.observability.tracing import (
    AttemptEnd,
    AttemptSpan,
    Change,
    ChangeSpan,
    Send,
    SendSpan,
    SettleSpan,
    TracingMiddleware,
)
from queuert.state.types import ChainUpdate, ClaimedJob, Finish, FinishKind, FinishResult, StartedJob
from queuert.trace_context import decoded_context, encoded_context

# Of the messaging conventions, which are in development: a test compares them with the package that has them all.
SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION_NAME: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
CONVERSATION_ID: Final = "messaging.message.conversation_id"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"

OUTCOMES: Final[Mapping[FinishKind, str]] = {
    FinishKind.COMPLETE: "completed",
    FinishKind.CONTINUE: "continued",
    FinishKind.RETRY: "retried",
    FinishKind.FAIL: "failed",
    FinishKind.CANCEL: "cancelled",
    FinishKind.INTERRUPT: "interrupted",
    FinishKind.WAIT: "waiting",
    FinishKind.SNOOZE: "snoozed",
}
"""The values of ``queuert.outcome``, besides ``aborted``."""

_FAILURES = (FinishKind.RETRY, FinishKind.FAIL)
_MOST_LINKS = 128
_MOST_BLOCKERS = 32
_ROOT = Context()


def _continues(parent: Context) -> bool:
    """Whether a start in this context belongs to a trace, or has baggage for its handlers."""
    if not parent:
        return False
    return trace.get_current_span(parent).get_span_context().is_valid or bool(baggage.get_all(parent))


class OTelMiddleware(TracingMiddleware):
    """Traces starts and attempts with OpenTelemetry.

    Args:
        parent: ``link`` makes each attempt a trace of its own, linked to what created the job, so that workers decide
            themselves what they sample; ``creator`` makes the first attempt a child of it.
        create_spans: whether each chain of a batch gets a span of its own, besides the one for the batch.
        attempt_ratio: the share of attempts that are traced at all, from 0 to 1, of those that begin a trace. The
            sampler of the SDK is asked for these only. It takes 3 to 4 microseconds for each span that it does not
            sample, and this option half of one: for workers that run many thousand short jobs a second.
        receive_spans: whether each claim that brought jobs gets a span, linked to what created them.
        tracer_provider: where the tracer is made; by default the global provider, so that it may be set later.

    Raises:
        ConfigurationError: ``parent`` is neither; a ratio is not from 0 to 1; or ``send_ratio`` is less than 1 with
            ``parent="creator"``.
    """

    def __init__(
        self,
        *,
        parent: Literal["link", "creator"] = "link",
        create_spans: bool = True,
        attempt_ratio: float = 1.0,
        send_ratio: float = 1.0,
        receive_spans: bool = False,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        if parent not in ("link", "creator"):
            raise ConfigurationError(f"parent must be 'link' or 'creator', got {parent!r}")
        for name, ratio in (("attempt_ratio", attempt_ratio), ("send_ratio", send_ratio)):
            if not 0.0 <= ratio <= 1.0:
                raise ConfigurationError(f"{name} must be from 0 to 1, got {ratio!r}")
        if parent == "creator" and send_ratio < 1.0:
            raise ConfigurationError(
                f"send_ratio must be 1 with parent='creator', got {send_ratio!r}: use the sampler of the SDK"
            )
        self._attempt_ratio = attempt_ratio
        self._send_ratio = send_ratio
        self._tracer = trace.get_tracer("queuert", tracer_provider=tracer_provider)
        self._is_child = parent == "creator"
        self._create_spans = create_spans
        self._receive_spans = receive_spans
        self._process: dict[str, tuple[str, dict[str, Any]]] = {}
        self._send: dict[str, tuple[str, dict[str, Any]]] = {}

    def begin_send(self, send: Send) -> SendSpan | None:
        """One span for the start, and one for each chain of a batch."""
        parent = otel_context.get_current()
        if self._send_ratio < 1.0 and random.random() >= self._send_ratio and not _continues(parent):
            return None
        name, attributes = self._named(send)
        creates = self._create_spans and (send.count or 0) > 1
        span = self._tracer.start_span(name, parent, SpanKind.CLIENT if creates else SpanKind.PRODUCER, attributes)
        if span.is_recording():
            return _Sent(self._tracer, send, span, parent, creates=creates)
        # Nobody links to what is not sampled. But a child takes the decision over, and baggage is for handlers.
        stored = self._is_child or bool(parent and baggage.get_all(parent))
        return _UnsampledSend(trace.set_span_in_context(span, parent), stored=stored)

    def _named(self, send: Send) -> tuple[str, dict[str, Any]]:
        """The name and the attributes of its span."""
        job_type = send.types[0] if len(send.types) == 1 else None
        known = None if job_type is None else self._send.get(job_type)
        if known is None:
            known = _name("send", send.types), _attributes("send", job_type)
            if job_type is not None:
                self._send[job_type] = known
        if send.count == 1 and not send.in_callers_transaction and send.schedule is None:
            return known
        name, attributes = known[0], known[1].copy()
        if send.count is not None and send.count != 1:
            attributes[MESSAGE_COUNT] = send.count
        if send.in_callers_transaction:
            attributes["queuert.in_callers_transaction"] = True
        if send.schedule is not None:
            attributes["queuert.schedule"] = send.schedule.name
        return name, attributes

    def begin_attempt(self, job: ClaimedJob, worker: str) -> AttemptSpan | None:
        """A span from now until the finish of the attempt is known.

        One that is not sampled is the current one all the same, so that spans of the handler are not sampled either.
        """
        context, stored, begins_trace = _ROOT, job.trace_context, True
        if stored is not None and (self._is_child or "baggage" in stored):
            context = propagate.extract(decoded_context(stored), _ROOT)
            begins_trace = not self._is_child or job.attempt > 1
            if begins_trace:
                context = trace.set_span_in_context(INVALID_SPAN, context)
        if begins_trace and self._attempt_ratio < 1.0 and random.random() >= self._attempt_ratio:
            otel_context.attach(trace.set_span_in_context(_UntracedAttempt(), context))
            return None
        known = self._process.get(job.type)
        if known is None:
            known = self._process[job.type] = f"process {job.type}", _attributes("process", job.type)
        span = self._tracer.start_span(known[0], context, SpanKind.CONSUMER, known[1])
        context = trace.set_span_in_context(span, context)
        otel_context.attach(context)
        return _Attempt(context, span, job, worker) if span.is_recording() else None

    def begin_settle(self, spans: Sequence[AttemptSpan], finishes: Sequence[Finish]) -> SettleSpan:
        """A span around the write, a child of the attempt's if it is one attempt."""
        return _Settled(self._tracer, [span for span in spans if isinstance(span, _Attempt)], finishes)

    def begin_change(self, change: Change) -> ChangeSpan:
        """A span around the change, a child of the current one, linked to the last attempts of the chains."""
        return _Changed(self._tracer, change)

    def received(self, jobs: Sequence[ClaimedJob], worker: str, seconds: float) -> None:
        """A span of the claim, which is over."""
        if not self._receive_spans:
            return
        ended_at = time.time_ns()
        types = tuple(dict.fromkeys(job.type for job in jobs))
        attributes = _attributes("receive", types[0] if len(types) == 1 else None)
        attributes |= {MESSAGE_COUNT: len(jobs), "queuert.worker": worker}
        name, started_at = _name("receive", types), ended_at - int(seconds * 1e9)
        span = self._tracer.start_span(name, _ROOT, SpanKind.CLIENT, attributes, start_time=started_at)
        if span.is_recording():
            for job in jobs[:_MOST_LINKS]:
                _link(span, decoded_context(job.trace_context), "creator")
        span.end(ended_at)


@contextmanager
def attached(text: str | None) -> Iterator[None]:
    """Make a stored trace context the current one of OpenTelemetry for the length of a ``with`` block."""
    token = otel_context.attach(propagate.extract(decoded_context(text), _ROOT))
    try:
        yield
    finally:
        otel_context.detach(token)


def current_trace_context() -> str | None:
    """The current context of OpenTelemetry as it is stored; None if there is none.

    For what no middleware sees, such as a DataFrame that is written: ``.option("traceContext", ...)``.
    """
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return encoded_context(carrier)


# --- starts -----------------------------------------------------------------------------------------------------------


class _UnsampledSend(SendSpan):
    """A start whose span is not sampled. It is the current one all the same, so that no span within it is sampled."""

    def __init__(self, context: Context, *, stored: bool) -> None:
        self._context = context
        self.stored = stored
        self._token: Any = None

    def enter(self) -> None:
        self._token = otel_context.attach(self._context)

    def inject(self, job_type: str, job_id: str, carrier: MutableMapping[str, str]) -> None:
        propagate.inject(carrier, self._context)

    def exit(self, error: BaseException | None) -> None:
        if self._token is not None:
            otel_context.detach(self._token)


class _Sent(SendSpan):
    def __init__(self, tracer: trace.Tracer, send: Send, span: Span, parent: Context, *, creates: bool) -> None:
        self._tracer = tracer
        self._parent = parent
        self._created: list[Span] = []
        self._is_single = send.count == 1
        self._span = span
        self._context = trace.set_span_in_context(span, parent)
        self.shared = not creates
        self._token: Any = None

    def enter(self) -> None:
        self._token = otel_context.attach(self._context)

    def inject(self, job_type: str, job_id: str, carrier: MutableMapping[str, str]) -> None:
        if self.shared:
            if self._is_single:
                self._span.set_attributes({MESSAGE_ID: job_id, CONVERSATION_ID: job_id})
            propagate.inject(carrier, self._context)
            return
        attributes = _attributes("create", job_type) | {MESSAGE_ID: job_id, CONVERSATION_ID: job_id}
        created = self._tracer.start_span(f"create {job_type}", self._parent, SpanKind.PRODUCER, attributes)
        if len(self._created) < _MOST_LINKS:
            self._created.append(created)
        propagate.inject(carrier, trace.set_span_in_context(created, self._parent))
        created.end()

    def started(self, jobs: Sequence[StartedJob]) -> None:
        existing = [job for job in jobs if job.existing]
        if existing:
            self._span.set_attribute("queuert.deduplicated", True if self._is_single else len(existing))
            if self._is_single:
                self._span.set_attributes({MESSAGE_ID: existing[0].id, CONVERSATION_ID: existing[0].id})

    def counted(self, count: int) -> None:
        self._span.set_attribute(MESSAGE_COUNT, count)

    def exit(self, error: BaseException | None) -> None:
        if self._token is not None:
            otel_context.detach(self._token)
        for created in self._created:
            self._span.add_link(created.get_span_context())
        if error is not None:
            _set_error(self._span, _class_name(error), str(error), error)
        self._span.end()


# --- attempts ---------------------------------------------------------------------------------------------------------


class _UntracedAttempt(NonRecordingSpan):
    """The current span of an attempt that ``attempt_ratio`` leaves out, so that no span of its handler is sampled.

    It gets its ids when the first one asks for them. Most attempts end before.
    """

    def __init__(self) -> None:
        self._made: SpanContext | None = None

    def get_span_context(self) -> SpanContext:
        if self._made is None:
            self._made = SpanContext(random.getrandbits(128) or 1, random.getrandbits(64) or 1, is_remote=False)
        return self._made

    def __repr__(self) -> str:
        return f"_UntracedAttempt({self._made!r})"


class _Attempt(AttemptSpan):
    recorded = True

    def __init__(self, context: Context, span: Span, job: ClaimedJob, worker: str) -> None:
        self.context = context
        self.span = span
        self.job = job
        span.set_attributes({
            MESSAGE_ID: job.id, CONVERSATION_ID: job.chain_id, "queuert.chain.type": job.chain_type,
            "queuert.attempt": job.attempt, "queuert.worker": worker,
        })  # fmt: skip
        _link(span, decoded_context(job.trace_context), "creator")
        _link(span, decoded_context(job.attempt_trace_context), "attempt")

    def inject(self, carrier: MutableMapping[str, str]) -> None:
        propagate.inject(carrier, self.context)

    def link(self, contexts: Sequence[Mapping[str, str]]) -> None:
        for carrier in contexts[:_MOST_BLOCKERS]:
            _link(self.span, carrier, "blocker")

    def end(self, end: AttemptEnd) -> None:
        span, finish = self.span, end.finish
        if finish is None:
            span.set_attribute("queuert.outcome", "aborted")
            if end.reason is not None:
                span.set_attribute(ERROR_TYPE, end.reason.value)
        else:
            span.set_attribute("queuert.outcome", OUTCOMES[finish.kind])
            if finish.kind in _FAILURES and finish.error is not None:
                _set_error(span, finish.error.type or finish.error.kind, finish.error.message, end.error)
        span.end()


# --- finishes ---------------------------------------------------------------------------------------------------------


class _Settled(SettleSpan):
    def __init__(self, tracer: trace.Tracer, attempts: Sequence[_Attempt], finishes: Sequence[Finish]) -> None:
        types = tuple(dict.fromkeys(one.job.type for one in attempts))
        attributes = _attributes("settle", types[0] if len(types) == 1 else None)
        self._is_single = len(attempts) == 1
        links: list[Link] = []
        if self._is_single:
            self._context, job = attempts[0].context, attempts[0].job
            attributes |= {MESSAGE_ID: job.id, CONVERSATION_ID: job.chain_id}
            attributes["queuert.outcome"] = OUTCOMES[finishes[0].kind]
        else:
            self._context = _ROOT
            attributes[MESSAGE_COUNT] = len(attempts)
            links = [Link(one.span.get_span_context()) for one in attempts[:_MOST_LINKS]]
        name = _name("settle", types)
        self._span = tracer.start_span(name, self._context, SpanKind.CLIENT, attributes, links)
        self._token: Any = None

    def enter(self) -> None:
        self._token = otel_context.attach(trace.set_span_in_context(self._span, self._context))

    def settled(self, results: Sequence[FinishResult]) -> None:
        lost = [result.lost for result in results if result.lost is not None]
        if self._is_single and len(results) == 1 and lost:
            self._span.set_attribute(ERROR_TYPE, lost[0].value)

    def exit(self, error: BaseException | None) -> None:
        if self._token is not None:
            otel_context.detach(self._token)
        if error is not None:
            _set_error(self._span, _class_name(error), str(error), error)
        self._span.end()


class _Changed(ChangeSpan):
    def __init__(self, tracer: trace.Tracer, change: Change) -> None:
        self._outcome = change.outcome
        self._context = otel_context.get_current()
        attributes = _attributes("settle", None) | {"queuert.outcome": change.outcome}
        self._is_single = len(change.chain_ids) == 1
        if self._is_single:
            attributes[CONVERSATION_ID] = change.chain_ids[0]
        else:
            attributes[MESSAGE_COUNT] = len(change.chain_ids)
        if change.in_callers_transaction:
            attributes["queuert.in_callers_transaction"] = True
        self._span = tracer.start_span("settle", self._context, SpanKind.CLIENT, attributes)
        self._token: Any = None

    def enter(self) -> None:
        self._token = otel_context.attach(trace.set_span_in_context(self._span, self._context))

    def changed(self, results: Sequence[ChainUpdate]) -> None:
        span = self._span
        if not span.is_recording():
            return
        types = tuple(dict.fromkeys(one.job_type for one in results))
        span.update_name(_name("settle", types))
        if len(types) == 1:
            span.set_attribute(DESTINATION_NAME, types[0])
        if self._is_single and results:
            span.set_attributes({MESSAGE_ID: results[0].job_id, "queuert.chain.type": results[0].chain_type})
        if (unchanged := sum(not one.written for one in results)) > 0:
            span.set_attribute("queuert.unchanged", unchanged)
        for one in results[:_MOST_LINKS]:
            _link(span, decoded_context(one.trace_context), "job")

    def exit(self, error: BaseException | None) -> None:
        if self._token is not None:
            otel_context.detach(self._token)
        if error is not None:
            _set_error(self._span, _class_name(error), str(error), error)
        self._span.end()


# --- attributes -------------------------------------------------------------------------------------------------------


def _name(operation: str, types: tuple[str, ...]) -> str:
    return f"{operation} {types[0]}" if len(types) == 1 else operation


def _attributes(operation: str, job_type: str | None) -> dict[str, Any]:
    attributes = {SYSTEM: "queuert", OPERATION_NAME: operation, OPERATION_TYPE: operation}
    if job_type is not None:
        attributes[DESTINATION_NAME] = job_type
    return attributes


def _link(span: Span, carrier: Mapping[str, str], of: str) -> None:
    if carrier:
        found = trace.get_current_span(propagate.extract(carrier, _ROOT)).get_span_context()
        if found.is_valid:
            span.add_link(found, {"queuert.link": of})


def _class_name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")


def _set_error(span: Span, kind: str, message: str, error: BaseException | None) -> None:
    span.set_attribute(ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR, message))
    if error is not None:
        span.record_exception(error)
