"""Events as records of the standard log: a sentence to read, and the fields to search for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Final, TypeAlias

from queuert.jobs import JobError
from queuert.observability import events
from queuert.observability.escaping import MAX_LENGTH, escape

_ATTEMPT = "attempt %(attempt)s of job %(job_id)s (%(type)s, chain %(chain_id)s) on worker %(worker)s "
_LEASE_EXPIRED = (
    "the lease of worker %(holder)s on attempt %(attempt)s of job %(job_id)s (%(type)s, chain %(chain_id)s) expired: "
    "the attempt counts as failed, and the job "
)
_OPERATOR_ACTED = "user %(user)s, over %(interface)s: %(change)s of %(target)s: %(outcome)s"
_CALLERS = "%(in_callers_transaction)s"

_PHRASES: Final[Mapping[str, tuple[str, str]]] = {
    "in_callers_transaction": ("", ", in the caller's transaction"),
    "committed": (", not committed yet", ""),
    "early": ("", " (it ended early, so the worker stops)"),
}
"""What a sentence says if the field is false, and if it is true."""

SENTENCES: Final[Mapping[type[events.Event], str]] = {
    events.WorkerStarted: "worker %(worker)s started: %(concurrency)s slots for %(types)s",
    events.WorkerStopping: "worker %(worker)s is stopping; %(running)s running jobs have %(shutdown_timeout)s s to "
    "finish",
    events.WorkerStopped: "worker %(worker)s stopped; handlers still running: %(abandoned)s",
    events.LoopFailed: "worker %(worker)s: %(loop)s failed (%(failures)s in a row), retrying in %(retry_in)s s: "
    "%(error)s",
    events.EventLoopBlocked: "worker %(worker)s: the event loop has been blocked for %(seconds)s s by job %(job_id)s "
    "(%(type)s); nothing else runs in it, and jobs that it holds may be lost",
    events.EventLoopUnblocked: "worker %(worker)s: the event loop was blocked for %(seconds)s s and runs again",
    events.LoopRecovered: "worker %(worker)s: %(loop)s recovered after %(failures)s failures",
    events.TickIdTaken: "schedule %(schedule)s: a job of another type has the id %(taken_id)s of this tick, "
    "so worker %(worker)s started the chain as %(chain_id)s",
    events.TickSkipped: "schedule %(schedule)s: the tick %(tick)s starts no chain, since chain %(open_chain_id)s is "
    "open (worker %(worker)s)",
    events.SchedulesRemoved: "worker %(worker)s removed schedules of the owner %(owner)s that are not in its code: "
    "%(schedules)s",
    events.JobTypeUnhandled: "no live worker handles job type %(type)s, with which jobs of %(needed_by)s continue, or "
    "for which they wait: such chains stand still until one does (seen by worker %(worker)s)",
    events.ChainStarted: "chain %(chain_id)s (%(type)s) started" + _CALLERS + "%(committed)s",
    events.ChainsWritten: "%(count)s chains were written in %(duration)s s",
    events.ChainClosed: "chain %(chain_id)s (%(type)s) is %(status)s, %(duration)s s after its start",
    events.ChainContinued: "chain %(chain_id)s (%(type)s) was continued by a client with job %(next_job_id)s "
    "(%(next_type)s)" + _CALLERS,
    events.ChainRetried: "chain %(chain_id)s (%(type)s) was reopened by a client" + _CALLERS,
    events.EventSent: "event %(name)s was sent to chain %(chain_id)s of type %(type)s" + _CALLERS,
    events.JobsTriggered: "%(count)s jobs were made due by a client" + _CALLERS,
    events.ChainsDeleted: "%(count)s chains were deleted by a client" + _CALLERS,
    events.OperatorActed: _OPERATOR_ACTED,
    events.JobReaped: _LEASE_EXPIRED + "is tried again (reaped by %(worker)s)",
    events.JobsReleased: "worker %(worker)s released %(count)s claimed jobs that it had not started",
    events.StrandedJobsReleased: "worker %(worker)s unblocked %(count)s jobs without open blockers: %(job_ids)s",
    events.ChainsPruned: "worker %(worker)s pruned %(count)s chains beyond their retention: %(chain_ids)s",
    events.ChainsBecameStale: "worker %(worker)s marked %(count)s closed chains as stale: %(chain_ids)s",
    events.RetentionHookFailed: "worker %(worker)s keeps chain %(chain_id)s (%(type)s) for now, as %(hook)s failed: "
    "%(error)s",
    events.StagingCleaned: "worker %(worker)s dropped staging tables %(dropped)s and %(forgotten)s bulk write records",
    events.StagingCleanupFailed: "worker %(worker)s could not clean up the staging of bulk writes: %(error)s",
    events.EventLogMaintained: "worker %(worker)s maintained the event log: created partitions %(made)s, dropped "
    "%(dropped)s, deleted %(deleted)s events",
    events.EventLogMaintenancePostponed: "worker %(worker)s postponed event log partitions %(days)s: an open "
    "transaction blocks them",
    events.EventLogMaintenanceFailed: "worker %(worker)s could not maintain the event log: %(error)s",
    events.AttemptStarted: _ATTEMPT + "started, %(waited)s s after the job was due",
    events.AttemptCompleted: _ATTEMPT + "completed after %(duration)s s",
    events.AttemptContinued: _ATTEMPT + "continued after %(duration)s s with job %(next_job_id)s (%(next_type)s)",
    events.AttemptRetried: _ATTEMPT + "failed after %(duration)s s, retrying in %(retry_in)s s: %(error)s",
    events.AttemptFailed: _ATTEMPT + "failed after %(duration)s s, and the job with it: %(error)s",
    events.AttemptCancelled: _ATTEMPT + "cancelled its chain after %(duration)s s: %(error)s",
    events.AttemptWaiting: _ATTEMPT + "waits for %(blockers)s chain(s) after %(duration)s s",
    events.AttemptSnoozed: _ATTEMPT + "ended after %(duration)s s to go on in %(due_in)s s: the attempt does not count",
    events.PhaseStarted: _ATTEMPT + "began phase %(phase)s (%(number)s of %(count)s)",
    events.PhaseCompleted: _ATTEMPT + "completed phase %(phase)s (%(number)s of %(count)s) after %(duration)s s",
    events.PhaseFailed: _ATTEMPT
    + "raised in phase %(phase)s (%(number)s of %(count)s) after %(duration)s s: %(error)s",
    events.AttemptInterrupted: _ATTEMPT
    + "was interrupted after %(duration)s s: the job is ready again, and the attempt does not count",
    events.AttemptAborted: _ATTEMPT + "was aborted: %(reason)s",
    events.HandlerKilled: "the process of " + _ATTEMPT + "was killed: %(reason)s",
    events.FinishRejected: _ATTEMPT + "could not commit, its lease does not hold: %(reason)s",
    events.ErrorAfterCompletion: _ATTEMPT
    + "raised after its completion was committed; the completion stands: %(error)s",
    events.AfterAttemptFailed: _ATTEMPT + "finished without the changes of after_attempt, which raised: %(error)s",
    events.FinishFailed: _ATTEMPT + "could not store its finish; the job runs again when its lease expires: %(error)s",
    events.HandlerWaits: _ATTEMPT + "waits, in one of the %(slots)s slots of its worker, for a job of type "
    "%(waits_for)s, which needs one as well: return attempt.wait_for(...) instead, which holds none",
    events.SparkProgressed: _ATTEMPT + "has %(done)s of %(known)s Spark tasks done, %(active)s are running",
    events.SparkUnreachable: "Spark did not answer %(operation)s of " + _ATTEMPT + "(retrying): %(error)s",
    events.LeasesRenewed: "worker %(worker)s renewed %(count)s leases and lost %(lost)s; least time left: %(slack)s s",
    events.JobsClaimed: "worker %(worker)s claimed %(count)s jobs in %(duration)s s",
    events.FinishesWritten: "worker %(worker)s wrote %(count)s finishes in %(duration)s s",
    events.StoreCallFailed: "worker %(worker)s: %(operation)s failed at the store (%(failures)s in a row): %(error)s",
    events.LifespanFailed: "worker %(worker)s: the lifespan %(lifespan)s failed%(early)s: %(error)s",
    events.WebhookFailing: "webhook %(webhook)s: nothing could be delivered for %(seconds)s s (%(failures)s failures "
    "in a row)",
    events.WebhookDisabled: "webhook %(webhook)s was disabled: %(cause)s",
    events.WebhookEventsLost: "webhooks are not told of events that the log has lost: %(error)s",
    events.WebhookEventSkipped: "webhooks are not told that job %(job_id)s (chain %(chain_id)s) was %(kind)s: "
    "%(error)s",
    events.RetentionInUse: "worker %(worker)s keeps closed chains of %(types)s: %(kept)s",
    events.StoreWarningRaised: "jobs of %(adapter)s are at risk (%(risk)s): %(advice)s",
    events.ListenerLost: "%(adapter)s: listener disconnected, reconnecting in %(retry_in)s s: %(error)s",
    events.ListenerRestored: "%(adapter)s: listener reconnected",
    events.NotificationDropped: "%(adapter)s could not send a notification: %(error)s",
    events.ObserverFailed: "%(adapter)s raised at %(event)s: %(error)s",
}
"""The text of each event. Of an event that is not here, the record shows the name and all fields."""


_CHANGE_FAILED = _OPERATOR_ACTED + ", %(error)s"
"""The text of OperatorActed, if the change was not made."""

_FAILED_FOR_GOOD = _LEASE_EXPIRED + "has failed for good (reaped by %(worker)s)"
"""The text of JobReaped, if the job has failed."""

_AWAITS_EVENT = (
    _ATTEMPT + "ended after %(duration)s s to go on when the event %(awaited_event)s is sent, or in %(due_in)s s "
    "without it: the attempt does not count"
)
"""The text of AttemptSnoozed, if the attempt waits for an event."""


_LEVELS: Final[Mapping[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


_OBSERVED = "queuert_observed_event"

_Form: TypeAlias = tuple[tuple[tuple[str, str], ...], str]

# A flood of failures is told one by one: what is the same for all events of a class is made once.
_forms: dict[type[events.Event], _Form] = {}


class LogObservability:
    """Writes each event as one record of a standard logger, at the event's own level.

    The message is a sentence with ids, types, errors and durations (never an input or output). The same values are
    attributes of the record for formatters and handlers, with a prefix: ``queuert_event`` is the event's name,
    ``queuert_job_id``, ``queuert_type`` and so on are its fields (a field ``event``, which would have the same name, is
    ``queuert_observed_event``). An error is four: ``queuert_error`` (one line),
    ``queuert_error_kind``, ``queuert_error_type`` and ``queuert_error_traceback``, which with ``queuert_stack`` is the
    only value that may contain line breaks. Everything that is not printable is escaped, so that no id or message can
    forge an entry.

        >>> LogObservability(logging.getLogger("app.jobs")).__class__.__name__
        'LogObservability'

    Args:
        logger: where to write; by default the logger ``queuert``. Set its level to ``WARNING`` to hear of trouble
            only, to ``DEBUG`` for every attempt's start.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logging.getLogger("queuert") if logger is None else logger

    def wants(self, kind: type[events.Event]) -> bool:
        """Whether the logger's level lets events of this class through."""
        return self._logger.isEnabledFor(_LEVELS.get(kind.level, logging.INFO))

    def emit(self, event: events.Event) -> None:
        """Write one record; costs next to nothing where the logger's level leaves it out."""
        level = _LEVELS.get(event.own_level, logging.INFO)
        if self._logger.isEnabledFor(level):
            kind = type(event)
            names, sentence = _form(kind)
            # Never empty, since logging takes an empty mapping for a positional argument.
            shown: dict[str, object] = {"event": kind.__name__}
            attributes: dict[str, object] = {"queuert_event": kind.__name__}
            for name, attribute in names:
                value = getattr(event, name)
                if name == "stack":
                    attributes[attribute] = _traceback(value)
                elif type(value) is str:
                    shown[name] = attributes[attribute] = escape(value)
                elif type(value) is int:
                    shown[name] = attributes[attribute] = value
                elif isinstance(value, JobError):
                    shown[name] = attributes[attribute] = escape(str(value))
                    _add_error(attributes, attribute, value)
                elif type(value) is bool and name in _PHRASES and kind in SENTENCES:
                    shown[name], attributes[attribute] = _PHRASES[name][value], value
                else:
                    shown[name], attributes[attribute] = _shown(value), _attribute(value)
            if kind is events.AttemptSnoozed and attributes["queuert_awaited_event"] is not None:
                sentence = _AWAITS_EVENT
            elif kind is events.OperatorActed and attributes["queuert_error"] is not None:
                sentence = _CHANGE_FAILED
            elif kind is events.JobReaped and attributes["queuert_failed"]:
                sentence = _FAILED_FOR_GOOD
            self._logger.log(level, sentence, shown, extra=attributes)


def _form(kind: type[events.Event]) -> _Form:
    """The names of an event's fields and of their attributes, and its sentence."""
    form = _forms.get(kind)
    if form is None:
        names = tuple(one.name for one in fields(kind))
        sentence = SENTENCES.get(kind) or " ".join([f"{kind.__name__}:", *(f"{name}=%({name})s" for name in names)])
        form = tuple((name, _OBSERVED if name == "event" else f"queuert_{name}") for name in names), sentence
        _forms[kind] = form
    return form


def _shown(value: object) -> str:
    """A value as a part of a sentence."""
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, tuple):
        return ", ".join(_shown(one) for one in value)
    return "unknown" if value is None else escape(str(value))


def _attribute(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, tuple):
        return tuple(_attribute(one) for one in value)
    return escape(str(value))


def _add_error(attributes: dict[str, object], attribute: str, error: JobError) -> None:
    attributes[f"{attribute}_kind"] = escape(error.kind)
    attributes[f"{attribute}_type"] = error.type and escape(error.type)
    attributes[f"{attribute}_traceback"] = error.traceback and _traceback(error.traceback)


def _traceback(text: str) -> str:
    if len(text) <= MAX_LENGTH and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "\n".join(escape(line, keep="\t") for line in text.split("\n"))
