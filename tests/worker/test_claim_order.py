"""In which order a worker asks for jobs: types take turns, and one claim in some begins with worse ranks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from queuert.state.types import ClaimedJob
from queuert.worker.claimer import MAX_ROUND, ROUND, ClaimOrder

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def claimed(type: str = "a", rank: int = 0) -> ClaimedJob:
    return ClaimedJob(
        id="id", type=type, chain_id="id", chain_type=type, chain_index=0, priority=-rank, attempt=1, uncounted=0,
        lease_expirations=0, blocker_count=0, has_dependents=False, input="1", created_at=NOW, scheduled_at=NOW,
        started_at=NOW, lease_seconds=60.0, token="token",
    )  # fmt: skip


def order(*types: str) -> ClaimOrder:
    return ClaimOrder(dict.fromkeys(types or ("a",), 60.0), {}, holder="me")


def take(order: ClaimOrder, *jobs: ClaimedJob) -> tuple[list[str], int | None]:
    """Claim these; what was asked for: the types in their order, and the rank behind which the claim begins."""
    request = order.request(10, 1_000_000)
    order.on_claimed(request, jobs)
    return list(request.leases), request.after_rank


def take_ordinary(order: ClaimOrder, jobs: Sequence[ClaimedJob], times: int = ROUND - 1) -> None:
    for _ in range(times):
        assert take(order, *jobs)[1] is None


def test_the_next_claim_begins_behind_the_type_that_was_served() -> None:
    some = order("a", "b", "c")
    served = [take(some, claimed(type))[0] for type in ("a", "b", "c", "b")]
    assert served == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]
    assert take(some)[0] == ["c", "a", "b"]


def test_of_several_the_last_that_had_its_turn_counts() -> None:
    """Three places for two types: who had two of them this time has one the next."""
    some = order("a", "b")
    assert take(some, claimed("a"), claimed("a"), claimed("b"))[0] == ["a", "b"]
    assert take(some, claimed("b"), claimed("b"), claimed("a"))[0] == ["b", "a"]
    assert take(some)[0] == ["a", "b"]


def test_only_turns_of_the_worst_rank_count() -> None:
    """What a type has by its priority it does not pay for with its turn."""
    some = order("a", "b")
    take(some, claimed("a", -1), claimed("a", -1), claimed("b", 0))
    assert take(some)[0] == ["a", "b"]
    take(some, claimed("a", -1), claimed("a", -1), claimed("a", 0))
    assert take(some)[0] == ["b", "a"]


def test_claims_that_take_nothing_change_nothing() -> None:
    some = order("a", "b")
    for _ in range(3 * ROUND):
        assert take(some) == (["a", "b"], None)


def test_one_claim_in_some_begins_behind_the_ranks_that_are_served_anyway() -> None:
    some = order()
    take_ordinary(some, [claimed(rank=-5), claimed(rank=-3)])
    assert take(some, claimed(rank=-1))[1] == -3
    take_ordinary(some, [claimed(rank=-5)])
    assert take(some, claimed(rank=4), claimed(rank=7))[1] == -1
    take_ordinary(some, [claimed(rank=-5)])
    assert take(some, claimed(rank=7))[1] == 4


def test_behind_the_last_rank_it_begins_anew() -> None:
    some = order()
    take_ordinary(some, [claimed()])
    take(some, claimed(rank=2))
    take_ordinary(some, [claimed()])
    assert take(some, claimed())[1] == 2
    take_ordinary(some, [claimed()])
    assert take(some, claimed(rank=2))[1] == 0


def test_where_there_are_no_worse_ranks_they_are_looked_for_seldom() -> None:
    some = order()
    length = ROUND
    for _ in range(6):
        take_ordinary(some, [claimed()], length - 1)
        assert take(some, claimed())[1] == 0
        length = min(2 * length, MAX_ROUND)
    take_ordinary(some, [claimed()], MAX_ROUND - 1)
    assert take(some, claimed(rank=1))[1] == 0
    take_ordinary(some, [claimed()])
    assert take(some, claimed(rank=1))[1] == 1


def test_an_idle_worker_looks_once() -> None:
    """A claim that began with worse ranks and found nothing at all is not made again at once."""
    some = order()
    take_ordinary(some, [claimed()])
    assert take(some)[1] == 0
    take_ordinary(some, [claimed()])
