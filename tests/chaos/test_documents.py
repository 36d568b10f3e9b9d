"""What the documents say of chaos is what the code has."""

from __future__ import annotations

import re
from pathlib import Path

from queuert.testing.chaos import PROFILES
from queuert.testing.chaos.invariants import NOT_APPLICABLE, TITLES
from tests.chaos.mutants import MUTANTS

TEXT = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_invariants() -> None:
    assert dict(re.findall(r"^\| (I\d+) \| (.*) \|$", TEXT, re.MULTILINE)) == TITLES
    assert all(id in TEXT for id in NOT_APPLICABLE)


def test_profiles() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| ([\d,]+) \| .* \|$", TEXT, re.MULTILINE)
    shown = {name: (int(jobs.replace(",", "")), int(faults.replace(",", ""))) for name, jobs, faults in rows}
    assert shown == {name: (profile.jobs, profile.faults) for name, profile in PROFILES.items()}


def test_mutants() -> None:
    assert len(MUTANTS) == 18
    assert all(re.match("(scenario|case) ", mutant.found_by) for mutant in MUTANTS)
    assert "eighteen queues that are broken" in TEXT
