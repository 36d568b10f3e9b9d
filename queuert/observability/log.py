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

SENTENCES: Final[Mapping[type[events.Event], str]] = {
    events.WorkerStarted: "worker %(worker)s started: %(concurrency)s slots for %(types)s",
    events.WorkerStopping: "worker %(worker)s is stopping: %(running)s running jobs have %(shutdown_timeout)s s to finish",
    events.WorkerStopped: "worker %(worker)s stopped, with %(abandoned)s handlers abandoned",
    events.LoopFailed: "the %(loop)s of worker %(worker)s failed (%(failures)s in a row), again in %(retry_in)s s: "
    "%(error)s",
    events.LoopRecovered: "the %(loop)s of worker %(worker)s works again after %(failures)s failures",
    events.TickIdTaken: "the id %(taken_id)s of a tick of schedule %(schedule)s is taken by a job of another type; "
    "worker %(worker)s started the tick's chain as %(chain_id)s",
    events.ChainStarted: "chain %(chain_id)s (%(type)s) started; in the caller's transaction: "
    "%(in_callers_transaction)s, known to be committed: %(committed)s",
    events.ChainClosed: "chain %(chain_id)s (%(type)s) is %(status)s, %(duration)s s after its start",
    events.ChainContinued: "chain %(chain_id)s (%(type)s) was continued from outside with job %(next_job_id)s "
    "(%(next_type)s); in the caller's transaction: %(in_callers_transaction)s",
    events.ChainRetried: "chain %(chain_id)s (%(type)s) was opened again; in the caller's transaction: "
    "%(in_callers_transaction)s",
    events.JobsTriggered: "%(count)s jobs were made due; in the caller's transaction: %(in_callers_transaction)s",
    events.ChainsDeleted: "%(count)s chains were deleted; in the caller's transaction: %(in_callers_transaction)s",
    events.JobReaped: "attempt %(attempt)s of job %(job_id)s (%(type)s, chain %(chain_id)s) counts as failed: "
    "worker %(holder)s let its lease expire; failed for good: %(failed)s (seen by worker %(worker)s)",
    events.JobsReleased: "worker %(worker)s released %(count)s jobs that it had not started",
    events.StrandedJobsReleased: "worker %(worker)s released %(count)s jobs that were blocked by nothing any more: %(job_ids)s",
    events.ChainsPruned: "worker %(worker)s deleted %(count)s chains that need not be kept: %(chain_ids)s",
    events.StagingCleaned: "worker %(worker)s dropped staging tables %(dropped)s, forgot %(forgotten)s bulk writes",
    events.StagingCleanupFailed: "worker %(worker)s cannot look after the staging of bulk writes: %(error)s",
    events.EventLogMaintained: "worker %(worker)s made days %(made)s of events, dropped %(dropped)s, deleted %(deleted)s",
    events.EventLogMaintenancePostponed: "worker %(worker)s postponed days %(days)s of the event log: a transaction is in the way",
    events.EventLogMaintenanceFailed: "worker %(worker)s cannot look after the event log: %(error)s",
    events.AttemptStarted: _ATTEMPT + "started, %(waited)s s after it became due",
    events.AttemptCompleted: _ATTEMPT + "completed after %(duration)s s",
    events.AttemptContinued: _ATTEMPT + "continued after %(duration)s s with job %(next_job_id)s (%(next_type)s)",
    events.AttemptRetried: _ATTEMPT + "failed after %(duration)s s, again in %(retry_in)s s: %(error)s",
    events.AttemptFailed: _ATTEMPT + "failed for good after %(duration)s s: %(error)s",
    events.AttemptCancelled: _ATTEMPT + "cancelled its chain after %(duration)s s: %(error)s",
    events.AttemptWaiting: _ATTEMPT + "waits for %(blockers)s chain(s) after %(duration)s s",
    events.AttemptReleased: _ATTEMPT + "was released after %(duration)s s, and does not count",
    events.AttemptAborted: _ATTEMPT + "was aborted: %(reason)s",
    events.HandlerKilled: "the process of " + _ATTEMPT + "was killed: %(reason)s",
    events.FinishRejected: _ATTEMPT + "was not committed: %(reason)s",
    events.ErrorAfterCompletion: _ATTEMPT + "raised after its completion was stored, which stands: %(error)s",
    events.AfterAttemptFailed: _ATTEMPT + "is written without what its after_attempt would have changed: %(error)s",
    events.FinishFailed: _ATTEMPT + "could not store its finish; the job runs again when its lease expires: %(error)s",
    events.SparkProgressed: _ATTEMPT + "has %(done)s of %(known)s Spark tasks done, %(active)s run",
    events.SparkUnreachable: "Spark does not answer to the %(operation)s of " + _ATTEMPT + "(tried again): %(error)s",
    events.LeasesRenewed: "worker %(worker)s renewed %(count)s leases and lost %(lost)s",
    events.StoreCallFailed: "%(operation)s of worker %(worker)s failed at the store and is tried again: %(error)s",
    events.RetentionMissing: "worker %(worker)s has no retention for %(types)s: closed chains of these types fill the "
    "server's memory, which refuses all writes once it is full. Set retention=, or result_ttl= of each start",
    events.StoreWarningRaised: "jobs of %(adapter)s are at risk (%(risk)s): %(advice)s",
    events.ListenerLost: "%(adapter)s hears no notifications, again in %(retry_in)s s: %(error)s",
    events.ListenerRestored: "%(adapter)s hears notifications again",
    events.NotificationDropped: "%(adapter)s could not send a notification: %(error)s",
    events.ObserverFailed: "%(adapter)s raised at %(event)s: %(error)s",
}
"""The text of each event. Of an event that is not here, the record shows the name and all fields."""


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
    ``queuert_error_kind``, ``queuert_error_type`` and ``queuert_error_traceback``, the only value that may contain
    line breaks. Everything that is not printable is escaped, so that no id or message can forge an entry.

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
        level = _LEVELS.get(event.level, logging.INFO)
        if self._logger.isEnabledFor(level):
            kind = type(event)
            names, sentence = _form(kind)
            # Never empty, since logging takes an empty mapping for a positional argument.
            shown: dict[str, object] = {"event": kind.__name__}
            attributes: dict[str, object] = {"queuert_event": kind.__name__}
            for name, attribute in names:
                value = getattr(event, name)
                if type(value) is str:
                    shown[name] = attributes[attribute] = escape(value)
                elif type(value) is int:
                    shown[name] = attributes[attribute] = value
                elif isinstance(value, JobError):
                    shown[name] = attributes[attribute] = escape(str(value))
                    _add_error(attributes, attribute, value)
                else:
                    shown[name], attributes[attribute] = _shown(value), _attribute(value)
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
