"""The plan of a seed: every start with its payload, and every fault with its moment, target and measure.

The same seed gives the same plan. The plan does not contain the order in which the processes act.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from queuert.testing.chaos.catalogue import Kind, kinds_of
from queuert.testing.chaos.profiles import ChaosSettings
from queuert.testing.chaos.workload import CLASH, POISONS, Task

_SETTLED = 0.97
"""Faults and starts end at this share of the duration."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its moment (seconds from the beginning), kind, target, and measure (0 to 1)."""

    number: int
    at: float
    kind: str
    target: int
    measure: float
    payload: str = ""


@dataclass(frozen=True, slots=True)
class Op:
    """One call of a client, at a moment in seconds from the beginning."""

    number: int
    at: float
    how: str
    """start, batch, clash, duel, group, transaction, rollback, custom."""
    ids: tuple[str, ...] = ()
    type: str = "chaos.plain"
    input: dict[str, Any] = field(default_factory=dict)
    delay: float = 0.0
    key: str = ""
    ttl: float = 0.0
    limit_key: str = ""
    size: int = 0
    """How many characters each input and each output has beside its content."""

    @property
    def starts(self) -> int:
        """How many chains the call starts, or requests."""
        return 1 if self.how == "duel" else len(self.ids)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a run that is decided before it."""

    ops: tuple[tuple[Op, ...], ...]
    """The calls by client."""
    faults: tuple[Fault, ...]

    @property
    def digest(self) -> str:
        """A fingerprint: two runs with the same one had the same starts and the same faults."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def make_plan(settings: ChaosSettings) -> Plan:
    """Make the plan of these settings."""
    ops = _ops(Random(f"{settings.seed}:ops"), settings)
    return Plan(ops, _faults(Random(f"{settings.seed}:faults"), settings))


# --- starts -----------------------------------------------------------------------------------------------------------

_MIX = (
    ("start", 26), ("batch", 26), ("group", 22), ("duel", 9), ("transaction", 6), ("rollback", 3), ("scheduled", 4),
    ("flaky", 3), ("fleeting", 2), ("limited", 2), ("keyed", 2), ("rated", 1), ("clash", 1),
)  # fmt: skip
_BIG = 950_000
_MOST_BIG = 24
_BIG_EVERY = 100
"""The rate of starts of a megabyte, and their maximum, because a history contains their outputs."""
_HOW = ("wrong", "recursion", "base", "text", "exit")


def _ops(random: Random, settings: ChaosSettings) -> tuple[tuple[Op, ...], ...]:
    made: list[Op] = []
    left = settings.job_count
    while left > 0:
        op = _op(random, settings, len(made))
        made.append(op)
        left -= op.starts if op.how != "rollback" else 0
    made += [_nobody(settings, len(made))] if made else []
    big = min(_MOST_BIG, settings.job_count // _BIG_EVERY)
    made += [_big(settings, len(made) + index) for index in range(big)]
    random.shuffle(made)
    last = max(1, len(made))
    timed = [_at(op, _SETTLED * settings.duration * index / last) for index, op in enumerate(made)]
    return tuple(tuple(timed[client :: settings.profile.clients]) for client in range(settings.profile.clients))


def _at(op: Op, moment: float) -> Op:
    return replace(op, at=round(moment, 3))


def _op(random: Random, settings: ChaosSettings, number: int) -> Op:
    [how] = random.choices([name for name, _ in _MIX], [weight for _, weight in _MIX])
    if settings.workload is not None and how in ("start", "batch"):
        return Op(number, 0.0, "custom", (_id(settings, number),))
    if settings.store == "redis" and how in ("transaction", "rollback"):
        how = "start"  # This store cannot join a caller's transaction.
    return _MAKERS[how](random, settings, number)


def _id(settings: ChaosSettings, number: int, index: int = 0) -> str:
    return f"c{settings.seed}-{number}-{index}"


def _input(task: Task) -> dict[str, Any]:
    return task.model_dump(exclude_defaults=True)


def _start(random: Random, settings: ChaosSettings, number: int) -> Op:
    type = random.choices(["chaos.effect", "chaos.threaded", "chaos.plain"], [5, 2, 3])[0]
    links = random.choice([0, 0, 1, 2]) if type != "chaos.threaded" else 0
    task = Task(pause=round(random.choice([0, 0.005, 0.02, 0.2]), 3), links=links)
    return Op(number, 0.0, "start", (_id(settings, number),), type, _input(task))


def _batch(random: Random, settings: ChaosSettings, number: int) -> Op:
    ids = tuple(_id(settings, number, index) for index in range(random.randint(3, 9)))
    return Op(number, 0.0, "batch", ids, "chaos.plain", _input(Task(pause=round(random.choice([0, 0, 0.01]), 3))))


def _group(random: Random, settings: ChaosSettings, number: int) -> Op:
    """Return some chains that close at about the same time, and one (the last) that waits for them."""
    ids = tuple(_id(settings, number, index) for index in range(random.choice([3, 3, 4])))
    inside = random.uniform(0.02, 0.05)
    if settings.store == "sqlite":
        inside /= 10  # With one writer nothing overlaps, and all others wait.
    task = Task(inside=round(inside, 3))
    return Op(number, 0.0, "group", ids, "chaos.effect", _input(task))


def _duel(random: Random, settings: ChaosSettings, number: int) -> Op:
    """Return four starts of one key at once."""
    task = Task(pause=round(random.uniform(0, 0.2), 3))
    return Op(number, 0.0, "duel", (), "chaos.effect", _input(task), key=f"k{settings.seed}-{random.randint(0, 40)}")


def _transaction(random: Random, settings: ChaosSettings, number: int) -> Op:
    return Op(number, 0.0, "transaction", (_id(settings, number),), "chaos.effect")


def _rollback(random: Random, settings: ChaosSettings, number: int) -> Op:
    return Op(number, 0.0, "rollback", (_id(settings, number),), "chaos.effect")


def _scheduled(random: Random, settings: ChaosSettings, number: int) -> Op:
    delay = round(random.uniform(0.3, 3.0), 3)
    return Op(number, 0.0, "start", (_id(settings, number),), "chaos.effect", delay=delay)


def _flaky(random: Random, settings: ChaosSettings, number: int) -> Op:
    task = Task(fails=random.randint(1, 2), how=random.choice(_HOW))
    return Op(number, 0.0, "start", (_id(settings, number),), "chaos.flaky", _input(task))


def _fleeting(random: Random, settings: ChaosSettings, number: int) -> Op:
    return Op(number, 0.0, "start", (_id(settings, number),), "chaos.fleeting", ttl=1.0)


def _limited(random: Random, settings: ChaosSettings, number: int) -> Op:
    task = Task(pause=round(random.uniform(0, 0.05), 3))
    return _some(settings, number, random.randint(2, 6), "chaos.limited", task)


def _keyed(random: Random, settings: ChaosSettings, number: int) -> Op:
    task = Task(pause=round(random.uniform(0, 0.05), 3))
    key = f"l{random.randint(0, 9)}"
    return replace(_some(settings, number, random.randint(2, 6), "chaos.keyed", task), limit_key=key)


def _rated(random: Random, settings: ChaosSettings, number: int) -> Op:
    return _some(settings, number, random.randint(2, 6), "chaos.rated", Task())


def _clash(random: Random, settings: ChaosSettings, number: int) -> Op:
    """Return some chains that continue at the same moment, of which the store rejects the first continuation."""
    task = Task(pause=round(random.uniform(0.05, 0.2), 3), links=1, how=CLASH)
    return replace(_some(settings, number, random.randint(6, 12), "chaos.plain", task), how="clash")


def _some(settings: ChaosSettings, number: int, count: int, type: str, task: Task) -> Op:
    return Op(number, 0.0, "batch", tuple(_id(settings, number, index) for index in range(count)), type, _input(task))


def _big(settings: ChaosSettings, number: int) -> Op:
    return Op(number, 0.0, "start", (_id(settings, number),), "chaos.plain", _input(Task(links=1)), size=_BIG)


def _nobody(settings: ChaosSettings, number: int) -> Op:
    return Op(number, 0.0, "batch", tuple(_id(settings, number, index) for index in range(5)), "chaos.nobody")


_MAKERS = {
    "start": _start, "batch": _batch, "group": _group, "duel": _duel, "transaction": _transaction,
    "rollback": _rollback, "scheduled": _scheduled, "flaky": _flaky, "fleeting": _fleeting,
    "limited": _limited, "keyed": _keyed, "rated": _rated, "clash": _clash,
}  # fmt: skip

# --- faults -----------------------------------------------------------------------------------------------------------


def _faults(random: Random, settings: ChaosSettings) -> tuple[Fault, ...]:
    names = _shares(kinds_of(settings.store), settings.fault_count)
    random.shuffle(names)
    targets = {"worker": settings.profile.workers, "client": settings.profile.clients}
    by_name = {kind.name: kind for kind in kinds_of(settings.store)}
    poisons = 0
    faults: list[Fault] = []
    for number, name in enumerate(names):
        payload = ""
        if name == "poison":
            payload, poisons = POISONS[poisons % len(POISONS)], poisons + 1
        target = random.randrange(targets.get(by_name[name].target, 1))
        at = _SETTLED * settings.duration * (number + random.random()) / len(names)
        faults.append(Fault(number, round(at, 3), name, target, round(random.random(), 3), payload))
    return tuple(faults)


_FIRST = (
    "kill worker", "zombie while next runs", "zombie after next ended", "crash postgres", "kill backend", "kill redis",
    "poison", "poison", "poison", "poison", "poison", "cut listeners", "terminate listeners", "lose answer to commit",
    "lose commit", "kill worker", "kill client", "freeze worker in claim",
    "receiver fails", "receiver down", "receiver redirects", "receiver slow",
)  # fmt: skip
"""The faults that even a small run must have."""


def _shares(kinds: list[Kind], count: int) -> list[str]:
    """Return as many faults of each kind as its weight requires, and those that no run may lack."""
    known = {kind.name for kind in kinds}
    names = [name for name in _FIRST if name in known][:count]
    rest = count - len(names)
    total = sum(kind.weight for kind in kinds)
    exact = {kind.name: rest * kind.weight / total for kind in kinds}
    names += [name for name, share in exact.items() for _ in range(int(share))]
    by_rest = sorted(exact, key=lambda name: (int(exact[name]) - exact[name], name))
    return names + by_rest[: count - len(names)]
