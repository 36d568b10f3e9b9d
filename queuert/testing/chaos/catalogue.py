"""The kinds of fault, the stores that each applies to, and how often a plan draws each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PG = frozenset({"postgres"})
REDIS = frozenset({"redis"})
SQLITE = frozenset({"sqlite"})
SERVERS = PG | REDIS
ALL = SERVERS | SQLITE


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault."""

    name: str
    stores: frozenset[str]
    weight: int
    """About how many of a thousand faults on Postgres are of this kind."""
    target: str
    """What the fault acts on: a worker, a client, the server, the receiver of webhooks, or chains."""
    about: str


_KINDS = (
    # processes
    Kind("kill worker", ALL, 250, "worker", "SIGKILL at any moment"),
    Kind("kill worker in handler", ALL, 90, "worker", "SIGKILL while a handler of it runs"),
    Kind("kill worker in commit", PG, 15, "worker", "SIGKILL while its COMMIT is under way and its answer lost"),
    Kind("kill client", ALL, 30, "client", "SIGKILL between or in its calls; its successor repeats what is in doubt"),
    Kind("freeze worker", ALL, 50, "worker", "SIGSTOP for longer than the lease, then SIGCONT"),
    Kind("zombie while next runs", ALL, 60, "worker", "frozen past its lease, resumed while attempt two runs"),
    Kind("zombie after next ended", ALL, 60, "worker", "frozen past its lease, resumed when attempt two has ended"),
    Kind("stop worker", ALL, 35, "worker", "SIGTERM, with grace"),
    Kind("hurry worker", ALL, 15, "worker", "SIGTERM twice: the grace is over"),
    Kind("stop worker at start", ALL, 15, "worker", "SIGTERM while it starts"),
    Kind("worker with a wrong clock", SERVERS, 12, "worker", "its clock two hours off, for some seconds"),
    Kind("freeze worker in claim", PG, 10, "worker", "SIGSTOP while it has the lock of the types with limits"),
    Kind("freeze client in start", PG, 8, "client", "SIGSTOP inside of the transaction of a start"),
    # the server
    Kind("kill postgres", PG, 10, "server", "SIGKILL of the postmaster"),
    Kind("crash postgres", PG, 12, "server", "immediate shutdown, and start"),
    Kind("kill backend", PG, 12, "server", "SIGKILL of one backend: crash recovery of all"),
    Kind("restart postgres", PG, 10, "server", "fast shutdown, and start"),
    Kind("terminate backends", PG, 40, "server", "pg_terminate_backend of some"),
    Kind("cancel statements", PG, 25, "server", "pg_cancel_backend of those that work"),
    Kind("terminate listeners", PG, 25, "server", "pg_terminate_backend of all that LISTEN"),
    Kind("lock rows", PG, 20, "server", "a stranger's transaction locks jobs"),
    Kind("lock table", PG, 10, "server", "a stranger's transaction locks the table of jobs"),
    Kind("kill redis", REDIS, 14, "server", "SIGKILL, and start from the append-only file"),
    Kind("restart redis", REDIS, 10, "server", "SIGTERM, and start"),
    Kind("pause redis", REDIS, 25, "server", "CLIENT PAUSE for longer than the lease"),
    Kind("kill redis clients", REDIS, 40, "server", "CLIENT KILL of all"),
    Kind("flush scripts", REDIS, 20, "server", "SCRIPT FLUSH"),
    Kind("lock file", SQLITE, 60, "server", "a stranger's transaction holds the write lock"),
    # the network
    Kind("black hole", SERVERS, 20, "worker", "nothing passes for longer than the lease, connections stay"),
    Kind("short black hole", SERVERS, 15, "worker", "nothing passes for shorter than the lease"),
    Kind("deaf worker", SERVERS, 12, "worker", "answers do not come for longer than the lease"),
    Kind("latency", SERVERS, 15, "worker", "50 ms in each direction"),
    Kind("reset connections", SERVERS, 25, "worker", "RST of all"),
    Kind("refuse connections", SERVERS, 15, "worker", "RST of all, and of new ones for a while"),
    Kind("cut in a message", SERVERS, 15, "worker", "RST after some bytes of an answer"),
    Kind("stop in a message", SERVERS, 15, "worker", "the rest of a request arrives later than the lease"),
    Kind("cut listeners", SERVERS, 20, "listeners", "notifications are cut off for some seconds: polling must do"),
    Kind("lose answer to commit", PG, 35, "worker", "COMMIT arrives, its answer does not"),
    Kind("lose commit", PG, 35, "worker", "the connection breaks before COMMIT arrives"),
    Kind("lose answer to client", SERVERS, 25, "client", "a start arrives, its answer does not"),
    Kind("lose request of client", SERVERS, 20, "client", "the connection breaks before a start arrives"),
    # the receiver of webhooks
    Kind("receiver down", ALL, 8, "receiver", "it refuses connections for some seconds"),
    Kind("receiver fails", ALL, 8, "receiver", "it answers 500 for some seconds"),
    Kind("receiver redirects", ALL, 8, "receiver", "it sends requests to another port for some seconds"),
    Kind("receiver slow", ALL, 8, "receiver", "it answers when the request has timed out, for some seconds"),
    # the work itself
    Kind("block event loop", ALL, 10, "chains", "a handler blocks the event loop for longer than the lease"),
    Kind("exhaust pool", ALL, 10, "chains", "more completing transactions at once than connections"),
    Kind("flood of fresh work", ALL, 5, "chains", "more than workers get done, beside a job that is to be tried again"),
    Kind("poison", ALL, 20, "chains", "jobs that exit, segfault, kill their process, use up its memory, or hang"),
    # management by a client
    Kind("start behind a running job", PG, 8, "chains", "in a transaction that stays open for longer than the lease"),
    Kind("cancel chains", ALL, 25, "chains", "whatever their jobs are at"),
    Kind("retry chains", ALL, 15, "chains", "cancelled ones, and failed ones"),
    Kind("trigger jobs", ALL, 12, "chains", "scheduled ones"),
    Kind("delete chains", ALL, 12, "chains", "open and closed ones"),
    Kind("complete chains", ALL, 12, "chains", "over the heads of their handlers"),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _KINDS}
"""The kinds by name."""

CRASHES = frozenset({"kill postgres", "crash postgres", "kill backend", "kill redis"})
WORKERS_KILLED = frozenset({"kill worker", "kill worker in handler", "kill worker in commit"})


def kinds_of(store: str) -> list[Kind]:
    """Return the kinds of fault that apply to a store."""
    return [kind for kind in KINDS.values() if store in kind.stores]
