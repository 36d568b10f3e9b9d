"""What is wrong with the arguments of a run is said before anything starts; and what is asked, a run can have."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from queuert.cli import main
from queuert.cli.exit_codes import Exit
from queuert.testing.chaos import PROFILES, ChaosSettings, files, fork_server, memory_growth, run, run_chaos
from queuert.testing.chaos.catalogue import WORKERS_KILLED
from queuert.testing.chaos.display import Display
from queuert.testing.chaos.dry_run import rehearse
from queuert.testing.chaos.fleet import Fleet
from queuert.testing.chaos.history import History
from queuert.testing.chaos.plan import make_plan
from queuert.testing.chaos.processes import ChaosError, Nursery
from queuert.testing.chaos.profiles import STORES
from queuert.testing.chaos.report import OF_FIGURES, measured
from queuert.testing.chaos.thresholds import STARTS, requested_of
from queuert.testing.chaos.workload import load
from tests.chaos import workload as users

pytestmark = pytest.mark.timeout(180)

_ROOT = Path(__file__).parents[2]
_TINY = ("dev", "chaos", "--store", "sqlite", "--jobs", "60", "--faults", "1", "--seconds", "1")
SMOKE = PROFILES["smoke"]


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes a store fails."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a store was made")

    monkeypatch.setattr(run, "owned_store", refuse)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is said of arguments that are wrong, in one line."""
    assert main([*_TINY, *arguments]) == Exit.USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


# --- paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["report", "timeline"])
@pytest.mark.parametrize(("where", "why"), [("none/x.json", "No such file"), (".", "directory"), ("file/x", "")])
def test_a_file_that_cannot_be_written(
    nothing_starts: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, where: str, why: str
) -> None:
    (tmp_path / "file").touch()
    said = refused(capsys, f"--{option}", str(tmp_path / where))
    assert f"cannot write the {option} to {tmp_path / where}" in said
    assert why in said


@pytest.mark.parametrize("where", ["file", "file/x"])
def test_a_directory_that_is_none(
    nothing_starts: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    (tmp_path / "file").touch()
    assert f"the directory of a run must be writable, got {tmp_path / where}" in refused(
        capsys, "--directory", str(tmp_path / where)
    )


def test_trying_changes_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("of the run before")
    files.try_paths(report=kept, timeline=tmp_path / "new")
    files.try_paths(report=Path("/dev/stdout"), timeline=None)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("kept", "of the run before")]


def test_files_in_the_directory_of_the_run(tmp_path: Path) -> None:
    """It is made first, and is still an empty one."""
    settings = ChaosSettings(SMOKE, store="sqlite", directory=tmp_path / "one" / "kept")
    for _ in range(2):
        with files.directory_of(settings) as directory:
            files.try_paths(report=directory / "report.json", timeline=directory / "page.html")
            assert list(directory.iterdir()) == []


# --- workloads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("nomod:x", "No module named 'nomod'"),
        ("json", "no workload 'json'"),
        ("json:dumps", "must be a queuert.testing.chaos.Workload, got"),
        ("tests.chaos.unimportable:x", "LookupError: there is no environment (unimportable.py, line 3)"),
        ("tests.chaos.workloads:raises", "(workloads.py, line 17)"),
        ("tests.chaos.workloads:raises_later", "LookupError: there is no customer"),
        ("tests.chaos.workloads:gives_a_number", "must return a NewChain, got int"),
        ("tests.chaos.workloads:gives_a_wrong_input", "is invalid"),
        ("tests.chaos.workloads:gives_what_nobody_handles", "the job type 'unhandled': add a handler"),
        ("tests.chaos.workloads:has_no_processors", "LookupError: there is no table of customers"),
    ],
)
def test_a_workload_that_cannot_take_part(
    nothing_starts: None, capsys: pytest.CaptureFixture[str], target: str, why: str
) -> None:
    assert why in refused(capsys, "--workload", target)


def test_a_workload_that_can() -> None:
    plan = make_plan(ChaosSettings(SMOKE, jobs=60, workload="tests.chaos.workload:workload"))
    found = rehearse(users.workload, plan)
    assert (found.timeout, found.repeats) == (301.0, 0)  # A lease, and the longest pause of the policy of retries.


def test_the_workload_in_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (_ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    [code] = [found for found in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "Workload(" in found]
    (tmp_path / "documented_workload.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    settings = ChaosSettings(SMOKE, jobs=60, workload="documented_workload:workload")
    assert settings.workload is not None
    assert rehearse(load(settings.workload), make_plan(settings)).timeout == 2.0


@pytest.mark.parametrize(("target", "timeout"), [("with_timeout", 360.0), ("without_end", 600.0)])
def test_what_ends_late_by_its_policies_is_waited_for(target: str, timeout: float) -> None:
    """For a lease and the longest pause of the policies, or ten minutes."""
    target = f"tests.chaos.workloads:{target}"
    plan = make_plan(ChaosSettings(SMOKE, jobs=60, workload=target))
    assert rehearse(load(target), plan).timeout == timeout


def test_a_drain_waits_for_what_ends_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is over when nothing has ended for longer than that; a clock of the test's own goes on at each look."""
    looks: list[float] = []

    class Store:
        def open_jobs(self) -> int:
            return 1

    clock = SimpleNamespace(monotonic=lambda: float(len(looks)), sleep=looks.append)
    monkeypatch.setattr("queuert.testing.chaos.run.time", clock)
    conductor = object.__new__(run.Conductor)
    receiver = SimpleNamespace(unread=False)
    conductor.__dict__.update(
        _receiver=receiver, _store=Store(), _display=Display(quiet=True), _stuck_seconds=run.STUCK_SECONDS + 7.0
    )
    conductor._drain()
    assert len(looks) == 37


def test_of_starts_of_one_key_the_first_counts() -> None:
    """The others may be given its chain: then they begin none, and the gate does not ask for it."""
    target = "tests.chaos.workloads:of_three_customers"
    settings = ChaosSettings(SMOKE, jobs=200, workload=target)
    plan = make_plan(settings)
    custom = sum(op.how == "custom" for ops in plan.ops for op in ops)
    repeats = rehearse(load(target), plan).repeats
    assert repeats == custom - 3
    assert requested_of(settings, plan)[STARTS] == settings.gates[STARTS] == 181
    assert requested_of(settings, plan, repeats)[STARTS] == 2_000 * (200 - repeats) // 2_200 < 166


# --- processes --------------------------------------------------------------------------------------------------------


def test_a_zygote_that_nobody_listens_to_ends_without_a_word() -> None:
    process = subprocess.Popen(
        fork_server.command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=fork_server.environment(),
    )
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate()
    assert (process.returncode, said) == (0, b"")


def test_a_run_that_does_not_come_about_ends_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Fleet] = []
    close = Fleet.close

    def note(self: Fleet) -> None:
        closed.append(self)
        close(self)

    def refuse(*_: Any) -> None:
        raise ChaosError("no")

    monkeypatch.setattr(Fleet, "close", note)
    monkeypatch.setattr(run, "Operator", refuse)
    with pytest.raises(ChaosError):
        run_chaos(ChaosSettings(SMOKE, store="sqlite", jobs=0, faults=0, seconds=1.0))
    assert len(closed) == 1


def test_a_fleet_that_does_not_come_about_ends_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Nursery] = []
    close = Nursery.close

    def note(self: Nursery) -> None:
        closed.append(self)
        close(self)

    def refuse(*_: Any) -> None:
        raise ChaosError("no")

    monkeypatch.setattr(Nursery, "close", note)
    monkeypatch.setattr(Fleet, "_worker", refuse)
    with pytest.raises(ChaosError):
        run_chaos(ChaosSettings(SMOKE, store="sqlite", jobs=0, faults=0, seconds=1.0))
    assert len(closed) == 1


def test_the_run_itself_failing_is_no_violation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ChaosError("the process that forks the others has ended")

    monkeypatch.setattr(run, "owned_store", fail)
    assert main([*_TINY]) == Exit.UNAVAILABLE
    assert "the chaos run failed: the process that forks" in capsys.readouterr().err


@pytest.mark.fault
def test_an_interrupted_run_says_so_at_once() -> None:
    arguments = ("--store", "sqlite", "--jobs", "40", "--faults", "4", "--seconds", "100")
    process = subprocess.Popen(
        [sys.executable, "-m", "queuert", "dev", "chaos", *arguments],
        cwd=_ROOT,
        stderr=subprocess.PIPE,
        text=True,
        # Where the tests themselves run in the background of a shell, SIGINT is ignored, and children inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "faults 0 of 4" in line or "faults 1 of 4" in line:
            process.send_signal(signal.SIGINT)
            break
    said = process.stderr.read().splitlines()
    process.stderr.close()
    assert (process.wait(), said[-2:]) == (
        Exit.INTERRUPTED,
        ["interrupted: finish everything", "queuert: interrupted"],
    ), said


# --- what is asked, and what is told ----------------------------------------------------------------------------------


def test_a_small_run_is_requested_for_what_its_plan_holds() -> None:
    """Seven kinds are planned there, and the profile asks for eight."""
    settings = ChaosSettings(SMOKE, seed=3, store="sqlite", jobs=300, faults=12, seconds=6.0)
    plan = make_plan(settings)
    assert len({fault.kind for fault in plan.faults}) == 7
    gates = requested_of(settings, plan)
    assert (gates["faults"], gates["kinds of fault"], gates["kinds of poison buried"]) == (10, 5, 4)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", ["smoke", "full"])
def test_every_small_run_can_pass(store: str, name: str) -> None:
    profile = PROFILES[name]
    for faults in (0, 1, 4, 8, 14, 16, 17, 24, 40):
        settings = ChaosSettings(profile, seed=faults, store=store, jobs=5 * faults, faults=faults, seconds=5.0)
        plan = make_plan(settings)
        gates = requested_of(settings, plan)
        kinds = Counter(fault.kind for fault in plan.faults)
        how = Counter(op.how for ops in plan.ops for op in ops)
        assert gates["faults"] <= faults
        assert gates["kinds of fault"] <= len(kinds)
        assert gates["kinds of poison buried"] <= len({fault.payload for fault in plan.faults} - {""})
        assert gates["workers killed"] <= sum(kinds[kind] for kind in WORKERS_KILLED)
        assert gates["starts of one key within 5 ms"] <= 3 * how["duel"]
        assert gates.get("blockers that closed in overlap", 0) <= how["group"]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", ["smoke", "full"])
def test_a_run_of_the_whole_size_is_requested_for_all(store: str, name: str) -> None:
    for seed in range(3):
        settings = ChaosSettings(PROFILES[name], store=store, seed=seed)
        assert requested_of(settings, make_plan(settings)) == settings.gates


def test_what_nothing_was_measured_of() -> None:
    history = History()
    assert memory_growth.unmeasured(history) == set(memory_growth.ALL)
    history.add("facts", [{"name": "sessions at rest", "value": 3}, {"name": "connections at rest", "value": 3}])
    assert memory_growth.unmeasured(history) == set(memory_growth.OF_PROCESSES)
    taken = {"role": "worker", "slot": -2, "pid": 1, "at": 1.0, "resident": 1, "files": 1, "kinds": "{}"}
    history.add("resources", [taken | {"rest": "before"}, taken | {"rest": "after"}])
    assert memory_growth.unmeasured(history) == set()
    counts = {figure: {"count": number} for number, figure in enumerate(OF_FIGURES.values())}
    empty, full = OF_FIGURES
    assert measured({empty: 0.0, full: 0.0, "drain": 0.0}, counts, ()) == {empty: None, full: 0.0, "drain": 0.0}


def test_a_whole_run_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without witnesses nothing is measured of them; and a file that cannot be written takes nothing else with it."""
    page = tmp_path / "page.html"

    def rest(conductor: Any) -> None:
        page.mkdir()

    monkeypatch.setattr(run.Conductor, "rest", rest)
    settings = ChaosSettings(replace(SMOKE, workers=1, clients=1), store="sqlite", jobs=3, faults=0, seconds=0.5)
    report = run_chaos(settings, timeline_file=page, report_file=tmp_path / "report.json")
    assert [name for name in memory_growth.ALL if report.measures[name] is not None] == []
    for name in memory_growth.ALL:
        assert f"{name}: not measured" in report.summary()
    assert report.exit_code == 3
    assert (report.silent, report.slow) == ({}, {})
    assert f"NOT WRITTEN: {page}" in report.summary()
    assert str(page) in (tmp_path / "report.json").read_text(encoding="utf-8")
