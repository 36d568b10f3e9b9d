"""The sizes of runs, and the thresholds that make a run count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from queuert.errors import ConfigurationError
from queuert.testing.chaos import memory_growth
from queuert.testing.chaos.catalogue import kinds_of
from queuert.testing.chaos.resources import can_be_measured

STORES = ("postgres", "redis", "sqlite")


@dataclass(frozen=True, slots=True)
class Profile:
    """A size of run with its thresholds: how often probes must fire, and figures that must not be exceeded."""

    name: str
    jobs: int
    """The number of starts that clients make."""
    faults: int
    seconds: float
    """The seconds over which starts and faults are spread; a run takes longer on a slow machine."""
    workers: int
    clients: int
    lanes: int
    """The most faults that happen at the same time."""
    durable: bool
    """Whether the server flushes to the disk."""
    gates: Mapping[str, int]
    """How often each probe must fire."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """The upper bound of each measure."""
    witnesses: bool = False
    """Whether a worker and a client live through the run, to detect leaks."""


_POSTGRES = {
    "acknowledged starts": 2_000, "faults": 60, "kinds of fault": 8, "workers killed": 15, "server crashes": 2,
    "finishes refused by the fence": 3, "leases reaped of workers that lived": 3,
    "commits in doubt that stood": 1, "commits in doubt that did not": 1,
    "blockers that closed in overlap": 20, "starts of one key within 5 ms": 20,
    "listeners restored": 2, "jobs found by polling alone": 1, "kinds of poison buried": 5,
    "attempts of types with limits": 80, "finishes that the store refused": 2, "big outputs": 5,
    "webhooks accepted": 30,
}  # fmt: skip
_FULL = {
    "acknowledged starts": 25_000, "faults": 1_000, "kinds of fault": 20, "workers killed": 300, "server crashes": 25,
    "finishes refused by the fence": 100, "leases reaped of workers that lived": 100,
    "commits in doubt that stood": 20, "commits in doubt that did not": 20,
    "blockers that closed in overlap": 1_000, "starts of one key within 5 ms": 1_000,
    "listeners restored": 30, "jobs found by polling alone": 50, "kinds of poison buried": 5,
    "attempts of types with limits": 1_000, "finishes that the store refused": 30, "big outputs": 10,
    "webhooks accepted": 300,
    "claims of limited types while a worker stood still in one": 10, "running jobs held by a caller's transaction": 3,
    "retries under a flood of fresh work": 2, "poisonous jobs buried": 40, memory_growth.WITNESSES: 2,
}  # fmt: skip
_LIMITS = {
    "take-over of the first in line while somebody could, 99 of 100": 1.0,
    "first completion after the server serves again, 95 of 100": 2.0,
    "drain": 60.0,
    memory_growth.RESIDENT: 5.0, memory_growth.FILES: 0.0, memory_growth.BEYOND: 0.0, memory_growth.SESSIONS: 0.0,
}  # fmt: skip
"""The bounds of measures. The first three are seconds. Smoke has none, because it runs wherever tests run."""
_OF_POSTGRES_ALONE = (
    "blockers that closed in overlap", "claims of limited types while a worker stood still in one",
    "running jobs held by a caller's transaction",
)  # fmt: skip
_OF_SERVERS_ALONE = (
    *_OF_POSTGRES_ALONE, "server crashes", "commits in doubt that stood", "commits in doubt that did not",
    "listeners restored", "jobs found by polling alone",
)  # fmt: skip
_BY_JOBS = frozenset({
    "acknowledged starts", "blockers that closed in overlap", "starts of one key within 5 ms",
    "attempts of types with limits", "finishes that the store refused", "big outputs", "webhooks accepted",
})  # fmt: skip
_CRASHES_OF_REDIS = 0.4
"""Redis has one way to crash, and Postgres three."""
_OF_TRANSACTIONS = ("commits in doubt that stood", "commits in doubt that did not")
_OF_OUTPUTS = ("big outputs",)
"""The history of Redis has no data for these."""
_LIMITS_OF_SERVERS = ("first completion after the server serves again, 95 of 100", memory_growth.SESSIONS)

PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("smoke", 2_200, 72, 25.0, 4, 2, 3, False, _POSTGRES),
        Profile("full", 27_500, 1_150, 600.0, 5, 3, 5, True, _FULL, _LIMITS, True),
        Profile(
            "soak", 550_000, 22_500, 7_200.0, 6, 4, 6, True,
            {name: number * 20 if number > 30 else number for name, number in _FULL.items()},
            _LIMITS, True,
        ),
    )
}  # fmt: skip
"""The profiles by name: ``smoke`` for each change, ``full`` for a release, ``soak`` for a night."""


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """The settings of a run: its size, what it breaks, and which thresholds apply.

    Args:
        profile: the size, and the thresholds.
        seed: determines the faults and the payloads, but not the order in which the processes act.
        store: ``postgres``, ``redis`` or ``sqlite``; the run owns its server.
        jobs: the number of starts, instead of the profile's; the thresholds shrink with it.
        faults: the number of faults, likewise.
        seconds: the time over which both are spread, instead of the profile's.
        workload: ``MODULE:ATTRIBUTE`` of a :class:`~queuert.testing.chaos.workload.Workload` that takes part.
        directory: where logs and records are written and kept: it must be empty or not exist yet; by default a
            temporary one that is removed with the run.

    Raises:
        ConfigurationError: a value is out of range.
    """

    profile: Profile
    seed: int = 1
    store: str = "postgres"
    jobs: int | None = None
    faults: int | None = None
    seconds: float | None = None
    workload: str | None = None
    directory: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.store not in STORES:
            raise ConfigurationError(f"store must be one of {', '.join(STORES)}, got {self.store!r}")
        for name in ("jobs", "faults"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigurationError(f"{name} must be 0 or more, got {value}")
        if self.seconds is not None and not 0 < self.seconds <= 86_400 * 7:
            raise ConfigurationError(f"seconds must be above 0 and at most {86_400 * 7} (a week), got {self.seconds}")

    @property
    def job_count(self) -> int:
        """Starts."""
        return self.profile.jobs if self.jobs is None else self.jobs

    @property
    def fault_count(self) -> int:
        """Faults."""
        return self.profile.faults if self.faults is None else self.faults

    @property
    def duration(self) -> float:
        """Seconds over which starts and faults are spread."""
        return self.profile.seconds if self.seconds is None else self.seconds

    @property
    def gates(self) -> dict[str, int]:
        """Return how often probes must fire, for this store and this size."""
        absent = {
            "postgres": (),
            "redis": (*_OF_POSTGRES_ALONE, *_OF_TRANSACTIONS, *_OF_OUTPUTS),
            "sqlite": _OF_SERVERS_ALONE,
        }
        known = {name: number for name, number in self.profile.gates.items() if name not in absent[self.store]}
        if not can_be_measured():
            known.pop(memory_growth.WITNESSES, None)
        if self.store == "redis":
            known["server crashes"] = math.ceil(known["server crashes"] * _CRASHES_OF_REDIS)
        known["kinds of fault"] = min(known["kinds of fault"], len(kinds_of(self.store)))
        return {name: self._scaled(name, number) for name, number in known.items()}

    @property
    def limits(self) -> dict[str, float]:
        """Return the upper bounds of measures, for those that have data."""
        absent = {*(_LIMITS_OF_SERVERS if self.store == "sqlite" else ())}
        if not can_be_measured():
            absent.update(memory_growth.OF_PROCESSES)
        return {name: most for name, most in self.profile.limits.items() if name not in absent}

    def _scaled(self, name: str, number: int) -> int:
        if name in ("kinds of fault", "kinds of poison buried", memory_growth.WITNESSES):
            return min(number, self.fault_count) if name == "kinds of fault" else number
        share = self.job_count / self.profile.jobs if name in _BY_JOBS else self.fault_count / self.profile.faults
        return math.floor(number * share) if share < 1 else number
