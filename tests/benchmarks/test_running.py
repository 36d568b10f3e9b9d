"""Contestants as processes, and one tiny run on real servers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.child import Request
from benchmarks.environments import EnvironmentFailed, Environments
from benchmarks.model import Contestant, Entry, Kind, Scenario, Series, Store
from benchmarks.process import ContestantFailed, ask, ask_together
from benchmarks.roster import BARE as BARE_POSTGRES
from benchmarks.roster import BARE_REDIS, QUEUERT
from benchmarks.runner import Runner, Servers, rotated
from benchmarks.servers import PostgresServer, RedisServer
from tests.benchmarks.building import BARE, MODULE, OURS, PEER, series

_TIMEOUT = 50.0


def _ask(action: str, jobs: int = 10, timeout: float = _TIMEOUT, **options: int) -> dict[str, float]:
    return ask(sys.executable, MODULE, Request(action, "nowhere", jobs, options), timeout=timeout)


@pytest.fixture
def databases(postgres_server: str) -> Iterator[PostgresServer]:
    server = PostgresServer(postgres_server)
    yield server
    server.close()


def test_a_contestant_is_requested_and_answers() -> None:
    answer = _ask("count", jobs=7, seen=3)
    assert (answer["jobs"], answer["seen"]) == (7, 3)
    assert answer["rate"] == pytest.approx(7 / answer["seconds"])
    assert answer["rss_mib"] > 1


def test_other_output_is_passed_over() -> None:
    assert _ask("talk") == {"rate": 1.0}


def test_a_contestant_that_raises_has_failed_with_its_error() -> None:
    with pytest.raises(ContestantFailed, match="this contestant is broken"):
        _ask("fail")


def test_a_contestant_that_takes_too_long_is_ended() -> None:
    with pytest.raises(ContestantFailed, match="took more than 2 s"):
        _ask("hang", timeout=2)


@pytest.mark.timeout(240)
def test_a_peer_that_cannot_be_installed_has_failed_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "rival.txt").write_text("not a requirement !\n")
    environments = Environments(tmp_path / "cache", tmp_path)
    with pytest.raises(EnvironmentFailed, match="cannot be installed"):
        environments.python(PEER)
    assert not list((tmp_path / "cache").glob("*/.complete"))


def test_a_peer_that_needs_a_newer_python_than_there_is_has_failed(tmp_path: Path) -> None:
    far = Contestant("far", MODULE, Kind.PEER, "far", "far", (3, 99))
    with pytest.raises(EnvironmentFailed, match=r"needs Python 3\.99"):
        Environments(tmp_path, tmp_path).python(far)


def test_each_goes_first_in_its_turn() -> None:
    given = [series(one) for one in (OURS, BARE, PEER)]
    order = [[one.entry.contestant.name for one in rotated(given, number)] for number in range(4)]
    assert [names[0] for names in order] == ["queuert", "bare", "rival", "queuert"]
    assert all(sorted(names) == ["bare", "queuert", "rival"] for names in order)


def _scenario(action: str, *entries: Entry, loaded: str | None = None, store: Store = Store.POSTGRES) -> Scenario:
    return Scenario(action, action, store, action, entries, loaded=loaded)


def _run(servers: Servers, scenario: Scenario, rounds: int = 2) -> list[Series]:
    said: list[str] = []
    runner = Runner(servers, Environments(), jobs=20, tell=said.append, timeout=_TIMEOUT)
    [outcome] = runner.run([scenario], rounds)
    assert len(said) >= len(scenario.entries)
    return outcome.series


@pytest.mark.timeout(180)
def test_ours_and_the_ceiling_are_measured_on_postgres(databases: PostgresServer) -> None:
    entries = [Entry(QUEUERT, "ours", options={"concurrency": 10}), Entry(BARE_POSTGRES, "bare", options={"batch": 5})]
    measured = _run(Servers(databases), _scenario("drain", *entries, loaded="load"))
    for one in measured:
        assert one.error is None
        assert set(one.samples) == {0, 1}
        assert all(value > 0 for value in one.values("rate").values())
        assert all(value > 0 for value in one.values("wal_bytes").values())
        assert all(value > 0 for value in one.values("commits").values())


@pytest.mark.timeout(180)
def test_ours_and_the_ceiling_are_measured_on_redis(redis_url: str) -> None:
    server = RedisServer(redis_url)
    entries = [
        Entry(QUEUERT, "ours", options={"concurrency": 10}),
        Entry(BARE_REDIS, "bare", options={"way": "step", "batch": 5}),
    ]
    measured = _run(Servers(redis=server), _scenario("drain", *entries, loaded="load", store=Store.REDIS), rounds=1)
    server.close()
    assert [one.error for one in measured] == [None, None]


@pytest.mark.timeout(120)
def test_a_contestant_that_fails_does_not_stop_the_others(databases: PostgresServer) -> None:
    broken = Contestant("broken", "tests.benchmarks.there_is_no_such_module", Kind.PEER)
    measured = _run(Servers(databases), _scenario("count", Entry(broken, "broken"), Entry(OURS, "ours")))
    assert "there_is_no_such_module" in (measured[0].error or "")
    assert measured[0].samples == {}
    assert measured[1].error is None
    assert set(measured[1].samples) == {0, 1}


@pytest.mark.timeout(120)
def test_a_paced_contestant_is_started_first_and_answers_last(databases: PostgresServer) -> None:
    scenario = Scenario(
        "latency", "latency", Store.POSTGRES, "await_jobs", (Entry(OURS, "ours"),), metric="p50_ms", paced=True
    )
    [measured] = _run(Servers(databases), scenario, rounds=1)
    assert measured.error is None
    assert measured.samples[0] == {"p50_ms": 1.5, "p99_ms": 2.5}


def test_several_processes_begin_together_and_are_counted_together() -> None:
    request = Request("share", "nowhere", 100, {"processes": 3})
    answer = ask_together(sys.executable, MODULE, request, 3, timeout=_TIMEOUT)
    assert (answer["cpu_us"], answer["rss_mib"]) == (6.0, 9.0)
    assert answer["rate"] == pytest.approx(100 / answer["seconds"])


def test_one_of_several_that_fails_has_them_all_fail() -> None:
    with pytest.raises(ContestantFailed, match="this contestant is broken"):
        ask_together(sys.executable, MODULE, Request("fail", "nowhere", 1, {"processes": 2}), 2, timeout=_TIMEOUT)


@pytest.mark.timeout(120)
def test_half_of_what_was_drained_is_offered(databases: PostgresServer) -> None:
    scenario = Scenario(
        "load", "load", Store.POSTGRES, "await_rate", (Entry(OURS, "ours"),), metric="p50_ms", paced=True, load=0.5
    )
    [measured] = _run(Servers(databases), scenario, rounds=1)
    assert measured.samples[0] == {"p50_ms": 150.0, "p99_ms": 50.0, "offered_rate": 50.0}


@pytest.mark.timeout(120)
def test_a_snapshot_is_held_and_a_kept_database_is_used_again(databases: PostgresServer) -> None:
    entries = [Entry(OURS, "held", snapshot=True), Entry(OURS, "kept", options={"rows": 1}, kept=True)]
    held, kept = _run(Servers(databases), _scenario("look", *entries, loaded="load"))
    assert [(one["snapshots"], one["looks"]) for one in held.samples.values()] == [(1, 0), (1, 0)]
    assert [(one["snapshots"], one["looks"]) for one in kept.samples.values()] == [(0, 0), (0, 1)]


@pytest.mark.timeout(180)
def test_ours_and_the_ceiling_are_timed_in_a_backlog(databases: PostgresServer) -> None:
    entries = [Entry(one, one.name, options={"rows": 50, "passed": 5}) for one in (QUEUERT, BARE_POSTGRES)]
    scenario = Scenario(
        "claim", "claim", Store.POSTGRES, "claim", tuple(entries), loaded="load_rows", metric="p50_ms", observed=False
    )
    for one in _run(Servers(databases), scenario, rounds=1):
        assert one.error is None
        assert set(one.samples[0]) == {"p50_ms", "p99_ms"}


@pytest.mark.timeout(180)
def test_the_ceiling_is_measured_on_our_own_table(databases: PostgresServer) -> None:
    own = {"table": "own", "prepare": "own", "batch": 5}
    for scenario in (
        _scenario("drain", Entry(BARE_POSTGRES, "bare", options=own), loaded="load"),
        _scenario("start_copy", Entry(BARE_POSTGRES, "bare", options=own)),
        _scenario("start_single", Entry(BARE_POSTGRES, "bare", options=own)),
    ):
        [measured] = _run(Servers(databases), scenario, rounds=1)
        assert measured.error is None
