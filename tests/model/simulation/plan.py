"""What is planned for a simulated run, made of its seed alone."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from tests.model.simulation.server import Weather

VERBS = (
    ("end", 14, 0.0), ("end", 8, 3.0), ("end", 3, 15.0), ("fault", 5, 1.0), ("again", 2, 2.0), ("give_up", 1, 1.0),
    ("go_on", 3, 1.0), ("delegate", 2, 1.0), ("hang", 2, 0.0), ("resist", 1, 6.0), ("block", 2, 8.0), ("write", 5, 1.0),
    ("write", 1, 14.0), ("write_and_fault", 1, 1.0), ("note", 2, 2.0), ("die", 1, 2.0),
)  # fmt: skip
"""What a handler may do, how often, and for how many seconds at most."""

FAULTS = (
    ("freeze", 4, 25.0), ("kill", 3, 0.0), ("stop", 5, 8.0), ("away", 2, 15.0), ("hang", 2, 12.0), ("cut_off", 4, 20.0),
    ("cancel", 4, 0.0), ("complete", 1, 0.0), ("retry", 1, 0.0), ("hurry", 2, 8.0), ("flash", 2, 0.03),
)  # fmt: skip

FAULTS_END = 45.0


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at a time."""

    at: float
    kind: str
    target: int
    seconds: float


@dataclass(frozen=True)
class Start:
    """A chain that a client starts at a time."""

    at: float
    id: str
    type: str
    acts: list[str]
    priority: int
    delay: float
    blocker: str | None


@dataclass(frozen=True)
class Plan:
    """What is to happen, by the seed."""

    seed: int
    workers: int
    concurrency: int
    lease: float
    shutdown_timeout: float
    poll_interval: float | None
    healthy_notifications: bool
    starts: list[Start]
    faults: list[Fault]
    weather: Weather


def plan(seed: int) -> Plan:
    """The plan of a seed."""
    chance = Random(seed)
    calm = chance.random() < 0.4
    weather = Weather(
        Random(seed + 1),
        rough_until=0.0 if calm else 1_000.0 + FAULTS_END,
        slow=chance.choice([0.0, 0.03, 0.12]),
        late=chance.choice([0.3, 3.0, 10.0]),
        lost=chance.choice([0.0, 0.01, 0.05]),
        refused=chance.choice([0.0, 0.0, 0.02]),
        notifications_lost=chance.choice([0.0, 0.3, 1.0]),
    )
    burst = _burst(chance) if chance.random() < 0.4 else []
    return Plan(
        seed=seed,
        workers=chance.choice([1, 2, 2, 3]),
        concurrency=chance.choice([1, 2, 4, 10]),
        lease=chance.choice([3.0, 5.0, 8.0]),
        shutdown_timeout=chance.choice([0.0, 1.0, 5.0, 20.0]),
        poll_interval=chance.choice([None, None, 1.0, 5.0]),
        healthy_notifications=chance.random() < 0.8,
        starts=_starts(chance) + burst,
        faults=_faults(chance, burst[0].at if burst else None),
        weather=weather,
    )


def _drawn(chance: Random, menu: Any) -> tuple[str, float]:
    [(name, _, most)] = chance.choices(menu, [weight for _, weight, _ in menu])
    return name, most


def _fault(chance: Random) -> Fault:
    kind, most = _drawn(chance, FAULTS)
    return Fault(chance.uniform(0.5, FAULTS_END - 1.0), kind, chance.randrange(100), chance.uniform(0.3, 1.0) * most)


def _faults(chance: Random, burst_at: float | None) -> list[Fault]:
    found = [_fault(chance) for _ in range(chance.randint(1, 7))]
    if burst_at is not None and chance.random() < 0.7:
        # While jobs that were claimed ahead wait for a place.
        kind = chance.choice(["stop", "stop", "stop", "hurry", "freeze", "kill"])
        found += [
            Fault(burst_at + chance.uniform(0.01, 0.6), kind, target, chance.uniform(1.0, 12.0)) for target in range(3)
        ]
    return sorted(found, key=lambda one: one.at)


def _starts(chance: Random) -> list[Start]:
    found: list[Start] = []
    for number in range(chance.randint(4, 14)):
        is_simple_completion = chance.random() < 0.15
        verbs = [_act(chance) for _ in range(chance.choice([0, 1, 1, 2, 3]))]
        if is_simple_completion:
            verbs = [chance.choice(["end 2.0", "end 9.0", "fault 1.0"]) for _ in verbs]
        blocker = chance.choice(found).id if found and chance.random() < 0.15 else None
        at = chance.uniform(0.0, 0.8) * FAULTS_END
        at = max(at, next((one.at + 1.0 for one in found if one.id == blocker), 0.0))
        delay = chance.choice([0.0, 0.0, 0.0, 5.0])
        type = "plain" if is_simple_completion else "work"
        found.append(Start(at, f"{number}", type, verbs, chance.randint(-1, 1), delay, blocker))
    if chance.random() < 0.3:
        # When all is over: what was broken by the faults shows.
        found.append(Start(FAULTS_END + 25.0, "late", "work", ["end 11.0"], 0, 0.0, None))
    return found


def _burst(chance: Random) -> list[Start]:
    """Many that take no time, so that more are claimed ahead, and some that do."""
    at = chance.uniform(0.0, 0.8) * FAULTS_END
    acts = [
        [] if chance.random() < 0.85 else [f"end {chance.uniform(0.5, 5.0):.2f}"] for _ in range(chance.randint(8, 40))
    ]
    return [Start(at, f"burst-{number}", "work", one, 0, 0.0, None) for number, one in enumerate(acts)]


def _act(chance: Random) -> str:
    verb, most = _drawn(chance, VERBS)
    return f"{verb} {chance.uniform(0.1, 1.0) * most:.2f}"
