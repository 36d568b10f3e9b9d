"""How closed chains go: values of the contract.

The operations are the methods of :class:`~queuert.state.async_retention.AsyncRetentionStore`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from queuert.policies import Retention


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
