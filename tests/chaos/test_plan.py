"""A seed stands for the same starts and the same faults; the catalogue is what the faults are drawn from."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

import queuert.testing.chaos.run  # noqa: F401  (what it imports registers faults)
from queuert.errors import ConfigurationError
from queuert.testing.chaos import PROFILES, ChaosSettings
from queuert.testing.chaos.catalogue import CRASHES, KINDS, WORKERS_KILLED, kinds_of
from queuert.testing.chaos.faults import INJECTORS
from queuert.testing.chaos.history import History
from queuert.testing.chaos.memory_growth import SESSIONS
from queuert.testing.chaos.metrics import _PROBES, measures, probes
from queuert.testing.chaos.plan import make_plan
from queuert.testing.chaos.profiles import STORES

_DIGEST = """
from queuert.testing.chaos import PROFILES, ChaosSettings
from queuert.testing.chaos.plan import make_plan
print(make_plan(ChaosSettings(PROFILES["smoke"], seed=5)).digest)
"""
SMOKE = ChaosSettings(PROFILES["smoke"], seed=5)


@pytest.mark.parametrize("store", STORES)
def test_the_same_seed_gives_the_same_plan(store: str) -> None:
    one, other = (make_plan(ChaosSettings(PROFILES["smoke"], seed=5, store=store)) for _ in range(2))
    assert one == other
    assert one.digest == other.digest
    assert one.digest != make_plan(ChaosSettings(PROFILES["smoke"], seed=6, store=store)).digest


def test_a_plan_is_the_same_in_every_process() -> None:
    """No set, hash or clock is in it."""
    done = subprocess.run(
        [sys.executable, "-c", _DIGEST],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == make_plan(SMOKE).digest


@pytest.mark.parametrize("store", STORES)
def test_a_plan_has_what_is_requested_for(store: str) -> None:
    settings = ChaosSettings(PROFILES["full"], store=store)
    plan = make_plan(settings)
    kinds = Counter(fault.kind for fault in plan.faults)
    assert sum(kinds.values()) == settings.fault_count
    assert kinds.keys() == {kind.name for kind in kinds_of(store)}
    assert sum(op.starts for ops in plan.ops for op in ops if op.how != "rollback") >= settings.job_count
    assert [fault.at for fault in plan.faults] == sorted(fault.at for fault in plan.faults)
    assert max(fault.at for fault in plan.faults) < settings.duration


@pytest.mark.parametrize("store", STORES)
def test_full_has_more_than_its_gates(store: str) -> None:
    settings = ChaosSettings(PROFILES["full"], store=store)
    kinds = Counter(fault.kind for fault in make_plan(settings).faults)
    assert sum(kinds[kind] for kind in WORKERS_KILLED) >= settings.gates["workers killed"] == 300
    assert sum(kinds[kind] for kind in CRASHES) >= settings.gates.get("server crashes", 0)
    assert 2 * kinds["poison"] >= settings.gates["poisonous jobs buried"] == 40


def test_redis_is_killed_ten_times() -> None:
    assert ChaosSettings(PROFILES["full"], store="redis").gates["server crashes"] == 10


@pytest.mark.parametrize(("store", "kinds"), [("postgres", 20), ("redis", 20), ("sqlite", 20)])
def test_a_store_can_have_as_many_kinds_as_its_gate_asks_for(store: str, kinds: int) -> None:
    settings = ChaosSettings(PROFILES["full"], store=store)
    assert settings.gates["kinds of fault"] == kinds <= len(kinds_of(store))


def test_a_file_does_not_serve_again() -> None:
    times = {store: set(ChaosSettings(PROFILES["full"], store=store).limits) for store in STORES}
    assert times["postgres"] == times["redis"] == set(PROFILES["full"].limits)
    of_servers = {"first completion after the server serves again, 95 of 100", SESSIONS}
    assert times["postgres"] - times["sqlite"] == of_servers


def test_every_kind_is_done_by_something() -> None:
    assert KINDS.keys() == INJECTORS.keys()


def test_every_gate_is_a_probe() -> None:
    known = probes(History()).keys()
    assert _PROBES.keys() < known
    assert all(profile.gates.keys() <= known for profile in PROFILES.values())


def test_every_limit_is_a_measure() -> None:
    known = measures(History(), 0.0).keys()
    assert all(profile.limits.keys() <= known for profile in PROFILES.values())
    assert PROFILES["full"].limits


def test_gates_shrink_with_the_run() -> None:
    small = replace(SMOKE, jobs=220, faults=36)
    assert small.gates["acknowledged starts"] == 200
    assert small.gates["workers killed"] == 7
    assert SMOKE.gates["workers killed"] == 15


@pytest.mark.parametrize("wrong", [{"store": "mysql"}, {"jobs": -1}, {"faults": -1}, {"seconds": 0.0}])
def test_settings_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        ChaosSettings(PROFILES["smoke"], **wrong)  # type: ignore[arg-type]
