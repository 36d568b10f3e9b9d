"""The result of a run."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from queuert.testing.chaos import memory_growth
from queuert.testing.chaos.evidence import Hang, shown
from queuert.testing.chaos.history import History
from queuert.testing.chaos.invariants import NOT_APPLICABLE, TITLES

_SHOWN = 10


OF_FIGURES: Mapping[str, str] = {
    "take-over of the first in line while somebody could, 99 of 100": "of that, while somebody could, too",
    "first completion after the server serves again, 95 of 100": "first completion after the server serves again",
}
"""The numbers of a figure, which may be based on no data."""


def measured(
    found: Mapping[str, float], figures: Mapping[str, Any], unmeasured: Collection[str]
) -> dict[str, float | None]:
    """Return the numbers; None where there was no data."""
    empty = {name for name, figure in OF_FIGURES.items() if not figures[figure]["count"]}
    return {name: None if name in empty or name in unmeasured else value for name, value in found.items()}


def hangs(history: History) -> tuple[Hang, ...]:
    """The workers that did not stop, with their stacks."""
    found = [json.loads(reported) for (reported,) in history.rows("SELECT reported FROM hangs ORDER BY rowid")]
    names = {field.name for field in fields(Hang)}
    return tuple(Hang(**{name: value for name, value in one.items() if name in names}) for one in found)


@dataclass(frozen=True)
class ChaosReport:
    """The verdict of a run, and its reasons. ``exit_code`` is 0, or 1 for a violation, or 3 if a threshold was not
    reached.

    It is 3 also if all is well, but a file could not be written.
    """

    profile: str
    seed: int
    store: str
    plan: str
    """A fingerprint of the starts and faults: equal for equal seeds."""
    seconds: float
    """Seconds from the start of the processes to the end of the drain."""
    drain_seconds: float
    faults: dict[str, int]
    """How many faults of each kind happened."""
    missed: dict[str, int]
    """How many tries of each kind had no effect, because the event that they wait for did not occur. A fault is tried
    three times."""
    violations: dict[str, list[str]]
    """The contradictions to each invariant that was checked; all lists must be empty."""
    probes: dict[str, int]
    gates: dict[str, int]
    measures: dict[str, float | None]
    """The measures; None for those without data."""
    limits: dict[str, float]
    figures: dict[str, Any]
    hangs: tuple[Hang, ...] = ()
    """The workers that were asked to stop and had to be killed, with their stacks."""
    unwritten: tuple[str, ...] = ()
    """The files that could not be written at the end, and why."""

    @property
    def broken(self) -> dict[str, list[str]]:
        """Return the invariants that do not hold."""
        return {id: found for id, found in self.violations.items() if found}

    @property
    def silent(self) -> dict[str, int]:
        """Return the probes that fired less often than the profile requires."""
        return {name: self.probes[name] for name, needed in self.gates.items() if self.probes[name] < needed}

    @property
    def slow(self) -> dict[str, float]:
        """Return the measures that exceed the profile's bounds."""
        found = {name: self.measures[name] for name in self.limits}
        return {name: value for name, value in found.items() if value is not None and value > self.limits[name]}

    @property
    def exit_code(self) -> int:
        """0, 1 or 3."""
        return 1 if self.broken else 3 if self.silent or self.slow or self.unwritten else 0

    def to_json(self) -> str:
        """The report as JSON."""
        also = {"exit_code": self.exit_code, "not_applicable": dict(NOT_APPLICABLE), "silent": self.silent}
        also |= {"slow": self.slow}
        return json.dumps({**asdict(self), **also, "titles": TITLES}, indent=2)

    def summary(self) -> str:
        """Return the report as lines of text."""
        happened, missed = sum(self.faults.values()), sum(self.missed.values())
        lines = [
            f"profile {self.profile}, store {self.store}, seed {self.seed}, plan {self.plan}",
            f"{self.seconds:.1f} s, of which the drain took {self.drain_seconds:.1f} s",
            f"faults: {happened} of {len(self.faults)} kinds, and {missed} tries missed",
            *(f"  {number:5} {name}" for name, number in sorted(self.faults.items())),
            "probes (those with a gate must reach it):",
            *(f"  {number:7} {name}{self._gate(name)}" for name, number in self.probes.items()),
            "limits (seconds, but for the growth of what lived through the run):",
            *(self._measure(name, value) for name, value in self.measures.items()),
            "figures:",
            *(f"  {name}: {value}" for name, value in self.figures.items()),
            *self._verdict(),
        ]
        return "\n".join(lines)

    def _gate(self, name: str) -> str:
        if name not in self.gates:
            return ""
        return f" (of {self.gates[name]}{'' if self.probes[name] >= self.gates[name] else ': TOO FEW'})"

    def _measure(self, name: str, value: float | None) -> str:
        reported = f"{value:7.2f} {name}" if value is not None else f"        {name}: not measured"
        return f"  {reported}{self._limit(name)}"

    def _limit(self, name: str) -> str:
        if name not in self.limits:
            return ""
        broken = "" if name not in self.slow else ": TOO MUCH" if name in memory_growth.ALL else ": TOO LONG"
        return f" (at most {self.limits[name]:g}{broken})"

    def _verdict(self) -> list[str]:
        judged = len(self.gates) + sum(self.measures[name] is not None for name in self.limits)
        lines = [f"gates: {judged - len(self.silent) - len(self.slow)} of {judged} reached"]
        lines += [f"invariants: {len(self.violations) - len(self.broken)} of {len(self.violations)} hold"]
        for id, found in self.broken.items():
            lines.append(f"  {id} BROKEN, {len(found)} times: {TITLES[id]}")
            lines += [f"      {one}" for one in found[:_SHOWN]]
        lines += [f"  {line}" for hang in self.hangs for line in shown(hang)]
        return [*lines, *(f"NOT WRITTEN: {one}" for one in self.unwritten)]
