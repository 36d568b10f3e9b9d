"""What came of a run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from queuert.testing.chaos.invariants import NOT_APPLICABLE, TITLES

_SHOWN = 10


@dataclass(frozen=True)
class ChaosReport:
    """The verdict, and what it rests on. ``exit_code`` is 0, 1 for a violation, 3 where a gate was not reached."""

    profile: str
    seed: int
    store: str
    plan: str
    """A fingerprint of the starts and faults: equal for equal seeds."""
    seconds: float
    """From the start of the processes to the end of the drain."""
    drain_seconds: float
    faults: dict[str, int]
    """How many of each kind happened."""
    missed: dict[str, int]
    """How many of each kind did not: what they wait for did not come."""
    violations: dict[str, list[str]]
    """By invariant, those that were checked; empty lists are what is wanted."""
    probes: dict[str, int]
    gates: dict[str, int]
    measures: dict[str, float]
    limits: dict[str, float]
    figures: dict[str, Any]

    @property
    def broken(self) -> dict[str, list[str]]:
        """The invariants that do not hold."""
        return {id: found for id, found in self.violations.items() if found}

    @property
    def silent(self) -> dict[str, int]:
        """Probes that fired less often than the profile asks for."""
        return {name: self.probes[name] for name, needed in self.gates.items() if self.probes[name] < needed}

    @property
    def slow(self) -> dict[str, float]:
        """What took longer than the profile allows."""
        return {name: self.measures[name] for name, most in self.limits.items() if self.measures[name] > most}

    @property
    def exit_code(self) -> int:
        """0, 1 or 3."""
        return 1 if self.broken else 3 if self.silent or self.slow else 0

    def to_json(self) -> str:
        """The report as JSON."""
        also = {"exit_code": self.exit_code, "not_applicable": dict(NOT_APPLICABLE), "silent": self.silent}
        also |= {"slow": self.slow}
        return json.dumps({**asdict(self), **also, "titles": TITLES}, indent=2)

    def summary(self) -> str:
        """The report for a reader, in lines."""
        lines = [
            f"profile {self.profile}, store {self.store}, seed {self.seed}, plan {self.plan}",
            f"{self.seconds:.1f} s, of which the drain took {self.drain_seconds:.1f} s",
            f"faults: {sum(self.faults.values())} of {len(self.faults)} kinds, and {sum(self.missed.values())} missed",
            *(f"  {number:5} {name}" for name, number in sorted(self.faults.items())),
            "probes (those with a gate must reach it):",
            *(f"  {number:7} {name}{self._gate(name)}" for name, number in self.probes.items()),
            "gates of time (seconds):",
            *(f"  {value:7.2f} {name}{self._limit(name)}" for name, value in self.measures.items()),
            "figures:",
            *(f"  {name}: {value}" for name, value in self.figures.items()),
            *self._verdict(),
        ]
        return "\n".join(lines)

    def _gate(self, name: str) -> str:
        if name not in self.gates:
            return ""
        return f" (of {self.gates[name]}{'' if self.probes[name] >= self.gates[name] else ': TOO FEW'})"

    def _limit(self, name: str) -> str:
        if name not in self.limits:
            return ""
        return f" (at most {self.limits[name]:g}{'' if self.measures[name] <= self.limits[name] else ': TOO LONG'})"

    def _verdict(self) -> list[str]:
        reached = len(self.gates) - len(self.silent) + len(self.limits) - len(self.slow)
        lines = [f"gates: {reached} of {len(self.gates) + len(self.limits)} reached"]
        lines += [f"invariants: {len(self.violations) - len(self.broken)} of {len(self.violations)} hold"]
        for id, found in self.broken.items():
            lines.append(f"  {id} BROKEN, {len(found)} times: {TITLES[id]}")
            lines += [f"      {one}" for one in found[:_SHOWN]]
        return lines
