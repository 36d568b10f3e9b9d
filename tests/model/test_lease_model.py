"""Every state that one job, two workers and a reaper can reach: no lease, no attempt and no finish goes wrong."""

from __future__ import annotations

import os

import pytest

from tests.model.lease_model import RULES, Model, explore

LARGE = os.environ.get("QUEUERT_ALL_ORDERS") == "1"
"""Three claims in five ticks instead of two in four: some minutes."""


def test_no_state_breaks_an_invariant() -> None:
    found = explore(Model(claims=3, ticks=5) if LARGE else Model(claims=2, ticks=3))
    assert found.broken is None, found
    assert found.states > 20_000


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: str) -> None:
    found = explore(Model(rule, claims=2, ticks=3))
    assert found.broken is not None
    assert found.way


def test_the_shortest_way_is_reported() -> None:
    """A lease that counts from its answer outlives the server's by one tick."""
    found = explore(Model("a lease counts from before it was asked for"))
    assert found.broken == "a worker believes in its lease for longer than the server does"
    assert [step.rstrip(" 01") for step in found.way] == [
        "asks for a job", "claim is carried out", "tick", "answer arrives"
    ]  # fmt: skip
