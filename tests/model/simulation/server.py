"""A server of jobs on simulated time, and the ways to it, on which statements and answers get lost or come late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from random import Random
from typing import Any, NamedTuple, cast

from queuert.activity import ActivityMaintenance
from queuert.errors import LeaseLostError, QueuertError, StateError, StateUnavailableError
from queuert.event_log import EventLogMaintenance
from queuert.jobs import AbortReason
from queuert.limits import TypeTraits
from queuert.state.types import (
    ClaimedJob,
    DueSchedules,
    Finish,
    FinishResult,
    PruneResult,
    ScheduleRecord,
    StagingCleanup,
    WorkerlessCompletion,
)
from tests.model.simulation.outside import WholeStore
from tests.model.simulation.world import Process, Step, World


class Fate(Enum):
    """What becomes of a statement on its way."""

    FINE = auto()
    LOST = auto()
    """It never arrives."""
    UNANSWERED = auto()
    """It is carried out, and the answer never arrives."""
    REFUSED = auto()
    """The server does not take it, just now."""


@dataclass
class Weather:
    """How likely faults are on the way, for as long as there are any."""

    chance: Random
    rough_until: float = 0.0
    slow: float = 0.0
    """Share of the statements that are late by up to ``late`` seconds, each way."""
    late: float = 0.0
    lost: float = 0.0
    """Share of those that get lost; as many answers do."""
    refused: float = 0.0
    notifications_lost: float = 0.0

    def way(self, now: float) -> float:
        """Seconds for one way."""
        if now < self.rough_until and self.chance.random() < self.slow:
            return self.chance.uniform(0.0, self.late)
        return self.chance.uniform(0.000_5, 0.004)

    def fate(self, now: float) -> Fate:
        """What becomes of a statement."""
        if now < self.rough_until:
            drawn = self.chance.random()
            for share, fate in ((self.lost, Fate.LOST), (self.lost, Fate.UNANSWERED), (self.refused, Fate.REFUSED)):
                if drawn < share:
                    return fate
                drawn -= share
        return Fate.FINE

    def notification_arrives(self, now: float) -> bool:
        """Whether a notification does."""
        return now >= self.rough_until or self.chance.random() >= self.notifications_lost


class LockedError(Exception):
    """A row is in somebody's transaction: the statement waits."""


class Effect(NamedTuple):
    """That a transaction's writes stand."""

    job_id: str
    token: str
    attempt: int


@dataclass(eq=False)
class Held:
    """A transaction on the server."""

    job: ClaimedJob
    finish: Finish | None = None
    result: FinishResult | None = None
    over: bool = False
    idle: Step | None = None


class Server:
    """Carries statements out, one at a time, unless it is away or hangs."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world = world
        self.weather = weather
        self.store = WholeStore(lambda: world.now)
        self.effects: list[Effect] = []
        self.probes: Counter[str] = Counter()
        self.troubled_until = 0.0
        """When the last of its troubles ends."""
        self._away_until = 0.0
        self._hung_until = 0.0
        self._cut: dict[str, float] = {}
        self._waiting: list[Callable[[], object]] = []

    # --- faults -------------------------------------------------------------------------------------------------------

    def go_away(self, seconds: float) -> None:
        """Refuse connections for a while."""
        self._away_until = self._trouble(seconds)

    def hang(self, seconds: float) -> None:
        """Answer nobody for a while; then carry out what has come."""
        self._hung_until = self._trouble(seconds)

    def cut_off(self, process: Process, seconds: float) -> None:
        """Let nothing pass between this process and the server for a while."""
        self._cut[process.name] = self._trouble(seconds)

    def _trouble(self, seconds: float) -> float:
        until = self.world.now + seconds
        self.troubled_until = max(self.troubled_until, until)
        return until

    def is_cut_off(self, process: Process) -> bool:
        """Whether nothing passes."""
        return self.world.now < self._cut.get(process.name, 0.0)

    # --- statements ---------------------------------------------------------------------------------------------------

    def carry_out(self, call: Call, operation: Callable[[], Any], fate: Fate) -> None:
        """Do what was asked, and answer."""
        world = self.world
        if world.now < self._hung_until:
            world.at(self._hung_until, None, lambda: self.carry_out(call, operation, fate))
            return
        if world.now < self._away_until:
            call.answer(None, StateUnavailableError("the server is away"))
            return
        if fate is Fate.REFUSED:
            call.answer(None, StateError("the server refuses it"))
            return
        result, error = None, None
        try:
            result = operation()
        except LockedError:
            self.probes["waited for a row"] += 1
            self._waiting.append(lambda: self.carry_out(call, operation, fate))
            return
        except QueuertError as refusal:
            error = refusal
        if fate is Fate.UNANSWERED or self.is_cut_off(call.process):
            self.probes["carried out, and not answered"] += 1
            call.lose()
        else:
            call.answer(result, error)

    def finish(self, finishes: Sequence[Finish], *, wait: bool = True) -> list[FinishResult]:
        """End attempts."""
        locked = self.store.locked
        if wait and any(one.job.id in locked for one in finishes):
            raise LockedError
        results = self.store.finish(finishes)
        self.probes["finishes postponed"] += sum(one.locked for one in results)
        self.probes["finishes refused"] += sum(one.lost is not None for one in results)
        return results

    def cancel_chains(self, ids: Sequence[str], *, reason: str, **_: Any) -> Any:
        """Cancel, once nobody's transaction has a row."""
        self._check_unlocked(ids)
        return self.store.cancel_chains(ids, reason=reason)

    def complete_chains(
        self, completions: Sequence[WorkerlessCompletion], *, cancel: Sequence[str] = (), **_: Any
    ) -> Any:
        """Complete, once nobody's transaction has a row. No type here closes with its parent."""
        assert not cancel
        self._check_unlocked([one.chain_id for one in completions])
        return self.store.complete_chains(completions)

    def _check_unlocked(self, chains: Iterable[str]) -> None:
        if any(self.store.tail(chain).id in self.store.locked for chain in chains if chain in self.store.chains):
            raise LockedError

    def nothing(self, *_: Any, **__: Any) -> None:
        """What leaves no trace here: the worker registry, schedules."""

    open = put_schedules = remove_worker = nothing

    def record_heartbeat(self, *_: Any) -> datetime:
        """The time."""
        return self.store._moment(self.world.now)

    def list_type_traits(self, **_: Any) -> list[TypeTraits]:
        """None."""
        return []

    def maintain_activity(self) -> ActivityMaintenance:
        """There is none."""
        return ActivityMaintenance()

    def maintain_event_log(self) -> EventLogMaintenance:
        """There is no log."""
        return EventLogMaintenance()

    def clean_staging(self) -> StagingCleanup:
        """There is no staging."""
        return StagingCleanup()

    def due_schedules(self, *_: Any) -> DueSchedules:
        """None."""
        return DueSchedules(self.store._moment(self.world.now), (), None)

    def list_schedules(self) -> list[ScheduleRecord]:
        """None."""
        return []

    def prune(self, *_: Any) -> PruneResult:
        """Everything is kept."""
        return PruneResult((), None)

    def operation(self, name: str) -> Callable[..., Any]:
        """What is done for a statement."""
        return cast("Callable[..., Any]", getattr(self, name, None) or getattr(self.store, name))

    # --- transactions -------------------------------------------------------------------------------------------------

    def begin(self, job: ClaimedJob) -> Held:
        """Open a transaction that holds a job."""
        if job.id in self.store.locked:
            raise LockedError
        if self.store.holds(job.lease) is None:
            reason = self.store.lost_reason(job.lease) or AbortReason.ALREADY_COMPLETED
            raise LeaseLostError(job.id, reason)
        self.store.locked.add(job.id)
        held = Held(job)
        self._note_use(held)
        return held

    def _note_use(self, held: Held) -> None:
        """A transaction that idles for longer than its lease is ended."""
        if held.idle is not None:
            held.idle.cancel()
        held.idle = self.world.later(held.job.lease_seconds, None, lambda: self.abort(held))

    def write(self, held: Held, finish: Finish) -> FinishResult:
        """Write the finish, to stand when the transaction commits."""
        self._check(held)
        self._note_use(held)
        held.finish, held.result = finish, FinishResult(finish.job.id)
        return held.result

    @staticmethod
    def _check(held: Held) -> None:
        if held.over:
            raise StateUnavailableError("the server has ended the transaction")

    def end(self, held: Held, *, commits: bool) -> None:
        """Commit, or undo it."""
        if commits:
            self._commit(held)
        else:
            self.abort(held)

    def _commit(self, held: Held) -> None:
        self._check(held)
        self._end(held)
        if held.finish is not None and held.result is not None:
            held.result.due_types = self.store.finish_one(held.finish).due_types
            self.effects.append(Effect(held.job.id, held.job.token, held.job.attempt))

    def abort(self, held: Held) -> None:
        """Undo it."""
        if not held.over:
            self._end(held)

    def abort_all(self, several: Iterable[Held]) -> None:
        """Undo all of these."""
        for held in several:
            self.abort(held)

    def _end(self, held: Held) -> None:
        held.over = True
        if held.idle is not None:
            held.idle.cancel()
        self.store.locked.discard(held.job.id)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self.world.soon(None, one)

    def stands(self, held: Held) -> bool:
        """Whether a commit that nobody answered was done."""
        if held.job.id in self.store.locked:
            raise LockedError
        row = self.store.jobs[held.job.id]
        return row.token == held.job.token and not row.leased


class Call:
    """A statement under way, and whoever waits for its answer."""

    def __init__(self, link: LockedConnection, settle: Callable[[Any, Exception | None], None]) -> None:
        self.process = link.process
        self._link = link
        self._settle = settle
        self._timer: Step | None = None

    def wait(self, timeout: float) -> None:
        """Give up after so many seconds."""
        self._timer = self._link.server.world.later(timeout, None, self.time_out)

    def time_out(self) -> None:
        """There was no answer."""
        self.settle(None, StateUnavailableError("no answer in time"))

    def answer(self, result: Any, error: Exception | None) -> None:
        """Send the answer on its way."""
        server = self._link.server
        way = server.weather.way(server.world.now)
        server.world.later(way, None, lambda: self.settle(result, error))

    def lose(self) -> None:
        """Nothing comes back: the connection breaks, sooner or later."""
        server = self._link.server
        if server.weather.chance.random() < 0.7:
            server.world.later(server.weather.chance.uniform(0.001, 0.5), None, self.time_out)

    def settle(self, result: Any, error: Exception | None) -> None:
        """It is over."""
        if self in self._link.calls:
            del self._link.calls[self]
            if self._timer is not None:
                self._timer.cancel()
            self._settle(result, error)


class LockedConnection:
    """The way of one store object to the server."""

    def __init__(self, server: Server, process: Process, timeout: float) -> None:
        self.server = server
        self.process = process
        self.calls: dict[Call, None] = {}
        self._timeout = timeout

    def ask(self, operation: Callable[[], Any], settle: Callable[[Any, Exception | None], None]) -> None:
        """Send a statement; ``settle`` hears what came of it."""
        server, world = self.server, self.server.world
        call = Call(self, settle)
        self.calls[call] = None
        call.wait(self._timeout)
        fate = server.weather.fate(world.now)
        if fate is Fate.LOST or server.is_cut_off(self.process):
            call.lose()
        else:
            world.later(server.weather.way(world.now), None, lambda: server.carry_out(call, operation, fate))

    def close(self) -> None:
        """Let go of all connections: what is under way fails."""
        for call in list(self.calls):
            call.settle(None, StateUnavailableError("the store was closed"))
