"""What scripts answer is read by the names of its values: an answer with one too many, or too few, is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from queuert.state.redis import decode
from queuert.state.types import ClaimRequest

REQUEST = ClaimRequest({"work": 60.0}, 1, "me", "token")

CLAIMED = [
    *("job", "work", "chain", "work", "0", "0", "1", "0", "0", "0", False, "{}"),
    *("1", "2", "3", False, False, False, False),
]
READERS: list[tuple[Callable[[Any], Any], list[Any]]] = [
    (decode.started, ["job", "work", "ready", "1", 0, "open", 0]),
    (lambda answer: decode.claimed(answer, REQUEST), CLAIMED),
    (decode.finished, ["job", "", {}, ""]),
    (decode.reaped, [b"-1", [[b"job", b"work", b"chain", b"work", b"ready", 1, b"me", [b"work"], None]]]),
    (decode.blocker, [b"chain", b"work", b"open", b"work", None, None, None]),
    (lambda answer: decode.steps(answer, 1), [b"1", [b'["step", 1, "1", ""]\n7']]),
    (decode.type_count, [b"work", b"ready", 1, b"-1"]),
    (decode.type_demand, [b"work", 1, 0, 0, 0, b"-1"]),
    (decode.wait_facts, [b"1", None, 0, 0, 0, None, 0, None, None, [], [], []]),
    (decode.update, [b"chain", b"work", b"open", b"job", b"work", b"ready", 1, [], None, None]),
    (decode.triggered, [b"job", b"work"]),
]


@pytest.mark.parametrize(("read", "answer"), READERS)
def test_an_answer_of_another_length_is_refused(read: Callable[[Any], Any], answer: list[Any]) -> None:
    assert read(answer)
    for other in ([*answer, b"more"], answer[:-1]):
        with pytest.raises(ValueError, match="unpack"):
            read(other)


def test_a_claimed_job_with_damaged_times_fails_alone() -> None:
    """An attempt is made of it, which fails; the values that can be read are those of the job."""
    *known, created, _, started, trace, _, attempt_trace, most = CLAIMED
    claimed = decode.claimed([*known, created, "soon", started, trace, "long", attempt_trace, most], REQUEST)
    assert claimed.fault
    assert (claimed.id, claimed.attempt, claimed.input, claimed.result_ttl) == ("job", 1, "{}", None)
