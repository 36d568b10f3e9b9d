"""Each invariant holds of a history without faults, and tells of the violation that is planted in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from queuert.testing.chaos.invariants import INVARIANTS, NOT_APPLICABLE, TITLES, check_all
from tests.chaos.support import Planted, healthy

Plant = Callable[[Planted], None]
PLANTS: dict[str, Plant] = {}


def plants(id: str) -> Callable[[Plant], Plant]:
    """Register a violation of an invariant; one of several may be named ``I1 twice``."""

    def register(plant: Plant) -> Plant:
        PLANTS[id] = plant
        return plant

    return register


@plants("I1")
def lost(planted: Planted) -> None:
    planted.requested("lost")


@plants("I2 row alone")
def row_without_chain(planted: Planted) -> None:
    planted.requested("alone", how="transaction", outcome="unknown")
    planted.history.add("business", [{"id": "alone"}])


@plants("I2 chain alone")
def chain_without_row(planted: Planted) -> None:
    planted.requested("good", how="transaction")


@plants("I2 rolled back")
def rolled_back(planted: Planted) -> None:
    planted.requested("good", how="rollback")


@plants("I3")
def invented(planted: Planted) -> None:
    planted.job("invented")
    planted.effect("invented")
    planted.change("invented", None, "ready")
    planted.claimed("invented", 1, "t1")


@plants("I4 open")
def stuck(planted: Planted) -> None:
    planted.requested("stuck")
    planted.job("stuck", "ready", attempt=0)


@plants("I4 failed")
def failed(planted: Planted) -> None:
    planted.requested("failed")
    planted.job("failed", "failed", attempt=0)


@plants("I5")
def claimed_twice(planted: Planted) -> None:
    planted.claimed("good", 2, "t2", old="running")


@plants("I6 token")
def ended_by_another(planted: Planted) -> None:
    planted.change("x", "running", "completed", old_token="t2", new_token="t1", new_attempt=2, old_attempt=2)


@plants("I6 effect")
def effect_of_another(planted: Planted) -> None:
    planted.change("y", "running", "completed", old_token="t2", new_token="t2", new_attempt=2, old_attempt=2)
    planted.effect("y", 1, "t1")


def started_anew(planted: Planted) -> None:
    """Chains that ran at their second attempt or were cancelled, were deleted, and ran again or were cancelled: their
    client repeated a start of which it did not know how it went."""
    planted.requested("anew")
    planted.change("anew", None, "ready")
    planted.claimed("anew", 1, "t1")
    planted.reaped("anew", 1, "t1")
    planted.claimed("anew", 2, "t2")
    first = {"old_attempt": 2, "new_attempt": 2, "old_token": "t2", "new_token": "t2", "output": '{"attempt": 2}'}
    planted.change("anew", "running", "completed", **first)
    planted.effect("anew", 2, "t2")
    _deleted(planted, "anew", "completed")
    planted.change("anew", None, "ready")
    planted.claimed("anew", 1, "t9")
    second = {"old_attempt": 1, "new_attempt": 1, "old_token": "t9", "new_token": "t9", "output": '{"attempt": 1}'}
    planted.change("anew", "running", "completed", **second)
    planted.effect("anew", 1, "t9")
    planted.job("anew", output='{"attempt": 1}')

    planted.lived("then cancelled")
    _deleted(planted, "then cancelled", "completed")
    planted.change("then cancelled", None, "ready")
    planted.change("then cancelled", "ready", "cancelled")
    planted.job("then cancelled", "cancelled", attempt=0)

    planted.requested("cancelled before")
    planted.change("cancelled before", None, "ready")
    planted.change("cancelled before", "ready", "cancelled")
    _deleted(planted, "cancelled before", "cancelled")
    planted.lived("cancelled before")


def _deleted(planted: Planted, id: str, status: str) -> None:
    planted.requested(id, how="outside", op="delete")
    planted.history.rows(f"DELETE FROM s WHERE id = '{id}'")
    planted.change(id, status, None)


@plants("I6 in another life")
def effect_of_another_life(planted: Planted) -> None:
    started_anew(planted)
    planted.history.rows("DELETE FROM e WHERE job_id = 'anew' AND token = 't9'")
    planted.effect("anew", 1, "t8")


@plants("I7 in another life")
def no_effect_of_another_life(planted: Planted) -> None:
    started_anew(planted)
    planted.history.rows("DELETE FROM e WHERE job_id = 'anew' AND token = 't9'")


@plants("I7 in an earlier life")
def two_effects_of_an_earlier_life(planted: Planted) -> None:
    started_anew(planted)
    planted.effect("anew", 2, "t2")


@plants("I8 in another life")
def other_output_of_another_life(planted: Planted) -> None:
    started_anew(planted)
    planted.history.rows("UPDATE s SET output = '1' WHERE id = 'anew'")


@plants("I9 in another life")
def other_attempt_of_another_life(planted: Planted) -> None:
    started_anew(planted)
    planted.history.rows("UPDATE s SET attempt = 2 WHERE id = 'anew'")


@plants("I17 in another life")
def cancelled_again_and_claimed(planted: Planted) -> None:
    started_anew(planted)
    planted.claimed("then cancelled", 1, "t7", old="cancelled")


@plants("I7 twice")
def two_effects(planted: Planted) -> None:
    planted.effect("good")


@plants("I7 for nothing")
def effect_without_completion(planted: Planted) -> None:
    planted.requested("z")
    planted.job("z", "cancelled", attempt=0)
    planted.effect("z")


@plants("I7 missing")
def completion_without_effect(planted: Planted) -> None:
    planted.requested("bare")
    planted.job("bare", attempt=0)


@plants("I8 again")
def changed_after_its_end(planted: Planted) -> None:
    planted.change("good", "completed", "ready", old_attempt=1, new_attempt=1)


@plants("I8 output")
def another_output(planted: Planted) -> None:
    planted.history.add(
        "c", [{"number": 99, "job_id": "good", "kind": "update", "new_status": "completed", "output": "1"}]
    )


@plants("I9 skipped")
def skipped(planted: Planted) -> None:
    planted.change("w", "ready", "running", old_attempt=1, new_attempt=3)


@plants("I9 uncounted")
def not_counted(planted: Planted) -> None:
    planted.requested("few")
    planted.change("few", None, "ready")
    planted.claimed("few", 1, "t1")
    planted.job("few", attempt=0)


@plants("I9 too many")
def beyond_the_cap(planted: Planted) -> None:
    planted.requested("many", type="chaos.poison")
    planted.job("many", "failed", attempt=3, type="chaos.poison")


@plants("I10")
def death_not_counted(planted: Planted) -> None:
    planted.requested("dead")
    planted.job("dead", "failed", attempt=1, type="chaos.poison")


@plants("I11 gap")
def gap(planted: Planted) -> None:
    planted.job("third", chain_id="good", chain_index=2, attempt=0)


@plants("I11 unlinked")
def unlinked(planted: Planted) -> None:
    planted.job("second", chain_id="good", chain_index=1, attempt=0)


@plants("I11 apart")
def continued_apart(planted: Planted) -> None:
    planted.requested("head")
    planted.job("head", "continued", chain_status="completed", continued_by="tail", attempt=0)
    planted.job("tail", chain_id="head", chain_index=1, chain_status=None, attempt=0)
    planted.change("head", "running", "continued", old_token="t", new_token="t", tx="one")
    planted.change("tail", None, "ready", chain_id="head", chain_index=1, tx="other")


@plants("I12")
def two_successors(planted: Planted) -> None:
    for id in ("one", "other"):
        planted.change(id, None, "ready", chain_id="good", chain_index=1)


@plants("I13 stuck")
def blocked_by_nothing(planted: Planted) -> None:
    planted.requested("waits")
    planted.job("waits", "blocked", chain_status="open", attempt=0)
    planted.history.add("b", [{"job_id": "waits", "chain_id": "good"}])


@plants("I13 counter")
def wrong_counter(planted: Planted) -> None:
    planted.requested("counts")
    planted.job("counts", open_blockers=1, attempt=0)


@plants("I13 early")
def claimed_before_its_blocker(planted: Planted) -> None:
    planted.claimed("early", 1, "t1")
    planted.job("early")
    planted.lived("blocker")
    planted.history.add("b", [{"job_id": "early", "chain_id": "blocker"}])


@plants("I14")
def two_of_a_key(planted: Planted) -> None:
    for id in ("one", "two"):
        planted.requested(id)
        planted.job(id, key="k", attempt=0)


@plants("I15")
def stand_in_that_is_gone(planted: Planted) -> None:
    planted.requested("gone", deduplicated=1, key="k")


@plants("I16")
def reaped_too_soon(planted: Planted) -> None:
    planted.reaped("good", 1, "t1", late=-0.2)


@plants("I17 claimed")
def claimed_after_cancel(planted: Planted) -> None:
    planted.change("c", "ready", "cancelled")
    planted.claimed("c", 1, "t1")


@plants("I17 effect")
def effect_of_the_cancelled(planted: Planted) -> None:
    planted.requested("c")
    planted.job("c", "cancelled", attempt=0)
    planted.effect("c")


@plants("I18")
def claimed_before_its_time(planted: Planted) -> None:
    planted.claimed("soon", 1, "t1", old="scheduled", old_scheduled=5_000.0)


@plants("I19 short")
def short_pause(planted: Planted) -> None:
    planted.change(
        "f",
        "running",
        "scheduled",
        type="chaos.flaky",
        old_attempt=1,
        new_attempt=1,
        began=2_000.0,
        new_scheduled=2_000.1,
    )


@plants("I19 none")
def no_pause(planted: Planted) -> None:
    planted.change("f", "running", "ready", type="chaos.flaky", old_attempt=1, new_attempt=1)


@plants("I20")
def touched_without_a_handler(planted: Planted) -> None:
    planted.requested("n")
    planted.job("n", "ready", type="chaos.nobody", attempt=1)


@plants("I21")
def deaf_and_idle(planted: Planted) -> None:
    planted.history.add("f", [{"number": 1, "kind": "cut listeners", "happened": 1, "began": 900.0}])


@plants("I24")
def reported_and_not_so(planted: Planted) -> None:
    planted.history.add("p", [{"name": "AttemptCompleted", "job_id": "again", "attempt": 1, "at": 1.0}])


@plants("I25 code")
def stopped_badly(planted: Planted) -> None:
    planted.history.add("stops", [{"pid": 7, "code": 1, "leases": 0}])


@plants("I25 killed")
def did_not_stop(planted: Planted) -> None:
    """Though a poisonous job had begun there: what killed it is known."""
    planted.job("poisonous", "failed", type="chaos.poison")
    planted.history.add("x", [{"pid": 7, "job_id": "poisonous", "mark": "began"}])
    planted.history.add("stops", [{"pid": 7, "code": -9, "leases": 0, "killed": 1, "began": 1.0, "ended": 34.0}])


@plants("I25 lease")
def stopped_with_a_lease(planted: Planted) -> None:
    planted.history.add("stops", [{"pid": 7, "code": 0, "leases": 1}])
    planted.history.add("leftover", [{"pid": 7, "job_id": "good", "attempt": 1}])
    # It gave up another one, and could not release what another worker did.
    lost = {"name": "AttemptAborted", "detail": "lease_not_renewed", "attempt": 1}
    planted.history.add("p", [lost | {"pid": 7, "job_id": "again"}, lost | {"pid": 8, "job_id": "good"}])


@plants("I26 idle")
def idle_transaction(planted: Planted) -> None:
    planted.fact("idle transactions", 1)


@plants("I26 left")
def connection_left(planted: Planted) -> None:
    planted.fact("connections left", 1)


@plants("I27")
def open_chain_gone(planted: Planted) -> None:
    planted.change("gone", "ready", None)


@plants("I28")
def migration_failed(planted: Planted) -> None:
    planted.fact("migrations that failed", 1)


@plants("I29")
def two_places(planted: Planted) -> None:
    planted.fact("fault of a key", "w:0:type: x does not belong there")


def runs_at_once(planted: Planted, type: str, count: int, *, key: str | None = None, apart: float = 10.0) -> None:
    """So many jobs of a type that begin one after the other, and do not end."""
    for number in range(count):
        id = f"{type}-{number}"
        planted.claimed(id, 1, "t1", type=type, new_lease=2_000.0 + apart * number)
        planted.job(id, type=type, limit_key=key)


@plants("I31 concurrency")
def too_many(planted: Planted) -> None:
    runs_at_once(planted, "chaos.limited", 5)


@plants("I31 key")
def two_of_a_limit_key(planted: Planted) -> None:
    runs_at_once(planted, "chaos.keyed", 2, key="l1")


@plants("I31 rate")
def too_fast(planted: Planted) -> None:
    runs_at_once(planted, "chaos.rated", 6, apart=0.09)


def delivered(planted: Planted, id: str = "sent", *, logged: bool = True, **more: Any) -> None:
    """A completed chain, a delivery that was accepted, and the entry of the log."""
    planted.lived(id, type="chaos.threaded")
    request = {"place": "receiver", "delivery_id": f"d-{id}", "chain_id": id, "status": 204, "verified": 1}
    planted.history.add("w", [{**request, **more}])
    if logged:
        planted.history.add("deliveries", [{"delivery_id": f"d-{id}", "attempt": 1, "status": 204}])


@plants("I22 never sent")
def never_sent(planted: Planted) -> None:
    delivered(planted)
    planted.lived("untold", type="chaos.threaded")


@plants("I22 refused alone")
def refused_alone(planted: Planted) -> None:
    delivered(planted, logged=False, status=500)


@plants("I22 marked before it was sent")
def marked_too_early(planted: Planted) -> None:
    delivered(planted)
    planted.history.add("deliveries", [{"delivery_id": "d-early", "attempt": 1, "status": 204}])


@plants("I22 not in the log")
def not_in_the_log(planted: Planted) -> None:
    delivered(planted, logged=False)


@plants("I22 forged")
def forged(planted: Planted) -> None:
    delivered(planted)
    planted.history.add(
        "w", [{"place": "receiver", "delivery_id": "d", "chain_id": "sent", "status": 204, "verified": 0}]
    )


@plants("I22 of another type")
def of_another_type(planted: Planted) -> None:
    delivered(planted)
    planted.history.add(
        "w", [{"place": "receiver", "delivery_id": "d", "chain_id": "good", "status": 500, "verified": 1}]
    )


@plants("I22 elsewhere")
def elsewhere(planted: Planted) -> None:
    delivered(planted)
    planted.history.add("w", [{"place": "elsewhere", "at": 1.0}])


def test_deliveries_that_come_twice_are_no_violation() -> None:
    planted = healthy()
    delivered(planted)
    again = {"place": "receiver", "delivery_id": "d-sent", "chain_id": "sent", "verified": 1}
    planted.history.add("w", [{**again, "status": 500}, {**again, "status": 204}])
    planted.history.add("deliveries", [{"delivery_id": "d-sent", "attempt": 2, "status": 500, "error": "http"}])
    assert {id: found for id, found in check_all(planted.history).items() if found} == {}


@pytest.mark.parametrize("store", ["postgres", "redis", "sqlite"])
def test_what_the_limits_allow_is_no_violation(store: str) -> None:
    planted = healthy(store)
    runs_at_once(planted, "chaos.limited", 4)
    planted.change("chaos.limited-0", "running", "ready", type="chaos.limited")
    planted.claimed("chaos.limited-0", 2, "t2", type="chaos.limited")
    runs_at_once(planted, "chaos.keyed", 1, key="l1")
    planted.claimed("chaos.keyed-other", 1, "t1", type="chaos.keyed")
    runs_at_once(planted, "chaos.rated", 12, apart=0.1)
    assert INVARIANTS["I31"](planted.history) == []


@plants("I32")
def reaped_behind_a_caller(planted: Planted) -> None:
    detail = "job again from 900.000 to 9000.000"
    kind = "start behind a running job"
    planted.history.add("f", [{"number": 1, "kind": kind, "happened": 1, "detail": detail}])


def test_a_lease_that_died_with_its_worker_is_no_violation() -> None:
    planted = healthy()
    reaped_behind_a_caller(planted)
    planted.change("again", "running", "ready", new_expirations=1)
    planted.history.add("ends", [{"pid": 7, "at": 0.0}])
    planted.history.rows("UPDATE c SET holder = 'chaos-7-x'")
    assert INVARIANTS["I32"](planted.history) == []


@plants("I33")
def starved(planted: Planted) -> None:
    kind = "flood of fresh work"
    planted.history.add("f", [{"number": 1, "kind": kind, "happened": 1, "detail": "job x starved for 8 s"}])


def test_nothing_is_reported_of_a_healthy_history() -> None:
    assert {id: found for id, found in check_all(healthy().history).items() if found} == {}


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_violation_is_reported(name: str) -> None:
    planted = healthy()
    PLANTS[name](planted)
    assert INVARIANTS[name.split()[0]](planted.history)


def test_every_invariant_has_a_planted_violation() -> None:
    assert {name.split()[0] for name in PLANTS} == INVARIANTS.keys() == TITLES.keys()


def test_all_are_accounted_for() -> None:
    assert {f"I{number}" for number in range(1, 34)} == INVARIANTS.keys() | NOT_APPLICABLE.keys()


def test_a_chain_that_runs_again_after_its_deletion_is_no_violation() -> None:
    planted = healthy()
    started_anew(planted)
    assert {id: found for id, found in check_all(planted.history).items() if found} == {}


def test_what_a_client_requested_for_is_no_violation() -> None:
    """Deleting, retrying and completing from outside explain what would be violations otherwise."""
    planted = healthy()
    planted.lived("deleted")
    planted.requested("deleted", how="outside", op="delete")
    planted.history.rows("DELETE FROM s WHERE id = 'deleted'")
    planted.change("deleted", "completed", None)
    planted.requested("back")
    planted.requested("back", how="outside", op="retry")
    planted.change("back", None, "ready")
    planted.change("back", "ready", "cancelled")
    planted.change("back", "cancelled", "ready")
    planted.claimed("back", 1, "t1")
    planted.change("back", "running", "completed", old_attempt=1, new_attempt=1, old_token="t1", new_token="t1")
    planted.effect("back")
    planted.job("back")
    assert {id: found for id, found in check_all(planted.history).items() if found} == {}
