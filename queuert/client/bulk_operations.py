"""Validates the arguments of bulk operations."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from queuert.attributes import GivenAttributes, attribute_filter
from queuert.bulk_operations import BulkAction, BulkRequest, bulk_statuses, checked_action
from queuert.client.arguments import checked_time, known_statuses, type_filter
from queuert.client.management import checked_run_at
from queuert.client.schedules import JobTypeReference
from queuert.errors import ConfigurationError
from queuert.jobs import ChainStatus
from queuert.new_chain import checked_priority, listed
from queuert.run_at import RunAt
from queuert.state.paging import ChainFilter
from queuert.texts import check_text, checked_reason

COUNTED_CHAINS = 10_000
"""Chains at which the counting of a preview ends."""

_MAX_SUMMARY = 4_000
"""The most characters of an error that chains are selected by: more than any summary of a worker has."""


def checked_bound(name: str, bound: int, *, at_least: int = 1) -> int:
    """Return the number at which something ends, such as the counting of a preview.

    Raises:
        ConfigurationError: it is no integer, or too low.
    """
    if type(bound) is not int or bound < at_least:
        raise ConfigurationError(f"{name} must be an integer of at least {at_least}, got {bound!r:.200}")
    return bound


def known_actions(actions: Iterable[BulkAction | str] | None) -> frozenset[BulkAction] | None:
    """Return the actions of which operations are listed; None for all.

    Raises:
        ConfigurationError: one does not exist, or ``actions`` is a string or another single object.
    """
    if actions is None:
        return None
    if isinstance(actions, str):
        raise ConfigurationError(f"actions must be a sequence of {', '.join(BulkAction)}, got {str(actions)!r}")
    return frozenset(map(checked_action, listed(actions, f"actions must be a sequence of {', '.join(BulkAction)}")))


class BulkArguments:
    """The action and the filter of a bulk operation, checked.

    Raises:
        ConfigurationError: the action does not exist or cannot change chains of a status, a time has no time zone, or
            an attribute is of the wrong type.
        InvalidIdentifierError: the name of a job type, an attribute or the error is not valid.
    """

    def __init__(
        self,
        action: BulkAction | str,
        job_types: Iterable[JobTypeReference] | None,
        statuses: Iterable[ChainStatus | str] | None,
        attributes: GivenAttributes | None,
        since: datetime | None,
        before: datetime | None,
        error: str | None,
    ) -> None:
        self.action = checked_action(action)
        self._error = None
        if error is not None:
            self._error = check_text(error, what="error", max_chars=_MAX_SUMMARY, max_bytes=4 * _MAX_SUMMARY)
        self.filter = ChainFilter(
            types=type_filter(job_types),
            statuses=bulk_statuses(self.action, known_statuses(ChainStatus, statuses)),
            attributes=attribute_filter(attributes),
            since=checked_time(since, name="since"),
            before=checked_time(before, name="before"),
        )

    def counted(self) -> BulkRequest:
        """Return what the operation would be asked to do, as far as it decides which chains are concerned."""
        return BulkRequest(self.action, self.filter, "", error=self._error)

    def request(
        self, requested_by: str, *, reason: str | None, run_at: RunAt | None, priority: int | None
    ) -> BulkRequest:
        """Return what the operation is asked to do.

        Raises:
            ConfigurationError: an argument is missing that the action needs, or was given that it does not use, or is
                of the wrong type.
            InvalidIdentifierError: ``requested_by`` is not valid.
        """
        self._check("run_at", run_at, used_by=BulkAction.RESCHEDULE, required=True)
        self._check("priority", priority, used_by=BulkAction.REPRIORITIZE, required=True)
        self._check("reason", reason, used_by=BulkAction.CANCEL, required=False)
        return BulkRequest(
            self.action,
            self.filter,
            check_text(requested_by, what="requested_by"),
            reason=None if reason is None else checked_reason(reason),
            run_at=None if run_at is None else checked_run_at(run_at),
            priority=None if priority is None else checked_priority(priority),
            error=self._error,
        )

    def _check(self, name: str, value: object, *, used_by: BulkAction, required: bool) -> None:
        if self.action is used_by:
            if required and value is None:
                raise ConfigurationError(f"a bulk {self.action} needs {name}, got None")
        elif value is not None:
            raise ConfigurationError(f"{name} must only be given to a bulk {used_by}, got a bulk {self.action}")
