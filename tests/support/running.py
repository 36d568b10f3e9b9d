"""An attempt that no worker runs, to be bound to a context."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from queuert.observability.context import FIELDS


@dataclass
class UnrunAttempt:
    """What the current code runs for, as it is seen by logging."""

    job_id: str = "j"
    chain_id: str = "c"
    attempt: int = 2

    def fields(self) -> dict[str, object]:
        """Return the fields of the log records of its handler."""
        return dict(zip(FIELDS, ("w", self.job_id, self.chain_id, "t", self.attempt), strict=True))

    def waits_for(self, job_types: Collection[str]) -> None:
        """Raise AssertionError: nothing waits."""
        raise AssertionError
