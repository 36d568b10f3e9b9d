"""Bulk operations: one change to all chains of a filter. See ``docs/design/bulk-operations.md``.

A bulk operation is itself a chain: each of its jobs changes one batch and is continued by the next one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from queuert.attributes import by_name
from queuert.errors import ConfigurationError, JobTypeMismatchError
from queuert.job_types import BULK_OPERATION_TYPE, RESERVED
from queuert.jobs import AttributeValue, ChainRecord, ChainStatus, Job, JobError
from queuert.run_at import RunAt
from queuert.state.paging import ChainFilter
from queuert.state.records import json_value
from queuert.texts import printable

CLIENT_HOLDER = "client-"
"""Beginning of the name under which a client that does batches holds their leases; workers have names of their own."""

BATCH = 500
"""The most chains of one batch."""

_CLOSED = (ChainStatus.COMPLETED, ChainStatus.FAILED, ChainStatus.CANCELLED)


class BulkAction(StrEnum):
    """What a bulk operation does to each chain.

    Example:
        >>> BulkAction("retry") is BulkAction.RETRY
        True
    """

    RETRY = "retry"
    """Retry failed chains; with ``statuses`` cancelled ones, too."""
    CANCEL = "cancel"
    """Cancel open chains."""
    DELETE = "delete"
    """Delete closed chains, except those that are blockers of jobs that stay."""
    RESCHEDULE = "reschedule"
    """Give the jobs that open chains wait with another ``run_at``."""
    REPRIORITIZE = "reprioritize"
    """Give the jobs that open chains wait with another priority."""


_STATUSES: Mapping[BulkAction, tuple[tuple[ChainStatus, ...], tuple[ChainStatus, ...]]] = {
    BulkAction.RETRY: ((ChainStatus.FAILED,), (ChainStatus.FAILED, ChainStatus.CANCELLED)),
    BulkAction.CANCEL: ((ChainStatus.OPEN,), (ChainStatus.OPEN,)),
    BulkAction.DELETE: (_CLOSED, _CLOSED),
    BulkAction.RESCHEDULE: ((ChainStatus.OPEN,), (ChainStatus.OPEN,)),
    BulkAction.REPRIORITIZE: ((ChainStatus.OPEN,), (ChainStatus.OPEN,)),
}
"""For each action the statuses that it changes by default, and those that it can change."""


def checked_action(action: BulkAction | str) -> BulkAction:
    """Return the action.

    Raises:
        ConfigurationError: it does not exist.
    """
    try:
        return BulkAction(action)
    except ValueError:
        raise ConfigurationError(f"action must be among {', '.join(BulkAction)}, got {action!r}") from None


def bulk_statuses(action: BulkAction, statuses: tuple[ChainStatus, ...] | None) -> tuple[ChainStatus, ...]:
    """Return the statuses of the chains that the operation changes.

    Raises:
        ConfigurationError: the action cannot change chains of one of them, or there are none.
    """
    default, allowed = _STATUSES[action]
    if statuses is None:
        return default
    if not statuses or not set(statuses) <= set(allowed):
        given = ", ".join(statuses) or "none"
        raise ConfigurationError(f"statuses of a bulk {action} must be among {', '.join(allowed)}, got {given}")
    return statuses


@dataclass(frozen=True, slots=True)
class BulkRequest:
    """What a bulk operation is asked to do."""

    action: BulkAction
    filter: ChainFilter
    requested_by: str
    reason: str | None = None
    """For CANCEL: the message of the chains' error."""
    run_at: RunAt | None = None
    """For RESCHEDULE."""
    priority: int | None = None
    """For REPRIORITIZE."""
    error: str | None = None
    """Only chains whose error has this summary, or shows it so where what is not printable is escaped."""

    def selects(self, chain: ChainRecord) -> bool:
        """Whether a chain of the filter is concerned.

        Chains of the library's own types, such as other operations and deliveries of webhooks, are so only if their
        type is named: who cancels all that is open does not mean them.
        """
        if chain.type.startswith(RESERVED) and chain.type not in (self.filter.types or ()):
            return False
        if self.error is None:
            return True
        # The command line escapes what is not printable, and takes what it has shown.
        return chain.error is not None and self.error in (chain.error.summary, printable(chain.error.summary))

    def of_batch(self, started_at: datetime) -> ChainFilter:
        """Return the filter of the chains that there were when the operation was started."""
        before = self.filter.before
        return replace(self.filter, before=started_at if before is None else min(before, started_at))

    def fits(self, chain: ChainRecord, started_at: datetime) -> bool:
        """Whether a chain that was read is still what the operation was started for.

        A chain that was closed after the start of the operation is not: somebody has changed it meanwhile, perhaps this
        operation, in a batch that was interrupted.
        """
        return chain.closed_at is None or chain.closed_at <= started_at


@dataclass(frozen=True, slots=True)
class BulkProgress:
    """What the batches of a bulk operation have done so far."""

    started_at: datetime | None = None
    """When the operation was started, by the store's clock. The first batch reads it from its job."""
    cursor: str | None = None
    seen: int = 0
    changed: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class BulkPreview:
    """How many chains a bulk operation, or ``prune_chains``, would concern now.

    Attributes:
        count: the number of chains that match, of those that were looked at.
        more: whether counting ended at its bound: there may be more.
        groups: the same number by the type and the status of the chains, the largest first.

    Example::

        preview = client.preview_bulk_operation("retry", job_types=["resize"])
        print(f"{preview.count}{' or more' if preview.more else ''} chains")
    """

    count: int
    more: bool
    groups: Sequence[PreviewGroup] = ()


@dataclass(frozen=True, slots=True)
class PreviewGroup:
    """A number of chains of one type and status.

    Attributes:
        type: the type of the first job of the chains.
        status: their status.
        count: how many they are.
    """

    type: str
    status: ChainStatus
    count: int


def preview_of(groups: Counter[tuple[str, ChainStatus]], *, more: bool) -> BulkPreview:
    """Return the preview of chains that were counted by type and status."""
    ordered = sorted(groups.items(), key=lambda item: (-item[1], item[0]))
    return BulkPreview(groups.total(), more, tuple(PreviewGroup(*group, count) for group, count in ordered))


@dataclass(frozen=True, slots=True)
class BulkOperation:
    """A bulk operation, as it was when it was read. Times are UTC.

    Attributes:
        id: its id, which is that of its chain: cancel it with ``client.cancel_chain(id)``.
        action: what it does to each chain.
        requested_by: who asked for it.
        job_types: only chains whose first jobs have these job types; None for all.
        statuses: only chains of these statuses.
        attributes: only chains that have all of these.
        since: only chains that were started at this time or later.
        before: only chains that were started before this time.
        error_summary: only chains whose error has this ``summary``, as it is or as the command line shows it; None for
            all.
        reason: of a cancellation.
        run_at: when the jobs of a rescheduling may run.
        priority: the new priority of the jobs.
        status: ``open`` while there is something to do, then ``completed``, ``failed`` or ``cancelled``.
        seen: chains that were looked at so far.
        changed: chains that it has changed.
        skipped: chains that were changed by others meanwhile, or that could not be changed.
        created_at: when it was started.
        closed_at: when it ended; None while it is open.
        error: why it failed or was cancelled.

    Example::

        operation = client.start_bulk_operation("retry", requested_by="ana", job_types=["resize"])
        print(client.get_bulk_operation(operation.id).changed)
    """

    id: str
    action: BulkAction
    requested_by: str
    job_types: tuple[str, ...] | None
    statuses: tuple[ChainStatus, ...]
    attributes: Mapping[str, AttributeValue] = field(hash=False)
    since: datetime | None
    before: datetime | None
    reason: str | None
    run_at: RunAt | None
    priority: int | None
    status: ChainStatus
    seen: int
    changed: int
    skipped: int
    created_at: datetime
    closed_at: datetime | None
    error: JobError | None
    error_summary: str | None = None


def encode_batch(request: BulkRequest, progress: BulkProgress) -> str:
    """Return the input of the job that does the next batch."""
    return json.dumps(
        {
            "action": request.action.value,
            "requested_by": request.requested_by,
            "types": request.filter.types,
            "statuses": request.filter.statuses,
            "attributes": request.filter.attributes,
            "since": _text(request.filter.since),
            "before": _text(request.filter.before),
            "reason": request.reason,
            "delay": None if request.run_at is None else request.run_at.delay,
            "moment": None if request.run_at is None else _text(request.run_at.moment),
            "priority": request.priority,
            "error": request.error,
            "started_at": _text(progress.started_at),
            "cursor": progress.cursor,
            **encoded_counts(progress),
        }
    )


def encoded_counts(progress: BulkProgress) -> dict[str, int]:
    """Return the counts, which are the output of an operation that is completed."""
    return {"seen": progress.seen, "changed": progress.changed, "skipped": progress.skipped}


def decode_batch(value: Any) -> tuple[BulkRequest, BulkProgress]:
    """Return what :func:`encode_batch` wrote, from its decoded JSON.

    Raises:
        ConfigurationError: it is not such an input.
    """
    try:
        types, moment, delay = value["types"], _moment(value["moment"]), value["delay"]
        filter = ChainFilter(
            types=None if types is None else tuple(types),
            statuses=tuple(map(ChainStatus, value["statuses"])),
            since=_moment(value["since"]),
            before=_moment(value["before"]),
            attributes=tuple((name, text) for name, text in value["attributes"]),
        )
        request = BulkRequest(
            BulkAction(value["action"]),
            filter,
            value["requested_by"],
            reason=value["reason"],
            run_at=None if moment is None and delay is None else RunAt(delay, moment),
            priority=value["priority"],
            # Versions before did not write it.
            error=value.get("error"),
        )
        counts = [int(value[name]) for name in ("seen", "changed", "skipped")]
        return request, BulkProgress(_moment(value["started_at"]), value["cursor"], *counts)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise ConfigurationError(
            f"the input of a job of type {BULK_OPERATION_TYPE!r} must be written by start_bulk_operation()"
        ) from None


def bulk_operation(chain: ChainRecord, last_job: Job | None) -> BulkOperation:
    """Return the operation of a chain and its last job.

    Raises:
        JobTypeMismatchError: the chain is of another type.
        ConfigurationError: its input is not one of a bulk operation.
    """
    if chain.type != BULK_OPERATION_TYPE:
        raise JobTypeMismatchError(chain.id, BULK_OPERATION_TYPE, chain.type)
    request, progress = decode_batch(json_value(chain.input) if last_job is None else last_job.input)
    if chain.status is ChainStatus.COMPLETED:
        progress = _counted(progress, json_value(chain.output))
    return BulkOperation(
        id=chain.id,
        action=request.action,
        requested_by=request.requested_by,
        job_types=request.filter.types,
        statuses=request.filter.statuses or (),
        attributes=by_name(request.filter.attributes),
        since=request.filter.since,
        before=request.filter.before,
        reason=request.reason,
        run_at=request.run_at,
        priority=request.priority,
        status=chain.status,
        seen=progress.seen,
        changed=progress.changed,
        skipped=progress.skipped,
        created_at=chain.created_at,
        closed_at=chain.closed_at,
        error=chain.error,
        error_summary=request.error,
    )


def bulk_operations(chains: Iterable[ChainRecord], last_jobs: Iterable[Job | None]) -> tuple[BulkOperation, ...]:
    """Return the operations among chains of their type. Whoever may start chains can have written others."""
    found = []
    for chain, last_job in zip(chains, last_jobs, strict=True):
        with suppress(ConfigurationError):
            found.append(bulk_operation(chain, last_job))
    return tuple(found)


def _counted(progress: BulkProgress, output: Any) -> BulkProgress:
    """Return the progress with the counts of an output. Somebody else may have completed the operation in SQL."""
    names = ("seen", "changed", "skipped")
    if not isinstance(output, dict) or not all(type(output.get(name)) is int for name in names):
        return progress
    return replace(progress, **{name: output[name] for name in names})


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
