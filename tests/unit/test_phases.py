"""Phases: what may be declared, and the arithmetic of their progress."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from queuert import JobType
from queuert.errors import ConfigurationError, DefinitionError, StepMisuseError
from queuert.progress import checked_progress
from queuert.state.types import ClaimedJob
from queuert.worker.phases import PhaseTracker

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def declared(phases: Any) -> JobType[int, int]:
    return JobType("work", input=int, output=int, phases=phases)


def tracker(phases: Any = ("a", "b", "c", "d"), attempt: int = 1) -> PhaseTracker:
    claimed = ClaimedJob(
        id="j", type="work", chain_id="j", chain_type="work", chain_index=0, priority=0, attempt=attempt, uncounted=0,
        lease_expirations=0, blocker_count=0, has_dependents=False, input="1", created_at=NOW, scheduled_at=NOW,
        started_at=NOW, lease_seconds=60.0, token="t",
    )  # fmt: skip
    return PhaseTracker(claimed, declared(phases))


def recorded(phases: PhaseTracker, fraction: float | None, message: str | None = None) -> dict[str, Any] | None:
    stored: list[str] = []
    phases.record(checked_progress(None, None, fraction, message), stored.append)
    return json.loads(stored[0]) if stored else None


def test_names_and_weights_are_kept_in_order() -> None:
    assert list(declared(["b", "a"]).phases.items()) == [("b", 1.0), ("a", 1.0)]
    video = declared({"b": 2, "a": 0.5})
    assert list(video.phases.items()) == [("b", 2.0), ("a", 0.5)]
    assert pickle.loads(pickle.dumps(video)).phases == video.phases
    assert declared(()).phases == {}


@pytest.mark.parametrize(
    "phases",
    [
        "abc", 7, [1], ["a", "a"], ["a b"], [""], {"a": 0}, {"a": -1}, {"a": float("inf")}, {"a": float("nan")},
        {"a": True}, {"a": "1"}, [f"p{number}" for number in range(101)],
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(phases: Any) -> None:
    with pytest.raises(DefinitionError, match="work"):
        declared(phases)


def test_weights_make_up_the_progress() -> None:
    phases = tracker({"a": 3, "b": 6, "c": 1})
    phases.check("a", None)
    assert json.loads(phases.begin("a"))["fraction"] == 0.0
    with phases.running(lambda report: None):
        half = recorded(phases, 0.5)
        assert half is not None
        assert (half["fraction"], half["phase"]["fraction"]) == (pytest.approx(0.15), 0.5)
    assert json.loads(phases.complete())["fraction"] == pytest.approx(0.3)
    # Between phases only the message is new.
    between = recorded(phases, 0.9, "soon")
    assert between is not None
    assert (between["fraction"], between["message"]) == (pytest.approx(0.3), "soon")
    # A phase that is left out counts as done.
    phases.check("c", None)
    assert json.loads(phases.begin("c"))["fraction"] == pytest.approx(0.9)
    assert json.loads(phases.complete())["fraction"] == 1.0


def test_progress_never_decreases() -> None:
    phases = tracker({"a": 1, "b": 1})
    phases.begin("a")
    with phases.running(lambda report: None):
        for fraction, overall in ((0.8, 0.4), (0.2, 0.4), (0.9, 0.45)):
            found = recorded(phases, fraction)
            assert found is not None
            assert found["fraction"] == pytest.approx(overall)
    phases.complete()
    # A weight that becomes known makes the rest longer, not what is done less.
    phases.check("b", 9)
    assert json.loads(phases.begin("b"))["fraction"] == pytest.approx(0.5)
    with phases.running(lambda report: None):
        later = recorded(phases, 0.5)
    assert later is not None
    assert later["fraction"] == pytest.approx((1 + 4.5) / 10)
    # The next attempt goes on from what was stored.
    again = tracker({"a": 1, "b": 1}, attempt=2)
    assert recorded(again, 0.5) is None
    assert not again.knows_progress
    again.replay("a")
    assert recorded(again, 0.5) is None
    again.continue_from(json.dumps({**later, "attempt": 1}))
    assert json.loads(again.begin("b"))["fraction"] == pytest.approx(0.55)


@pytest.mark.parametrize("stored", [None, "no JSON", "{}", '{"attempt": 1, "at": "2026-01-01T00:00:00+00:00"}'])
def test_progress_that_cannot_be_read_is_none(stored: str | None) -> None:
    phases = tracker(attempt=2)
    phases.continue_from(stored)
    assert json.loads(phases.begin("b"))["fraction"] == pytest.approx(0.25)


def test_phases_have_an_order() -> None:
    phases = tracker()
    phases.begin("b")
    phases.check("b", None)
    phases.check("d", None)
    with pytest.raises(StepMisuseError, match="'a' after 'b'"):
        phases.check("a", None)
    with pytest.raises(StepMisuseError, match=r"'e' must be declared .*got a, b, c, d"):
        phases.check("e", None)
    with pytest.raises(StepMisuseError, match="got none"):
        tracker(()).check("a", None)
    for weight in (0, -1, float("nan"), "1"):
        with pytest.raises(ConfigurationError, match="weight of phase 'c'"):
            phases.check("c", weight)  # type: ignore[arg-type]
