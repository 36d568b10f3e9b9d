"""Statements of SQLite with one thing changed: the conformance suite must notice."""

from __future__ import annotations

import asyncio

import pytest

from queuert.errors import QueuertError
from queuert.state.sqlite import SQLiteState
from queuert.state.sqlite.connection import statements
from queuert.testing.conformance import Mode, all_cases, builders, run_case

pytestmark = pytest.mark.timeout(300)

CASES = {str(case): case for case in all_cases()}

MUTANTS = [
    # Statement, what is there, what a mutant has instead, and the case that must notice.
    ("claim", "attempt = attempt + 1", "attempt = attempt", "claim-attempts_count_up_by_one"),
    (
        "next_ready",
        "ORDER BY attempt - uncounted - lease_expirations - priority, ",
        "ORDER BY ",
        "claim-best_priority_first",
    ),
    ("next_due_job", "AND scheduled_at <= :now", "", "claim-not_before_its_time"),
    ("renew", "AND lease_token = :token", "", "renew-refuses_a_stranger"),
    ("release", "AND lease_token = :token", "", "release-only_by_its_holder"),
    ("release", "attempt = attempt - 1, ", "", "release-due_at_once_and_not_counted"),
    ("expired_leases", "AND lease_expires_at <= :now", "", "reap-live_leases_are_let_be"),
    ("reap_job", "lease_expirations = lease_expirations + 1, ", "", "reap-fails_at_the_cap"),
    ("finish_job", "uncounted + :uncounted", "uncounted", "waiting-keeps_its_attempts"),
    ("finish_job", "lease_expirations + :crashed", "lease_expirations", "waiting-crashes_are_counted_apart"),
    ("finish_workerless", "lease_token = NULL, ", "", "cancel-holder_learns_why"),
    ("open_dependents", "AND NOT closed", "", "retry_outside-released_ones_stay_released"),
    ("unblock_job", "open_blockers - 1", "0", "blockers-released_by_the_last"),
    ("reblock_job", "SET closed = 0", "SET closed = 1", "waiting-waits_again_for_what_was_opened_again"),
    ("find_open_duplicates", "AND chain_status = 'open'", "", "deduplication-open_scope_ignores_closed_chains"),
    ("find_duplicates", "created_at DESC", "created_at", "deduplication-any_scope_matches_closed_chains"),
    ("find_duplicates", "expires_at > :now", "true", "expired-keys_are_free_again"),
    ("retry_job", "uncounted = attempt, ", "", "retry_outside-attempts_before_do_not_count"),
    ("retry_job", "lease_token = NULL", "lease_token = lease_token", "retry_outside-former_holder_stays_fenced"),
    ("reopen_chain", ", expires_at = NULL", "", "result_ttl-retried_chains"),
    (
        "trigger_job",
        "scheduled_at = min(scheduled_at, :now)",
        "scheduled_at = scheduled_at",
        "trigger-scheduled_job_is_due",
    ),
    ("ready_keys", "AND limit_key = key)", ")", "limits-a_saturated_key_does_not_hold_back_others"),
    ("ready_keys", "started_at > :since", "started_at < :since", "limits-no_more_starts_than_the_rate"),
    ("promote_due", "'ready'", "'scheduled'", "limits-scheduled_and_retried_jobs_are_limited_too"),
    ("find_due_schedule", "AND next_at = :tick", "", "schedules-each_tick_once_by_racers"),
    ("find_due_schedule", "AND NOT paused", "", "schedules-paused_ones_are_not_due"),
    ("delete_schedule", "OR owner = :owner", "OR true", "schedules-deleted_by_owner"),
    ("chain_is_open", "AND chain_status = 'open'", "", "schedules-overlapping_ticks"),
    ("put_schedule", "THEN next_at ELSE", "THEN excluded.next_at ELSE", "schedules-put_again_keeps_pause_and_tick"),
    ("due_schedules", "AND next_at <= :now", "", "schedules-due_by_the_clock"),
    ("pause_type", "coalesce(excluded.reason, reason)", "excluded.reason", "pauses-pauses_are_listed"),
    ("close_chain", "coalesce(:ttl, result_ttl)", "result_ttl", "result_ttl-the_finish_may_say_otherwise"),
    ("insert_job", "(SELECT result_ttl FROM queuert_job WHERE id = :chain_id)", "NULL", "result_ttl-of_a_long_chain"),
    ("find_beyond_retention", "chain_closed_at <= :cut", "false", "retention-by_age"),
    ("retention_cutoff", "created_at DESC, id DESC", "created_at, id", "retention-by_count"),
    ("find_expired", "(expires_at, id) >", "(expires_at, id) >=", "retention-pages_make_the_whole"),
    ("find_expired", "coalesce(stale_at, 0)", "0", "stale-expired_after_it_became_stale"),
    ("record_heartbeat", "seen_at = excluded.seen_at, ", "", "workers-beats_replace_what_was_reported"),
    ("delete_attribute", "AND chain_id = :chain_id", "AND false", "attributes-go_with_the_chain"),
]


@pytest.mark.parametrize(("name", "old", "new", "case"), MUTANTS)
def test_mutants_are_caught(monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str, case: str) -> None:
    statement = statements()[name]
    assert old in statement, "the statement has changed: so must its mutant"
    monkeypatch.setitem(statements(), name, statement.replace(old, new))
    # A case may ask for what never comes: not for as long as on a store that is whole.
    monkeypatch.setattr(builders, "_TRIES", 200)
    state = SQLiteState(answer_timeout=1.0)
    with pytest.raises((AssertionError, ValueError, LookupError, QueuertError)):
        asyncio.run(run_case(CASES[case], state, Mode.SYNC))
    state.close()
