"""The interface of a run's own store."""

from __future__ import annotations

from typing import Any, Protocol

from queuert.testing.chaos.history import History
from queuert.testing.fault_proxy import FaultProxy

CLAIM, START = "claim", "start"
"""The operation in which a process may be frozen."""


class OwnedStore(Protocol):
    """A store that the run starts, breaks, queries and reads. Methods that query raise while it is down."""

    name: str
    broken_since: float | None
    """When the last fault of the store took effect, if it had to wait for its turn."""

    @property
    def url(self) -> str:
        """Return the address without a proxy."""
        ...

    @property
    def has_server(self) -> bool:
        """Whether there is a server, with connections that can be broken."""
        ...

    def start(self) -> None:
        """Start the store, create its schema, and record every change of a job."""
        ...

    def close(self) -> None:
        """Stop and remove the store."""
        ...

    def proxy(self) -> FaultProxy:
        """Return a proxy of the server, not started."""
        ...

    def address_in(self, proxy: FaultProxy) -> str:
        """Return the address through a proxy."""
        ...

    def open_jobs(self) -> int:
        """Return how many jobs have not ended, without those that no worker handles."""
        ...

    def leases_of(self, pid: int) -> list[tuple[str, int]]:
        """Return the jobs, with their attempts, that are held by workers with this process id in their names."""
        ...

    def waits_for(self, pid: int) -> bool:
        """Whether this process, which is frozen, prevents all others from writing."""
        ...

    def sessions(self) -> int | None:
        """Return how many sessions the server has, without those of the run itself; None if there is no server."""
        ...

    def stands_in(self, pid: int, what: str) -> bool:
        """Whether this process, which is frozen, is inside a transaction of its own: of a `claim` or of a `start`."""
        ...

    def session_list(self) -> list[str]:
        """Describe all sessions of the server, a line each; leave out what it does not report. Never raises."""
        ...

    def break_it(self, kind: str, measure: float) -> tuple[float | None, str]:
        """Cause a fault of the server; return when it was available again, if it had stopped, and a description."""
        ...

    def last_words(self) -> dict[str, Any]:
        """Return facts to record when the faults have stopped and the jobs have ended, before the processes are
        stopped."""
        ...

    def collect(self, history: History) -> None:
        """Read the tables `c`, `e`, `s`, `b`, `business` and `facts`, after all processes have ended."""
        ...
