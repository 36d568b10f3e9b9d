"""How closed chains go: values of the contract.

The operations are the methods of :class:`~queuert.state.async_retention.AsyncRetentionStore`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from queuert.policies import Retention

STAGING_KEPT = 86_400.0
"""Seconds after which rows that were staged for a bulk write, and not touched since, are a dead driver's."""

WRITES_KEPT = 30 * 86_400.0
"""Seconds for which a bulk write is remembered at least, so that it can be repeated; and while any of its chains is."""


@dataclass(frozen=True, slots=True)
class StagingUpkeep:
    """What of bulk writes was removed."""

    dropped: tuple[str, ...] = ()
    """Names of staging tables."""
    forgotten: int = 0
    """Bulk writes that were committed long ago, and none of whose chains is left."""


@dataclass(frozen=True, slots=True)
class RetireRequest:
    """Delete chains that have expired, and those that the policies of their types do not keep."""

    policies: Mapping[str, Retention] = field(default_factory=dict)
    """By chain type. They concern chains without an end of their own."""
    limit: int = 1_000
    """How many chains are looked at, at most."""
    cursor: str | None = None
    """Where the look before this one ended; None begins anew."""


@dataclass(frozen=True, slots=True)
class RetireResult:
    """The chains that were deleted, and whether there is more to look at."""

    chain_ids: Sequence[str]
    cursor: str | None
    """Give it to the next call; None when the end was reached."""
