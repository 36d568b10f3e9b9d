"""The worker as it is, on simulated time, with faults of all kinds by a seed: whatever happens, nothing is lost.

``QUEUERT_SEEDS=10000`` tries more seeds. One that fails says how to see it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.model.simulation.breakages import BREAKAGES
from tests.model.simulation.judge import faults
from tests.model.simulation.plan import plan
from tests.model.simulation.scenario import Scenario
from tests.model.simulation.world import EndlessRunError

pytestmark = pytest.mark.timeout(300)

SEEDS = int(os.environ.get("QUEUERT_SEEDS", "500"))
BLOCK = 25
"""Seeds of one test: several processes share them."""

FOUND = (15, 1701, 1861, 1876, 2948)
"""Seeds that found a defect: what was claimed ahead stayed with a worker that stopped while a claim had no answer."""

MOST_FOR_A_BREAKAGE = 500
LIKELY = (100, 46, 39, 49, 268, 1666, 8, 5, 1, 3, 28, 37, 45, 60, 266)
"""Seeds that found some: they are tried first, as others need not be then."""


def run(seed: int) -> Scenario:
    """Run the plan of a seed."""
    scenario = Scenario(plan(seed))
    scenario.run()
    return scenario


@pytest.mark.parametrize(
    "seeds",
    [range(first, min(first + BLOCK, SEEDS)) for first in range(0, SEEDS, BLOCK)] + [FOUND],
    ids=lambda seeds: "found" if seeds is FOUND else str(seeds[0]),
)
def test_seeds(seeds: Sequence[int]) -> None:
    """Every invariant holds after each run."""
    for seed in seeds:
        found = faults(run(seed))
        assert not found, f"seed {seed}, to be seen by: python -m tests.model.simulation {seed}\n" + "\n".join(found)


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda one: one.__name__)
def test_a_broken_worker_is_found(breakage: Callable[[], AbstractContextManager[Any]]) -> None:
    """The simulation finds each planted defect."""
    with breakage():
        for seed in (*LIKELY, *range(MOST_FOR_A_BREAKAGE)):
            try:
                if faults(run(seed)):
                    return
            except EndlessRunError:
                return
    pytest.fail(f"{MOST_FOR_A_BREAKAGE} seeds did not find it")


def test_what_it_is_for_happens() -> None:
    """A run that finds nothing wrong counts only if things did go wrong in it."""
    expected = {
        "freeze", "cut_off", "kill", "stop", "hurry", "carried out, and not answered", "finishes refused",
        "finishes postponed", "reap", "release", "outside cancelled", "stopped", "FinishRejected", "AttemptAborted",
        "JobsReleased", "LoopRecovered", "StoreCallFailed", "AttemptInterrupted", "AttemptWaiting", "AttemptContinued",
    }  # fmt: skip
    seen: Counter[str] = Counter()
    # The rarest comes in one run of seventy.
    for seed in range(SEEDS):
        one = run(seed)
        seen.update(one.server.probes)
        seen.update(entry.what for entry in one.server.store.record)
        seen.update(type(event).__name__ for machine in one.machines for _, event in machine.reported.events)
        seen["stopped"] += sum(machine.kept is not None for machine in one.machines)
        if all(seen[what] for what in expected):
            break
    assert not {what for what in expected if not seen[what]}


def test_a_seed_is_the_same_everywhere() -> None:
    """Two processes, in which strings hash differently, see the same."""
    code = (
        "from tests.model.test_simulation import run\nfrom tests.model.simulation.__main__ import timeline\n"
        "for seed in (3, 8, 20): print('\\n'.join(timeline(run(seed), None)))"
    )
    root = Path(__file__).parents[2]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    [output] = outputs
    assert "handler begins" in output
