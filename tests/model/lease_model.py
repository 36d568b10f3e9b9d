"""The life of a lease as a model that is small enough to be looked at in every state that it can reach.

One job, two workers, a server. A worker sends a statement; it is carried out later, or never; its answer arrives later,
or never. Between any two steps the clock may go on, a worker may stand still or die, the job be cancelled. The rules
are those of ``docs/design/claim-and-lease.md``, each a method here as it is a statement there. A rule can be broken by
its name, to see that the invariants are not empty words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

LEASE = 2
"""Ticks of the clock."""

Status = Literal["ready", "running", "completed", "cancelled"]


class Row(NamedTuple):
    """What the server knows. A token names one claim; tokens are drawn in order, so that states can be compared."""

    status: Status = "ready"
    attempt: int = 0
    token: int = 0
    lease_until: int = 0
    drawn: int = 0
    effects: tuple[int, ...] = ()
    """The tokens whose completion was committed."""
    claims: tuple[int, ...] = ()
    """The attempt numbers, in the order of the claims."""
    after_the_end: bool = False
    """Whether anything was written after the job was final."""
    taken_away: bool = False
    """Whether a lease ended that had not expired, without its holder's doing."""


class Message(NamedTuple):
    """A statement on its way to the server, or (with ``answer``) back from it."""

    kind: Literal["claim", "renew", "complete", "release"]
    token: int
    sent_at: int
    answer: bool | None = None


class Worker(NamedTuple):
    """What a worker believes."""

    token: int = 0
    """Of the attempt whose handler runs; 0: none."""
    deadline: int = 0
    """By its own clock, which goes as the server's does: until then it may run and commit."""
    message: Message | None = None
    completing: bool = False
    overran: bool = False
    """Whether it asked for something in the name of a lease that was over by its own clock."""


class State(NamedTuple):
    """The whole of it. ``seen`` is what a reaper has read, and not acted upon yet."""

    clock: int = 0
    row: Row = Row()
    workers: tuple[Worker, ...] = (Worker(), Worker())
    seen: int | None = None


class Model:
    """All steps that are possible from a state.

    Args:
        broken: the name of a rule that does not hold.
        claims: how many claims there may be in all.
        ticks: how long it goes on.
    """

    def __init__(self, broken: str | None = None, *, claims: int = 3, ticks: int = 5) -> None:
        self._broken = broken
        self._claims = claims
        self._ticks = ticks

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Every step from here, with its name."""
        if state.clock < self._ticks:
            yield "tick", state._replace(clock=state.clock + 1)
        yield from self._reaper(state)
        if state.row.status in ("ready", "running"):
            yield "cancel", state._replace(row=state.row._replace(status="cancelled", token=0))
        for index, worker in enumerate(state.workers):
            for name, row, changed in self._worker(state, worker):
                others = (*state.workers[:index], *state.workers[index + 1 :])
                # Which worker is which makes no difference.
                workers = tuple(sorted((*others, changed), key=repr))
                yield f"{name} {index}", state._replace(row=row, workers=workers)

    # --- the server ---------------------------------------------------------------------------------------------------

    def _reaper(self, state: State) -> Iterator[tuple[str, State]]:
        row = state.row
        if row.status == "running" and row.lease_until <= state.clock and state.seen is None:
            yield "reaper looks", state._replace(seen=row.token)
        if state.seen is not None:
            # Between its look and its statement the lease may have been renewed, or the job ended or claimed anew.
            there = row.status == "running" and row.token == state.seen and row.lease_until <= state.clock
            if self._broken == "the reaper looks again":
                there = True
            if not there:
                yield "reaper finds nothing", state._replace(seen=None)
                return
            early = row.status == "running" and row.lease_until > state.clock
            late = row.status in ("completed", "cancelled")
            taken = row._replace(status="ready", token=0)
            taken = taken._replace(taken_away=row.taken_away or early, after_the_end=row.after_the_end or late)
            yield "reap", state._replace(seen=None, row=taken)

    def _carried_out(self, state: State, message: Message) -> tuple[Row, bool]:
        row = state.row
        match message.kind:
            case "claim":
                return self._claim(state, message)
            case "renew":
                if self._holds(row, message.token, "a renewal names its token"):
                    return row._replace(lease_until=state.clock + LEASE), True
            case "complete":
                if self._holds(row, message.token, "a completion names its token"):
                    return self._completed(row, message.token), True
                # Asked again: it may have been carried out the first time.
                return row, row.status == "completed" and row.effects[-1:] == (message.token,)
            case "release":
                if self._holds(row, message.token, "a release names its token"):
                    return self._released(row, message.token), True
        return row, False

    def _holds(self, row: Row, token: int, rule: str) -> bool:
        if self._broken == rule:
            return row.status == "running"
        if self._broken == "a final job stays as it is":
            return row.token == token or row.status in ("completed", "cancelled")
        return row.status == "running" and row.token == token

    def _claim(self, state: State, message: Message) -> tuple[Row, bool]:
        row = state.row
        free = row.status == "ready" or (self._broken == "a claim takes what is free" and row.status == "running")
        if not free or len(row.claims) >= self._claims:
            return row, False
        counted = row.attempt if self._broken == "a claim counts the attempt" else row.attempt + 1
        claimed = row._replace(status="running", attempt=counted, token=message.token)
        return claimed._replace(lease_until=state.clock + LEASE, claims=(*row.claims, counted)), True

    @staticmethod
    def _completed(row: Row, token: int) -> Row:
        late = row.status in ("completed", "cancelled")
        done = row._replace(status="completed", effects=(*row.effects, token))
        return done._replace(after_the_end=row.after_the_end or late)

    @staticmethod
    def _released(row: Row, token: int) -> Row:
        """The attempt does not count: its handler never ran."""
        given = row._replace(status="ready", token=0, attempt=row.attempt - 1, claims=row.claims[:-1])
        return given._replace(taken_away=row.taken_away or row.token != token)

    # --- a worker -----------------------------------------------------------------------------------------------------

    def _worker(self, state: State, worker: Worker) -> Iterator[tuple[str, Row, Worker]]:
        row, message = state.row, worker.message
        if worker.token or message:
            yield "dies", row, Worker()
        if message is not None:
            yield from self._under_way(state, worker, message)
        elif worker.token:
            yield from self._running(state, worker)
        elif row.drawn < self._claims:
            token = 1 if self._broken == "a token is used once" else row.drawn + 1
            asks = Message("claim", token, state.clock)
            yield "asks for a job", row._replace(drawn=row.drawn + 1), worker._replace(message=asks)

    def _running(self, state: State, worker: Worker) -> Iterator[tuple[str, Row, Worker]]:
        row = state.row
        believes = state.clock < worker.deadline or self._broken == "a worker stops at its deadline"
        if not believes:
            yield "gives up", row, Worker()
            return
        worker = worker._replace(overran=state.clock >= worker.deadline)
        again = Message("complete", worker.token, state.clock)
        yield "completes", row, worker._replace(message=again, completing=True)
        if not worker.completing:
            yield "renews", row, worker._replace(message=Message("renew", worker.token, state.clock))

    def _under_way(self, state: State, worker: Worker, message: Message) -> Iterator[tuple[str, Row, Worker]]:
        row = state.row
        if message.answer is None:
            changed, done = self._carried_out(state, message)
            yield f"{message.kind} is carried out", changed, worker._replace(message=message._replace(answer=done))
            yield f"{message.kind} is lost", row, self._without_answer(state, worker, message)
            return
        yield "answer is lost", row, self._without_answer(state, worker, message)
        yield "answer arrives", row, self._answered(state, worker, message)

    def _without_answer(self, state: State, worker: Worker, message: Message) -> Worker:
        """What was asked is in doubt."""
        if message.kind == "claim":
            # Whatever carries the token is released.
            return Worker(message=Message("release", message.token, state.clock))
        return worker._replace(message=None) if message.kind != "release" else Worker()

    def _answered(self, state: State, worker: Worker, message: Message) -> Worker:
        since = state.clock if self._broken == "a lease counts from before it was asked for" else message.sent_at
        match message.kind:
            case "claim":
                return Worker(token=message.token, deadline=since + LEASE) if message.answer else Worker()
            case "renew":
                return worker._replace(message=None, deadline=since + LEASE) if message.answer else Worker()
            case _:
                return Worker()


RULES = (
    "a claim takes what is free",
    "a claim counts the attempt",
    "a token is used once",
    "a renewal names its token",
    "a completion names its token",
    "a release names its token",
    "a final job stays as it is",
    "a lease counts from before it was asked for",
    "a worker stops at its deadline",
    "the reaper looks again",
)
"""What can be broken."""


def violation(state: State) -> str | None:
    """The invariant that this state breaks, if any."""
    row = state.row
    believers = [one for one in state.workers if one.token and state.clock < one.deadline]
    if len(believers) > 1 and row.status == "running":
        return "two workers believe that they hold the job"
    if any(one.deadline > row.lease_until for one in believers if one.token == row.token and row.status == "running"):
        return "a worker believes in its lease for longer than the server does"
    if len(row.effects) > 1:
        return "it was completed twice"
    if row.effects and row.status == "completed" and row.effects[-1] != row.token:
        return "it was completed by a lease that does not hold it"
    if row.after_the_end:
        return "something was written after the end"
    if row.taken_away:
        return "a lease was taken away before it expired"
    if any(one.overran for one in state.workers):
        return "a worker went on after its deadline"
    if list(row.claims) != list(range(1, len(row.claims) + 1)):
        return "an attempt was not counted, or counted twice"
    return None


@dataclass(frozen=True, slots=True)
class Explored:
    """What was found: how many states there are, and the shortest way to one that breaks an invariant."""

    states: int
    broken: str | None
    way: tuple[str, ...]


def explore(model: Model) -> Explored:
    """Look at every state, the nearest first."""
    first = State()
    came: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        broken = violation(state)
        if broken is not None:
            return Explored(len(came), broken, _way(came, state))
        for name, following in model.steps(state):
            if following not in came:
                came[following] = (state, name)
                waiting.append(following)
    return Explored(len(came), None, ())


def _way(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps: list[str] = []
    while (last := came[state]) is not None:
        state, name = last
        steps.append(name)
    return tuple(reversed(steps))
