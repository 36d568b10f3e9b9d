"""The thresholds of a run: those of its profile, reduced for a smaller run to what its plan contains."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from queuert.testing.chaos.catalogue import CRASHES, WORKERS_KILLED
from queuert.testing.chaos.plan import Plan
from queuert.testing.chaos.profiles import ChaosSettings
from queuert.testing.chaos.workload import LIMITS, WITH_WEBHOOK

STARTS = "acknowledged starts"
_KINDS = "kinds of fault"
_POISONS = "kinds of poison buried"
_JOBS_OF_POISON = 2
_LATER_OF_A_DUEL = 3


def requested_of(settings: ChaosSettings, plan: Plan, repeats: int = 0) -> dict[str, int]:
    """Return how often each probe must fire.

    A run of the profile's own size must reach its thresholds. A smaller run needs less, and never more than its plan
    contains, less the share of faults that the profile allows to be missed.

    Args:
        settings: the size.
        plan: the starts and faults.
        repeats: the number of a workload's starts that may return an open chain of the same key.
    """
    gates = settings.gates
    starts = settings.profile.gates.get(STARTS, 0) / max(1, settings.profile.jobs)
    gates[STARTS] = min(gates[STARTS], math.floor(starts * (settings.job_count - repeats)))
    if settings.fault_count < settings.profile.faults:
        _bound(gates, _held_by_faults(settings, plan))
    if settings.job_count < settings.profile.jobs:
        _bound(gates, _held_by_starts(plan))
    return gates


def _bound(gates: dict[str, int], held: Mapping[str, int]) -> None:
    gates.update({name: min(gates[name], most) for name, most in held.items() if name in gates})


def _held_by_faults(settings: ChaosSettings, plan: Plan) -> dict[str, int]:
    share = 1 - settings.profile.gates["faults"] / settings.profile.faults
    kinds = Counter(fault.kind for fault in plan.faults)
    poisons = Counter(fault.payload for fault in plan.faults if fault.payload)
    count = {
        "workers killed": _of(kinds, WORKERS_KILLED),
        "server crashes": _of(kinds, CRASHES),
        "commits in doubt that stood": _of(kinds, ("lose answer to commit", "kill worker in commit")),
        "commits in doubt that did not": kinds["lose commit"],
        "poisonous jobs buried": _JOBS_OF_POISON * poisons.total(),
        "running jobs held by a caller's transaction": kinds["start behind a running job"],
        "retries under a flood of fresh work": kinds["flood of fresh work"],
    }
    held = {name: number - _may_miss(number, share) for name, number in count.items()}
    return held | {_KINDS: _left(kinds, share), _POISONS: _left(poisons, share)}


def _held_by_starts(plan: Plan) -> dict[str, int]:
    all_ops = [op for ops in plan.ops for op in ops]
    how = Counter(op.how for op in all_ops)
    return {
        "attempts of types with limits": sum(len(op.ids) for op in all_ops if op.type in LIMITS),
        "finishes that the store refused": how["clash"],
        "webhooks accepted": sum(len(op.ids) for op in all_ops if op.type in WITH_WEBHOOK) // 2,
        "big outputs": sum(op.size > 0 for op in all_ops),
        "blockers that closed in overlap": how["group"],
        "starts of one key within 5 ms": _LATER_OF_A_DUEL * how["duel"],
    }


def _of(kinds: Counter[str], names: Iterable[str]) -> int:
    return sum(kinds[name] for name in names)


def _may_miss(number: int, share: float) -> int:
    return math.ceil(number * share)


def _left(kinds: Counter[str], share: float) -> int:
    """Return how many kinds are left if the missed faults are of the rarest kinds."""
    spare = _may_miss(kinds.total(), share)
    left = len(kinds)
    for number in sorted(kinds.values()):
        if number > spare:
            break
        spare -= number
        left -= 1
    return left
