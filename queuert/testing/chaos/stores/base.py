"""What a run asks of the store that it owns."""

from __future__ import annotations

from typing import Any, Protocol

from queuert.testing.chaos.history import History
from queuert.testing.fault_proxy import FaultProxy

CLAIM, START = "claim", "start"
"""What a process may be frozen in the midst of."""


class OwnedStore(Protocol):
    """A store that is started, broken, asked and read by the run. Methods that ask raise while it is down."""

    name: str
    broken_since: float | None
    """When the last fault of the store began to be one, where it had to wait for its turn before."""

    @property
    def url(self) -> str:
        """The address without a proxy."""
        ...

    @property
    def has_server(self) -> bool:
        """Whether there is a server, with connections that can be broken."""
        ...

    def start(self) -> None:
        """Start it, with its schema, and with an audit of every job."""
        ...

    def close(self) -> None:
        """Stop it, and remove it."""
        ...

    def proxy(self) -> FaultProxy:
        """A proxy before the server, not started."""
        ...

    def address_in(self, proxy: FaultProxy) -> str:
        """The address through a proxy."""
        ...

    def open_jobs(self) -> int:
        """Jobs that have not ended, without those that nobody handles."""
        ...

    def leases_of(self, pid: int) -> list[tuple[str, int]]:
        """The jobs, with their attempts, that workers with this process id in their name hold."""
        ...

    def waits_for(self, pid: int) -> bool:
        """Whether nobody can write before this process, which is frozen, goes on."""
        ...

    def sessions(self) -> int | None:
        """Sessions of others than the run itself that the server has now; None where there is no server."""
        ...

    def stands_in(self, pid: int, what: str) -> bool:
        """Whether this process, which is frozen, stands in a transaction of its own: in a `claim` or in a `start`."""
        ...

    def session_list(self) -> list[str]:
        """What the server says of all sessions, a line each; what it does not say is left out. Never raises."""
        ...

    def break_it(self, kind: str, measure: float) -> tuple[float | None, str]:
        """Do what a kind of fault of the server says: when it served again, if it had stopped, and what was done."""
        ...

    def last_words(self) -> dict[str, Any]:
        """Facts to note when the faults have stopped and the jobs have ended, before the processes are stopped."""
        ...

    def collect(self, history: History) -> None:
        """Read the tables `c`, `e`, `s`, `b`, `business` and `facts`, when all processes are gone."""
        ...
