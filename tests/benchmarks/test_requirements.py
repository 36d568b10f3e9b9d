"""The requirements of the peers."""

from __future__ import annotations

import re

import pytest

from benchmarks.environments import PEERS
from benchmarks.model import Kind
from benchmarks.scenarios import SCENARIOS, chosen

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


def test_a_server_a_scenario_and_a_peer_can_be_chosen() -> None:
    assert {one.store.value for one in chosen(SCENARIOS, ["redis"])} == {"redis"}
    assert [one.name for one in chosen(SCENARIOS, ["drain-best"])] == ["drain-best"]
    among = chosen(SCENARIOS, ["drain-best", "pgqueuer"])
    assert [{entry.contestant.name for entry in one.entries} for one in among] == [{"queuert", "bare", "pgqueuer"}]
    assert [{entry.contestant.name for entry in one.entries} for one in chosen(SCENARIOS, ["drain-best", "bare"])] == [
        {"bare"}
    ]
    assert chosen(SCENARIOS, ["drain-best", "arq"]) == []
