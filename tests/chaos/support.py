"""A history without faults, made by hand: a violation is planted in it, and the invariant must tell of it."""

from __future__ import annotations

from typing import Any

import queuert.testing.chaos.chain_invariants
import queuert.testing.chaos.invariants_of_sharing
import queuert.testing.chaos.invariants_of_webhooks  # noqa: F401  (they register their checks)
from queuert.testing.chaos.history import History

_BEGAN = 1_000.0


class Planted:
    """A history with a few jobs that lived as they should."""

    def __init__(self, store: str = "postgres") -> None:
        self.history = History(store)
        self._number = 0

    def change(self, job_id: str, old: str | None, new: str | None, **more: Any) -> None:
        """A change of a job's status, with what belongs to it."""
        self._number += 1
        at = _BEGAN + self._number
        kind = "insert" if old is None else "delete" if new is None else "update"
        row: dict[str, Any] = {
            "number": self._number, "kind": kind, "job_id": job_id, "chain_id": job_id, "type": "chaos.effect",
            "chain_index": 0, "at": at, "committed": at, "began": at, "tx": str(self._number), "old_status": old,
            "new_status": new, "old_attempt": 0, "new_attempt": 0, "old_uncounted": 0, "new_uncounted": 0,
            "old_expirations": 0, "new_expirations": 0, "old_scheduled": _BEGAN, "new_scheduled": _BEGAN,
        }  # fmt: skip
        self.history.add("c", [row | more])

    def job(self, id: str, status: str = "completed", **more: Any) -> None:
        """A job at the end."""
        row: dict[str, Any] = {
            "id": id, "type": "chaos.effect", "chain_id": id, "chain_index": 0, "status": status,
            "chain_status": status if status != "ready" else "open", "attempt": 1, "uncounted": 0,
            "lease_expirations": 0, "open_blockers": 0, "created_at": _BEGAN, "chain_closed_at": _BEGAN + 100,
        }  # fmt: skip
        self.history.add("s", [row | more])

    def requested(self, id: str, how: str = "start", op: str = "1", outcome: str = "ack", **more: Any) -> None:
        """A call of a client."""
        row = {"client": "0", "op": op, "how": how, "id": id, "outcome": outcome, "result_id": id, "key": ""}
        self.history.add("a", [row | more])

    def effect(self, id: str, attempt: int = 1, token: str = "t1") -> None:
        """An effect that stands."""
        self.history.add("e", [{"job_id": id, "attempt": attempt, "token": token}])

    def lived(self, id: str, *, output: str | None = None, **more: Any) -> None:
        """A job that was started, claimed, and completed with its effect."""
        self.requested(id)
        self.change(id, None, "ready", **more)
        self.claimed(id, 1, "t1", **more)
        held = {"old_attempt": 1, "new_attempt": 1, "old_token": "t1", "new_token": "t1"}
        self.change(id, "running", "completed", output=output, **held, **more)
        self.effect(id)
        self.job(id, output=output, **more)

    def claimed(self, id: str, attempt: int, token: str, old: str = "ready", **more: Any) -> None:
        """A claim."""
        fields = {"old_attempt": attempt - 1, "new_attempt": attempt, "new_token": token} | more
        self.change(id, old, "running", **fields)

    def reaped(self, id: str, attempt: int, token: str, *, late: float = 0.5) -> None:
        """A lease that was reaped so many seconds after its end."""
        self.change(
            id, "running", "ready", old_attempt=attempt, new_attempt=attempt, old_token=token,
            old_lease=_BEGAN + self._number + 1 - late, new_expirations=1,
        )  # fmt: skip

    def fact(self, name: str, value: Any) -> None:
        """A fact of the run."""
        self.history.add("facts", [{"name": name, "value": value}])


def healthy(store: str = "postgres") -> Planted:
    """Two chains: one that went through, and one whose first attempt was reaped."""
    planted = Planted(store)
    planted.lived("good")
    planted.requested("again")
    planted.change("again", None, "ready")
    planted.claimed("again", 1, "t1")
    planted.reaped("again", 1, "t1")
    planted.claimed("again", 2, "t2")
    planted.change("again", "running", "completed", old_attempt=2, new_attempt=2, old_token="t2", new_token="t2")
    planted.effect("again", 2, "t2")
    planted.job("again", attempt=2)
    return planted
