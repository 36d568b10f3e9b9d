"""What lives through a run takes up no more at its end: planted leaks are found, and honest processes pass."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis.asyncio

from queuert.embedded import EmbeddedServerError
from queuert.testing.chaos import PROFILES, ChaosSettings, memory_growth, resources, run_chaos
from queuert.testing.chaos.display import Display
from queuert.testing.chaos.fleet import WITNESS, Fleet
from queuert.testing.chaos.history import History
from queuert.testing.chaos.leak_probes import Witnesses
from queuert.testing.chaos.loading import load_records
from queuert.testing.chaos.plan import make_plan
from queuert.testing.chaos.records import read
from queuert.testing.chaos.resources import can_be_measured, taken_by, use_all_connections
from queuert.testing.chaos.stores import OwnedStore, owned_store
from tests.conftest import server_is_missing

pytestmark = [
    pytest.mark.fault, pytest.mark.timeout(600),
    pytest.mark.skipif(not can_be_measured(), reason="this system does not tell what a process takes up"),
]  # fmt: skip

_WAIT = 120.0
_CUTS = 3
_MOST = PROFILES["full"].limits


class Rig:
    """Witnesses on a store of their own, without a plan: faults are made by the test."""

    def __init__(self, store: OwnedStore, fleet: Fleet, directory: Path) -> None:
        self.store = store
        self.fleet = fleet
        self.witnesses = Witnesses(fleet, store, directory)
        self._directory = directory
        self.report: dict[str, Any] = {}
        """What grew, by name: for the message of a test that fails."""

    def cut(self, times: int) -> None:
        """Reset all connections of the witnesses so often, each time when they have connected again."""
        for number in range(times):
            before = self._restored()
            self.fleet.cut_witnesses()
            self._until(lambda: self._restored() > before, f"connected again after cut {number}")  # noqa: B023

    def wait_for_jobs(self, count: int) -> None:
        """Until so many more jobs have ended."""
        before = self._events("AttemptCompleted")
        self._until(lambda: self._events("AttemptCompleted") >= before + count, "jobs end")

    def _restored(self) -> int:
        return self._events("ListenerRestored")

    def _events(self, name: str) -> int:
        path = self._directory / "events.jsonl"
        return sum(1 for line in read(path) if line["name"] == name and line["slot"] == WITNESS)

    @staticmethod
    def _until(condition: Callable[[], bool], what: str) -> None:
        async def wait() -> None:
            async with asyncio.timeout(_WAIT):
                while not condition():  # noqa: ASYNC110  (only a look can tell)
                    await asyncio.sleep(0.01)

        try:
            asyncio.run(wait())
        except TimeoutError:
            raise AssertionError(f"not so within {_WAIT:g} s: {what}") from None

    def measured(self) -> dict[str, float]:
        """Come to rest, and measure."""
        self.witnesses.settle()
        facts = self.witnesses.end()
        history = History(self.store.name)
        load_records(history, self._directory)
        history.add("facts", ({"name": name, "value": value} for name, value in facts.items()))
        assert memory_growth.witnesses(history) == 2
        found = memory_growth.growth(history)
        self.report = memory_growth.reported(history)
        history.close()
        return found


@contextmanager
def rig_on(name: str, directory: Path, leak: str | None = None) -> Iterator[Rig]:
    """Witnesses that have begun, with a leak that is planted in them or none."""
    (directory / "gates").mkdir()
    workload = None if leak is None else f"tests.chaos.leaks:{leak}"
    settings = ChaosSettings(PROFILES["full"], store=name, jobs=0, faults=0, workload=workload, directory=directory)
    with ExitStack() as stack:
        store = owned_store(name, directory, durable=False)
        stack.callback(store.close)
        try:
            store.start()
        except EmbeddedServerError as error:
            server_is_missing(error)
        fleet = Fleet(settings, make_plan(settings), store, directory)
        stack.callback(fleet.close)
        rig = Rig(store, fleet, directory)
        stack.callback(rig.witnesses.close)
        rig.witnesses.begin()
        yield rig


@pytest.mark.parametrize("store", ["postgres", "redis"])
def test_connections_that_break_leave_nothing(tmp_path: Path, store: str) -> None:
    with rig_on(store, tmp_path) as rig:
        rig.cut(_CUTS)
        found = rig.measured()
    assert {name: value for name, value in found.items() if value > _MOST[name]} == {}, rig.report


def test_locks_leave_nothing_on_sqlite(tmp_path: Path) -> None:
    with rig_on("sqlite", tmp_path) as rig:
        for _ in range(3):
            rig.store.break_it("lock file", 0.0)
        rig.wait_for_jobs(20)
        found = rig.measured()
    assert {name: value for name, value in found.items() if value > _MOST[name]} == {}, rig.report


@pytest.mark.parametrize("store", ["postgres", "redis"])
def test_an_open_file_for_each_connection_that_broke_is_found(tmp_path: Path, store: str) -> None:
    with rig_on(store, tmp_path, "files") as rig:
        rig.cut(_CUTS)
        found = rig.measured()
    assert found[memory_growth.FILES] >= _CUTS


def test_an_open_file_for_each_job_is_found_on_sqlite(tmp_path: Path) -> None:
    with rig_on("sqlite", tmp_path, "files_of_jobs") as rig:
        rig.wait_for_jobs(_CUTS)
        found = rig.measured()
    assert found[memory_growth.FILES] >= _CUTS


def test_memory_that_is_kept_for_each_connection_that_broke_is_found(tmp_path: Path) -> None:
    with rig_on("postgres", tmp_path, "memory") as rig:
        rig.cut(_CUTS)
        found = rig.measured()
    assert found[memory_growth.RESIDENT] > _MOST[memory_growth.RESIDENT]
    assert found[memory_growth.FILES] <= _MOST[memory_growth.FILES]


def test_a_session_that_no_process_has_is_found(tmp_path: Path) -> None:
    with rig_on("postgres", tmp_path) as rig, psycopg.connect(rig.store.url):
        assert rig.measured()[memory_growth.SESSIONS] == 1


# --- the parts by themselves ------------------------------------------------------------------------------------------


def history_of(*rows: tuple[str, int, int, str, int, int]) -> History:
    """Processes at rest: role, number of the place, process, moment, megabytes, open files (all of them sockets)."""
    history = History()
    names = ("role", "slot", "pid", "rest", "resident", "files")
    history.add(
        "resources",
        (
            {**dict(zip(names, row, strict=True)), "at": number, "kinds": json.dumps({"socket": row[-1]})}
            for number, row in enumerate(rows)
        ),
    )
    return history


def test_what_is_measured() -> None:
    """The most of the two witnesses; of the workers, the one with most beyond a fresh one; none of it less than 0."""
    before = (("worker", WITNESS, 1, "before", 100, 30), ("steady client", WITNESS, 2, "before", 50, 10))
    more = (("worker", WITNESS, 1, "after", 104, 29), ("steady client", WITNESS, 2, "after", 53, 12))
    workers = (("worker", 0, 3, "after", 90, 31), ("worker", 1, 4, "after", 90, 12), ("client", 0, 5, "", 90, 99))
    history = history_of(*before, *more, *workers)
    assert memory_growth.growth(history) == {
        memory_growth.RESIDENT: 6.0,
        memory_growth.FILES: 2.0,
        memory_growth.BEYOND: 1.0,
        memory_growth.SESSIONS: 0.0,
    }
    beyond = memory_growth.reported(history)["files of the worker with most, beyond those of a fresh one"]
    assert beyond == {"socket": 1}
    history.add("resources", [{"role": "worker", "slot": 2, "rest": "after", "files": 34, "allowed": 3, "kinds": "{}"}])
    assert memory_growth.growth(history)[memory_growth.BEYOND] == 1.0
    history.add("resources", [{"role": "worker", "slot": 2, "rest": "after", "files": 35, "allowed": 3, "kinds": "{}"}])
    assert memory_growth.growth(history)[memory_growth.BEYOND] == 2.0
    fuller = history_of(*before, ("steady client", WITNESS, 2, "before", 49, 12), *more)
    assert memory_growth.growth(fuller)[memory_growth.FILES] == 0.0
    less = history_of(*before, *((role, slot, pid, "after", 10, 1) for role, slot, pid, *_ in before))
    assert not any(memory_growth.growth(less).values())
    facts = {"sessions at rest": 7, "connections at rest": 5}
    less.add("facts", ({"name": name, "value": value} for name, value in facts.items()))
    assert memory_growth.growth(less)[memory_growth.SESSIONS] == 2.0


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        pytest.param([100 + min(number, 100) / 10 for number in range(400)], 0.0, id="taken up once"),
        pytest.param([100 + min(number, 220) / 10 for number in range(400)], 0.0, id="taken up by and by"),
        pytest.param([100 + number / 10 for number in range(400)], 30.0, id="a leak"),
        pytest.param([100 + max(number - 200, 0) / 5 for number in range(400)], 40.0, id="a leak that begins late"),
        pytest.param([100 + min(number, 100) / 10 for number in range(150)], 40.0, id="too short to be told"),
    ],
)
def test_what_the_first_faults_take_up_is_no_growth(curve: list[float], expected: float) -> None:
    """Where the run is long enough, what was kept once and for all is told from what grows on."""
    history = history_of(("worker", WITNESS, 1, "before", 100, 30), ("worker", WITNESS, 1, "after", 140, 30))
    history.add(
        "resources",
        ({"role": "worker", "slot": WITNESS, "pid": 1, "at": at, "resident": taken} for at, taken in enumerate(curve)),
    )
    assert memory_growth.growth(history)[memory_growth.RESIDENT] == pytest.approx(expected, abs=5.0)


def test_a_witness_that_died_is_missed() -> None:
    """Then the run proves nothing of leaks, however small it is."""
    history = history_of(
        ("worker", WITNESS, 1, "before", 100, 30), ("steady client", WITNESS, 2, "before", 50, 10),
        ("steady client", WITNESS, 2, "after", 50, 10),
    )  # fmt: skip
    assert memory_growth.witnesses(history) == 1
    for name in ("full", "soak"):
        assert ChaosSettings(PROFILES[name], faults=1).gates[memory_growth.WITNESSES] == 2


def test_where_nothing_can_be_measured_nothing_is_requested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resources, "_PROCESSES", tmp_path)
    assert not can_be_measured()
    settings = ChaosSettings(PROFILES["full"])
    assert memory_growth.WITNESSES not in settings.gates
    assert settings.limits.keys().isdisjoint(memory_growth.OF_PROCESSES)
    assert memory_growth.SESSIONS in settings.limits
    assert not any(memory_growth.growth(History()).values())
    assert memory_growth.reported(History())["open files of the workers at rest"] == "not measured"


def test_sessions_are_those_of_a_server() -> None:
    assert memory_growth.SESSIONS in ChaosSettings(PROFILES["full"], store="redis").limits
    assert memory_growth.SESSIONS not in ChaosSettings(PROFILES["full"], store="sqlite").limits
    assert not ChaosSettings(PROFILES["smoke"]).limits


def test_what_a_process_takes_up(tmp_path: Path) -> None:
    before = taken_by(os.getpid())
    assert before is not None
    with (tmp_path / "file").open("wb"):
        held = b"x" * (64 << 20)
        after = taken_by(os.getpid())
    assert after is not None
    assert after.kinds[str(tmp_path / "file")] == 1
    assert after.resident - before.resident > len(held) / 2
    assert taken_by(2**22 + 1) is None


async def test_all_connections_of_pools_for_redis_are_used(redis_url: str) -> None:
    pools: list[Any] = [
        redis.BlockingConnectionPool.from_url(redis_url, max_connections=3),
        redis.asyncio.BlockingConnectionPool.from_url(redis_url, max_connections=4),
    ]
    await use_all_connections()
    connections = [[*pools[0]._connections], [*pools[1]._available_connections]]
    assert [len(found) for found in connections] == [3, 4]
    assert all(one.is_connected for one in connections[1])
    pools[0].disconnect()
    await pools[1].disconnect()


# --- a whole run ------------------------------------------------------------------------------------------------------


def test_the_whole_command_measures(tmp_path: Path) -> None:
    """The faults of a run, and a report and a page that tell of it."""
    settings = ChaosSettings(
        PROFILES["full"], seed=3, store="sqlite", jobs=40, faults=8, seconds=4.0, directory=tmp_path / "kept"
    )
    report = run_chaos(settings, display=Display(quiet=True), timeline_file=tmp_path / "page.html")
    assert not any(report.violations.values()), report.summary()
    assert report.probes[memory_growth.WITNESSES] == 2
    assert {report.measures[name] for name in (memory_growth.FILES, memory_growth.BEYOND)} == {0.0}, report.summary()
    assert memory_growth.RESIDENT not in report.slow
    for text in ("growth of open files", "witness, worker", "witness, steady client"):
        assert text in report.summary()
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "memory of the witnesses" in page
    assert page.count("<polyline") == 4
