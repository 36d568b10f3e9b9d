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
from queuert.new_chain import checked_priority
from queuert.run_at import RunAt
from queuert.state.paging import ChainFilter
from queuert.texts import check_text, safe_text

COUNTED_CHAINS = 10_000
"""Chains at which the counting of a preview ends."""

_MAX_REASON = 2_000


def checked_bound(counted_up_to: int) -> int:
    """Return the number at which the counting of a preview ends.

    Raises:
        ConfigurationError: it is no integer above 0.
    """
    if type(counted_up_to) is not int or counted_up_to < 1:
        raise ConfigurationError(f"counted_up_to must be an integer above 0, got {counted_up_to!r}")
    return counted_up_to


class BulkArguments:
    """The action and the filter of a bulk operation, checked.

    Raises:
        ConfigurationError: the action does not exist or cannot change chains of a status, a time has no time zone, or
            an attribute is of the wrong type.
        InvalidIdentifierError: the name of a job type or an attribute is not valid.
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
        self._error = error
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
            ConfigurationError: an argument is missing that the action needs, or was given that it does not use.
            InvalidIdentifierError: ``requested_by`` is not valid.
        """
        self._check("run_at", run_at, used_by=BulkAction.RESCHEDULE, required=True)
        self._check("priority", priority, used_by=BulkAction.REPRIORITIZE, required=True)
        self._check("reason", reason, used_by=BulkAction.CANCEL, required=False)
        return BulkRequest(
            self.action,
            self.filter,
            check_text(requested_by, what="requested_by"),
            reason=None if reason is None else safe_text(reason, _MAX_REASON),
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
