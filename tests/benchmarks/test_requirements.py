"""The requirements of the peers."""

from __future__ import annotations

import re

import pytest

from benchmarks.contestants import bare_postgres, ours
from benchmarks.environments import PEERS
from benchmarks.goals import TARGETS
from benchmarks.model import Kind, Outcome, Series
from benchmarks.scenarios import SCENARIOS, chosen, scenarios
from benchmarks.scenarios_large import DEFAULT, FULL, QUICK, Sizes
from benchmarks.targets import verdicts

_CONTESTANTS = {entry.contestant for scenario in SCENARIOS for entry in scenario.entries}
_NAMES = sorted(one.peer for one in _CONTESTANTS if one.peer is not None)


@pytest.mark.parametrize("name", _NAMES)
def test_everything_is_pinned_with_hashes_and_without_addresses(name: str) -> None:
    text = (PEERS / f"{name}.txt").read_text()
    requirements = [line for line in text.splitlines() if re.match(r"[A-Za-z]", line)]
    assert requirements
    assert all(re.match(r"[\w.-]+==[\w.]+ ", line) for line in requirements)
    lines = text.splitlines()
    assert all("--hash=sha256:" in lines[lines.index(line) + 1] for line in requirements)
    assert "://" not in text
    assert (PEERS / f"{name}.in").exists()


def test_every_label_is_used_once_in_a_scenario() -> None:
    for scenario in SCENARIOS:
        labels = [entry.label for entry in scenario.entries]
        assert len(set(labels)) == len(labels)


def test_ours_comes_first() -> None:
    assert {scenario.entries[0].contestant.kind for scenario in SCENARIOS} == {Kind.OURS}


def test_the_scenarios_of_all_sizes_have_the_same_names() -> None:
    names = [one.name for one in SCENARIOS]
    assert len(set(names)) == len(names)
    for sizes in (QUICK, FULL):
        assert [one.name for one in scenarios(sizes)] == names


def test_only_the_full_size_has_ten_million_rows() -> None:
    rows = {
        name: max(int(entry.options.get("rows", 0)) for one in scenarios(sizes) for entry in one.entries)
        for name, sizes in (("default", DEFAULT), ("full", FULL))
    }
    assert rows == {"default": 1_000_000, "full": 10_000_000}


@pytest.mark.parametrize("sizes", [DEFAULT, QUICK, FULL], ids=["default", "quick", "full"])
def test_every_target_finds_what_it_compares(sizes: Sizes) -> None:
    """With a figure for every entry there is a verdict on every target."""
    sample = dict.fromkeys(["rate", "p50_ms", "p99_ms", "cpu_us", "rss_mib", "wal_bytes", "commits"], 1.0)
    outcomes = [Outcome(one, [Series(entry, 1, {0: sample}) for entry in one.entries]) for one in scenarios(sizes)]
    judged = verdicts(outcomes, TARGETS)
    assert [one.title for one in judged] == [one.title for one in TARGETS]
    assert [one.title for one in judged if one.value is None] == []


def test_every_action_is_there() -> None:
    """Of ours and of the ceiling, which can be asked here."""
    answered = {
        "benchmarks.contestants.ours": ours.ACTIONS,
        "benchmarks.contestants.bare_postgres": bare_postgres.ACTIONS,
    }
    for scenario in SCENARIOS:
        for entry in scenario.entries:
            actions = answered.get(entry.contestant.module)
            if actions is not None:
                needed = {scenario.action, *([scenario.loaded] if scenario.loaded else [])}
                assert needed <= actions.keys(), scenario.name


def test_a_server_a_scenario_and_a_peer_can_be_chosen() -> None:
    assert {one.store.value for one in chosen(SCENARIOS, ["redis"])} == {"redis"}
    assert [one.name for one in chosen(SCENARIOS, ["drain-best"])] == ["drain-best"]
    among = chosen(SCENARIOS, ["drain-best", "pgqueuer"])
    assert [{entry.contestant.name for entry in one.entries} for one in among] == [
        {"queuert", "bare", "pgbench", "pgqueuer"}
    ]
    assert [{entry.contestant.name for entry in one.entries} for one in chosen(SCENARIOS, ["drain-best", "bare"])] == [
        {"bare"}
    ]
    assert chosen(SCENARIOS, ["drain-best", "arq"]) == []
