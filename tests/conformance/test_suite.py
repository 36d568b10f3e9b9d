"""The conformance suite itself: complete, named, and able to fail."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest
from psycopg import sql

from queuert.errors import QueuertError
from queuert.state import Capability
from queuert.state.postgres import PostgresState
from queuert.state.postgres.statements import Statements, variants
from queuert.state.postgres.sync_claiming import PostgresClaiming
from queuert.state.postgres.sync_finishing import PostgresFinishing
from queuert.state.types import Renewal
from queuert.testing.conformance import Case, Mode, all_cases, builders, run_case
from queuert.testing.conformance.pytest_plugin import conformance_tests
from tests.conformance import sampling
from tests.conformance.test_postgres import Rows
from tests.support.statements import replace_statements
from tests.support.waiting import WAIT

CASES = {str(case): case for case in all_cases()}

MUTANTS = [
    # Statement, what is there, what a mutant has instead, and the case that must notice.
    ("claim", "attempt = attempt + 1", "attempt = attempt", "claim-attempts_count_up_by_one"),
    ("claim", "ORDER BY head.rank, head.turn", "ORDER BY unpaused.type", "claim-oldest_first_across_types"),
    ("claim", "ORDER BY head.rank, head.turn", "ORDER BY head.rank", "claim-types_take_turns"),
    ("claim", "head.turn, unpaused.position", "head.turn, unpaused.type", "claim-types_take_turns"),
    ("claim", "PARTITION BY rank ORDER BY", "ORDER BY", "claim-turns_are_within_a_rank"),
    ("claim", "priority, unpaused.first_rank)", "priority)", "claim-scheduled_ones_stand_where_a_claim_begins"),
    ("select_admissible", "ORDER BY rank, turn, array", "ORDER BY rank, array", "limited_types-types_take_turns"),
    (
        "select_admissible",
        "PARTITION BY type, rank ORDER BY scheduled_at, id",
        "PARTITION BY type ORDER BY scheduled_at, id",
        "limited_types-types_take_turns",
    ),
    (
        "claim",
        "ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at",
        "ORDER BY scheduled_at",
        "claim-best_priority_first",
    ),
    ("claim", "AND scheduled_at <= statement_timestamp()", "", "claim-not_before_its_time"),
    ("claim", "scheduled_at LIMIT shares.due", "scheduled_at DESC LIMIT shares.due", "claim-longest_due_first"),
    (
        "claim_rest",
        "scheduled_at LIMIT missing.number",
        "scheduled_at DESC LIMIT missing.number",
        "claim-next_best_for_those_that_are_held",
    ),
    (
        "claim_rest",
        "job.ctid <> ALL (ARRAY(SELECT tid FROM locked))",
        "true",
        "claim-next_best_for_those_that_are_held",
    ),
    ("claim_rest", "LIMIT (SELECT number FROM missing)", "", "claim-limit_is_kept_where_some_are_held"),
    ("claim_one_type", "priority, scheduled_at LIMIT", "priority DESC LIMIT", "claim-ready_ones_alone"),
    ("claim_one_type", "WHERE paused_type.type", "WHERE false AND paused_type.type", "claim-ready_ones_alone"),
    ("claim_one_type", "THEN -1 ELSE 0", "THEN 0 ELSE 0", "claim-ready_ones_alone"),
    ("claim_one_type", "SKIP LOCKED", "", "claim-ready_ones_alone_for_those_that_are_held"),
    ("claim_next_key", "limit_key > %(cursor)s", "limit_key >= %(cursor)s", "key_turns-one_job_of_each_key_in_turn"),
    ("claim_next_key", "limit_key IS NULL", "false", "key_turns-jobs_without_a_key_have_turns_like_one_key"),
    ("claim_next_key", "limit_key <= ", "limit_key > ", "key_turns-one_job_of_each_key_in_turn"),
    (
        "claim_next_key",
        "priority, scheduled_at LIMIT",
        "priority DESC LIMIT",
        "key_turns-priority_and_age_decide_within_a_key",
    ),
    (
        "claim_next_key",
        "WHERE paused_type.type",
        "WHERE false AND paused_type.type",
        "key_turns-paused_types_are_left_out",
    ),
    (
        "claim_next_key",
        "SET status = 'ready'",
        "SET status = status",
        "key_turns-scheduled_jobs_have_turns_when_they_are_due",
    ),
    ("claim_next_key", "SKIP LOCKED", "", "key_turns-what_others_hold_is_passed_over"),
    ("claim_next_keys", "limit_key IS NULL", "false", "key_turns-many_jobs_of_many_keys_in_turn"),
    ("claim_next_keys", ")[count(*)] AS last", ")[1] AS last", "key_turns-many_jobs_of_many_keys_in_turn"),
    (
        "claim_next_keys",
        "priority, scheduled_at LIMIT",
        "priority DESC LIMIT",
        "key_turns-many_jobs_by_priority_and_age_within_a_key",
    ),
    (
        "claim_next_keys",
        "WHERE paused_type.type",
        "WHERE false AND paused_type.type",
        "key_turns-paused_types_are_left_out",
    ),
    (
        "claim_next_keys",
        "SET status = 'ready'",
        "SET status = status",
        "key_turns-scheduled_jobs_of_several_keys_when_they_are_due",
    ),
    ("claim_next_keys", "<= %(max_bytes)s AS fits", ">= 0 AS fits", "key_turns-bounded_by_the_size_of_inputs"),
    ("claim_next_keys", "SKIP LOCKED", "", "key_turns-several_jobs_but_for_what_others_hold"),
    ("renew", "AND lease_token = params.token", "", "renew-refuses_a_stranger"),
    ("renew", "SKIP LOCKED", "", "renew-passes_over_a_locked_job"),
    ("release", "AND lease_token = params.token", "", "release-only_by_its_holder"),
    ("release", "attempt = attempt - 1,", "", "release-due_at_once_and_not_counted"),
    ("finish", "%(closes_awaited)s OR NOT has_dependents", "true", "blockers-any_close_releases"),
    ("finish", "kind IN ('interrupt', 'wait', 'snooze')", "kind = 'interrupt'", "waiting-keeps_its_attempts"),
    (
        "finish",
        "kind IN ('interrupt', 'wait', 'snooze')",
        "kind IN ('interrupt', 'wait')",
        "steps-snooze_makes_due_later",
    ),
    ("record_step", "AND lease_token = %(token)s::uuid", "", "steps-of_a_lost_lease_are_refused"),
    ("record_step", "AND lease_expires_at IS NOT NULL", "", "steps-of_a_lost_lease_are_refused"),
    ("lock_waiting_job", "AND lease_token = %(token)s::uuid", "", "sent_events-waits_without_the_lease_are_refused"),
    ("answer_wait", "ORDER BY number", "ORDER BY number DESC", "sent_events-sent_before_the_wait_are_taken_in_order"),
    ("answer_wait", "AND EXISTS (SELECT FROM step)", "", "sent_events-sent_before_the_wait_are_taken_in_order"),
    (
        "wake_receivers",
        "AND job_step.wake_at = job.scheduled_at",
        "",
        "sent_events-do_not_wake_what_waits_for_another_reason",
    ),
    (
        "wake_receivers",
        "status = 'scheduled'",
        "status = 'none'",
        "sent_events-sent_between_wait_and_snooze_are_not_lost",
    ),
    ("send_event", "NOT EXISTS (SELECT FROM known) AND", "", "sent_events-of_an_id_are_kept_once"),
    ("find_sent_event", "AND id = %(id)s", "AND id = 'none'", "sent_events-of_closed_and_unknown_chains_are_refused"),
    ("finish", "WHEN 'wait' THEN clock_timestamp()", "", "waiting-does_not_jump_the_queue"),
    ("finish", "lease_expirations + params.crashed::int", "lease_expirations", "waiting-crashes_are_counted_apart"),
    (
        "finish_simple",
        "lease_expirations + (%(failed)s::jsonb -> id ->> 2)::int",
        "lease_expirations",
        "waiting-crashes_are_counted_apart",
    ),
    ("finish", "WHEN 'continue' THEN params.output", "", "waiting-middle_outputs_are_kept"),
    ("finish", "params.kind IN ('retry', 'fail')", "params.kind = 'retry'", "failures-of_a_later_job"),
    ("finish", "coalesce(params.short_error, params.error)", "params.error", "failures-long_errors_are_cut"),
    ("finish_simple", "coalesce(%(failed)s::jsonb -> id -> 5,", "coalesce(NULL,", "failures-long_errors_are_cut"),
    ("finish_simple", "ELSE job.failures - 1 END", "ELSE job.failures - 0 END", "failures-the_first_and_the_newest"),
    ("reap", "ELSE job.failures - 1 END", "ELSE job.failures END", "failures-the_first_and_the_newest"),
    ("fail_expired", "THEN job.failures", "THEN '[]'", "failures-expired_leases"),
    ("complete", "AND NOT has_dependents", "", "blockers-known_to_the_claimer_or_not"),
    ("complete", "result_ttl * interval", "2 * interval", "result_ttl-counts_from_the_closing"),
    ("start_one", "%(awaited)s::bool", "false", "waiting-outputs_in_order"),
    ("start_uniform", "%(awaited)s::bool", "false", "waiting-starts_chains_and_waits"),
    ("start_if_absent", "ON CONFLICT (id) DO NOTHING", "", "attach-one_of_many_writes_an_id"),
    ("add_blockers", "places.first + params.position", "params.position", "waiting-outputs_in_order"),
    ("add_blockers", "WHERE was_closed AND", "WHERE false AND", "waiting-waits_again_for_what_was_opened_again"),
    ("find_duplicates", "AND chain_status = 'open'", "", "deduplication-open_scope_ignores_closed_chains"),
    ("find_duplicates", "params.seconds *", "1e6 *", "deduplication-within_a_window"),
    ("find_duplicates", "NOT params.excluding ? job.id", "true", "deduplication-excluded_chains_do_not_match"),
    ("find_duplicates", "created_at DESC LIMIT", "created_at LIMIT", "deduplication-any_scope_matches_closed_chains"),
    ("reap", "AND lease_expires_at <= clock_timestamp()", "", "reap-live_leases_are_let_be"),
    ("reap", "attempt - uncounted >= coalesce", "attempt >= coalesce", "reap-interruptions_do_not_count"),
    (
        "reap",
        "coalesce(job.max_attempts, policy.max_attempts)",
        "policy.max_attempts",
        "max_attempts-reaper_counts_by_it",
    ),
    ("reap", "OR lease_expirations + 1 >= max_crashes", "", "reap-crashes_end_it_early"),
    ("fail_expired", "lease_expirations = job.lease_expirations + 1,", "", "reap-fails_at_the_cap"),
    (
        "release_dependents",
        "greatest(scheduled_at, clock_timestamp())",
        "scheduled_at",
        "blockers-does_not_jump_the_queue",
    ),
    (
        "release_dependents",
        "open_blockers - ((SELECT closed FROM tally) ->> id)::int",
        "0",
        "blockers-released_by_the_last",
    ),
    ("cancel_chains", "lease_token = NULL,", "", "cancel-holder_learns_why"),
    ("cancel_chains", "WHERE job.id = cancelled.chain_id", "WHERE job.id = 'x'", "cancel-the_last_job_of_a_long_chain"),
    ("lock_chains", "ORDER BY chain_index DESC", "ORDER BY chain_index", "cancel-the_last_job_of_a_long_chain"),
    ("lock_chains", "%(again)s::bool AND", "false AND", "retry_outside-waits_for_what_was_retried_before"),
    ("queuert.complete_chains", "lease_token = NULL,", "", "complete_outside-holder_learns_why"),
    ("queuert.complete_chains", "error = NULL,", "", "complete_outside-clears_the_last_error"),
    (
        "queuert.complete_chains",
        "ORDER BY job.chain_index DESC",
        "ORDER BY job.chain_index",
        "complete_outside-several_steps",
    ),
    ("queuert.complete_chains", "root.chain_status = 'open' AND", "", "complete_outside-closed_chain"),
    (
        "queuert.complete_chains",
        "tail.id IS NOT DISTINCT FROM",
        "NULL IS DISTINCT FROM",
        "complete_outside-another_last_job",
    ),
    ("queuert.complete_chains", "ELSE 'ready' END", "ELSE job.status END", "complete_outside-releases_dependents"),
    ("queuert.complete_chains", "array_agg(DISTINCT released.type)", "NULL", "complete_outside-releases_dependents"),
    ("continue_chains", "following.priority, due.at", "0, due.at", "complete_outside-several_steps"),
    ("retry_chains", "uncounted = attempt,", "", "retry_outside-attempts_before_do_not_count"),
    ("retry_chains", "lease_expirations = 0,", "", "retry_outside-attempts_before_do_not_count"),
    ("retry_chains", "lease_token = NULL", "lease_token = lease_token", "retry_outside-former_holder_stays_fenced"),
    (
        "retry_chains",
        "chain_closed_at = NULL, completed_tx = NULL\n    FROM",
        "chain_closed_at = now(), completed_tx = NULL\n    FROM",
        "retry_outside-only_the_last_job",
    ),
    ("reblock_job", "chain.chain_status = 'open'", "false", "retry_outside-waits_again"),
    ("reblock_job", "AND NOT closed", "AND false", "retry_outside-still_waits"),
    ("trigger_jobs", "least(scheduled_at, clock_timestamp())", "scheduled_at", "trigger-scheduled_job_is_due"),
    ("lock_chains_for_delete", "SELECT job.id FROM", "SELECT NULL FROM", "delete-cascade_goes_down_to_the_end"),
    ("lock_chains_for_delete", "WHERE %(cascade)s", "", "delete-cascade_takes_the_blockers"),
    ("external_references", "job.chain_id <> ALL", "job.id <> ALL", "delete-named_by_a_continuation"),
    ("delete_chains", "WHERE job_id = ANY", "WHERE false AND job_id = ANY", "delete-cascade_takes_the_blockers"),
    ("find_stranded", "id > %(cursor)s::text", "true", "sweep-what_waits_is_let_be"),
    ("list_jobs", "(created_at, id) < (", "(created_at, id) <= (", "list_jobs-pages_make_the_whole"),
    ("list_jobs", "entry.created_at DESC, entry.id DESC", "entry.id DESC", "list_jobs-newest_first_and_oldest_first"),
    ("list_jobs", "head.created_at DESC, head.id DESC", "head.created_at", "list_jobs-pages_make_the_whole"),
    ("list_jobs", "job.status = stretch.status", "true", "list_jobs-filters_hold_on_every_page"),
    ("list_jobs", "job.type > known.type", "false", "list_jobs-all_of_them"),
    ("list_chains", "job.status = stretch.status", "true", "list_chains-by_status"),
    ("list_chains", "(created_at, id) > (", "(created_at, id) >= (", "list_chains-pages_make_the_whole"),
    ("list_chain_jobs", "WHERE id = %(chain)s AND", "WHERE false AND", "list_others-jobs_of_a_chain_in_order"),
    ("list_chain_jobs", "AND 0 > %(low)s::integer", "", "list_others-pages_of_a_chain"),
    ("list_dependents", "(%(high_chain)s::text, %(high)s::text)", "('~', '')", "list_others-nothing_waits"),
    ("get_dependent_links", "job.status = ANY", "true OR '' = ANY", "list_others-links_to_dependents"),
    ("get_dependent_links", "waiting.chain_id NOT IN", "true OR '' NOT IN", "list_others-links_to_dependents"),
    ("get_dependent_links", "LIMIT %(limit)s::bigint", "", "list_others-links_to_dependents"),
    ("get_chains", "%(payloads)s::bool THEN", "true THEN", "lookup-chains_without_payloads"),
    ("list_chains", "%(payloads)s::bool THEN", "true THEN", "list_chains-without_payloads"),
    ("count_jobs", "LIMIT %(cap)s::bigint + 1", "LIMIT %(cap)s::bigint", "counts-many_are_no_fewer"),
    (
        "count_jobs",
        "(true, '-infinity', clock.now)",
        "(false, '-infinity', clock.now)",
        "counts-due_and_ready_are_one_number",
    ),
    ("next_due", "status = 'ready'", "status = 'running'", "lookup-something_is_due_now"),
    ("claim", "paused_type.type = wanted.type", "false", "pauses-nothing_is_claimed_of_a_paused_type"),
    ("next_due", "paused_type.type = params.type", "false", "pauses-nothing_of_a_paused_type_is_due"),
    ("select_admissible", "paused_type.type = a.type", "false", "pauses-paused_types_with_limits"),
    ("resume_job_types", "DELETE FROM", "SELECT type FROM", "pauses-nothing_is_claimed_of_a_paused_type"),
    # What counts in the snapshot in which the lock was taken has counted before the lock was there.
    ("lock_limits", "SELECT pg_advisory_xact_lock(key)", "SELECT key", "limits-never_exceeded_by_claims_at_once"),
    (
        "lock_limits",
        "SELECT pg_advisory_xact_lock(key)",
        "SELECT key",
        "limits-per_key_never_exceeded_by_claims_at_once",
    ),
    ("lock_limits", "SELECT pg_advisory_xact_lock(key)", "SELECT key", "limits-rate_never_exceeded_by_claims_at_once"),
    ("select_admissible", "place <= free AND NOT fair", "NOT fair", "limits-no_more_of_a_key_than_its_share"),
    (
        "select_admissible",
        "limited.per_key - visited.running",
        "limited.per_key",
        "limits-no_more_of_a_key_than_its_share",
    ),
    ("select_admissible", "limit_key = visited.key", "true", "limits-no_more_starts_than_the_rate"),
    ("select_admissible", "limit_key = ''", "true", "limits-jobs_without_a_key_share_a_rate"),
    (
        "select_admissible",
        "UNION ALL\n        SELECT type, rank, turn, NULL, false, NULL, NULL FROM others",
        "",
        "limited_types-best_of_limited_and_unlimited_types",
    ),
    ("claim_admitted", "attempt = attempt + 1", "attempt = attempt", "limits-retries_are_starts"),
    ("claim_admitted", "coalesce(limit_key, '')", "'x'", "limits-jobs_without_a_key_share_a_rate"),
    ("prune_rate_window", "AND started_at <= ", "AND started_at >= ", "limits-no_more_starts_than_the_rate"),
    ("delete_schedules", "OR owner = %(owner)s::text", "OR true", "schedules-deleted_by_owner"),
    ("chain_is_open", "AND chain_status = 'open'", "", "schedules-overlapping_ticks"),
    ("lock_due_schedule", "AND next_at = %(tick)s", "", "schedules-each_tick_once_by_racers"),
    ("lock_due_schedule", "AND NOT paused", "", "schedules-paused_ones_are_not_due"),
    (
        "put_schedules",
        "THEN schedule.next_at ELSE",
        "THEN excluded.next_at ELSE",
        "schedules-put_again_keeps_pause_and_tick",
    ),
    (
        "start_jobs_with_attributes",
        "SELECT DISTINCT given.name",
        "SELECT DISTINCT lower(given.name)",
        "attributes-odd_texts",
    ),
    (
        "list_chains_by_attributes",
        "(far.created_at, far.chain_id) = (next.created_at, next.chain_id)",
        "true",
        "attributes-pages_make_the_whole",
    ),
    ("list_chains_by_attributes", "far.number = cardinality(%(names)s::text[])", "true", "attributes-all_of_them"),
    ("list_chains_by_attributes", "chain_attribute.value = params.value", "true", "attributes-all_of_them"),
    ("list_chains_by_attributes", "root.chain_status = ANY", "true OR '' = ANY", "attributes-with_the_other_filters"),
    ("list_chains_by_attributes", "root.type = ANY", "true OR '' = ANY", "attributes-with_the_other_filters"),
    (
        "list_chains_by_attributes_oldest_first",
        "AND (created_at, chain_id) < (%(high)s::timestamptz, %(high_id)s::text)",
        "",
        "attributes-with_the_other_filters",
    ),
    ("delete_chains", "attributes::text", "NULL", "attributes-go_with_the_chain"),
    ("prune", "attributes::text", "NULL", "attributes-go_with_expired_chains"),
    ("record_heartbeat", "seen_at = excluded.seen_at,", "", "workers-beats_replace_what_was_reported"),
    ("record_heartbeat", "state = excluded.state,", "", "workers-beats_replace_what_was_reported"),
    ("record_heartbeat", "expires_at = excluded.expires_at", "id = excluded.id", "workers-one_whose_time_is_over"),
    ("record_heartbeat", "WHERE known.report < excluded.report", "", "activity-a_report_counts_once"),
    ("remove_worker", "WHERE known.report < excluded.report", "", "activity-a_report_counts_once"),
    (
        "record_heartbeat",
        "completed = known.completed + excluded.completed,",
        "",
        "activity-later_reports_add_up",
    ),
    ("get_activity", "- interval '60 seconds'", "", "activity-by_type_and_time"),
    ("fold_activity", "folded.type, '', 0,", "folded.type, 'x', 0,", "activity-old_minutes_become_hours"),
    ("drop_activity", "begins_at < (", "begins_at > (", "activity-old_hours_are_dropped"),
    ("delete_stale_workers", "expires_at <= clock_timestamp()", "true", "workers-many_at_once"),
    ("remove_worker", "WHERE id = %(id)s::text", "WHERE true", "workers-forgotten"),
    ("list_workers", "expires_at > clock_timestamp()", "true", "workers-one_whose_time_is_over"),
    ("list_workers", "ORDER BY started_at, id", "ORDER BY seen_at", "workers-longest_running_first"),
    ("due_schedules", "next_at <= clock.now", "true", "schedules-due_by_the_clock"),
    ("due_schedules", "NOT paused AND next_at <=", "next_at <=", "schedules-paused_ones_are_not_due"),
    ("start_uniform", "%(result_ttl)s::float8", "NULL", "result_ttl-counts_from_the_closing"),
    (
        "start_if_absent",
        "limit_key,\n        result_ttl",
        "limit_key,\n        NULL",
        "result_ttl-one_of_many_fixes_it",
    ),
    ("finish", "coalesce(params.ttl, result_ttl)", "result_ttl", "result_ttl-the_finish_may_say_otherwise"),
    ("finish", "coalesce(finished.ttl, job.result_ttl)", "job.result_ttl", "result_ttl-the_finish_may_say_otherwise"),
    (
        "finish",
        "finished.limit_key END), finished.result_ttl",
        "finished.limit_key END), NULL::float8",
        "result_ttl-of_a_long_chain",
    ),
    (
        "finish",
        "CASE WHEN params.next_inherits THEN finished.limit_key END",
        "NULL",
        "inherit-continuations_inherit_the_limit_key",
    ),
    ("fail_expired", "clock_timestamp() + result_ttl", "NULL + result_ttl", "result_ttl-failed_by_the_reaper"),
    ("cancel_chains", "clock_timestamp() + result_ttl", "NULL + result_ttl", "result_ttl-closed_from_outside"),
    (
        "queuert.complete_chains",
        "clock_timestamp() + job.result_ttl",
        "NULL + job.result_ttl",
        "result_ttl-closed_from_outside",
    ),
    ("continue_chains", "finished.result_ttl\n", "NULL\n", "result_ttl-closed_from_outside"),
    ("find_chains_by_id", "expires_at <= clock_timestamp()", "false", "expired-attach_starts_anew"),
    (
        "find_duplicates",
        "expires_at > statement_timestamp()",
        "expires_at IS NOT NULL",
        "expired-keys_are_free_again",
    ),
    ("update_result_ttl", "chain_status <> 'open'", "true", "result_ttl-updated"),
    ("update_result_ttl", "AND chain_index = 0", "", "result_ttl-updated_by_a_jobs_id"),
    ("update_result_ttl", "(expires_at IS NULL OR expires_at > clock_timestamp())", "true", "result_ttl-updated"),
    ("find_expired", "WHERE expires_at <= statement_timestamp()", "WHERE true", "retention-nothing_to_retire"),
    ("find_expired", "(expires_at, id) >", "(expires_at, id) >=", "retention-pages_make_the_whole"),
    ("find_beyond_retention", "chain_closed_at <= stretch.cut", "false", "retention-by_age"),
    ("find_beyond_retention", "created_at DESC, id DESC OFFSET", "created_at, id OFFSET", "retention-by_count"),
    ("find_beyond_retention", "job.status = params.status", "true", "retention-by_count"),
    (
        "find_beyond_retention",
        "(created_at, id) > (stretch",
        "(created_at, id) >= (stretch",
        "retention-pages_make_the_whole",
    ),
    ("lock_prunable", "SKIP LOCKED", "NOWAIT", "retention_races-many_at_once"),
    ("prune", "IN ('blocked', 'scheduled', 'ready', 'running')", "= ''", "retention-blockers_of_open_jobs_stay"),
    ("prune", "'scheduled', ", "", "retention-blockers_of_open_jobs_stay"),
    ("prune", "WHERE blocker_chain_id = to_delete.id", "WHERE false", "retention-jobs_that_ended_let_go"),
    ("prune", "job.chain_id = to_delete.id AND", "false AND", "retention-expired_chains_go"),
]


def mutant(dsn: str, name: str, old: str, new: str) -> PostgresState:
    """A store with one statement changed, and those that are made from the same section; or one function."""
    state = PostgresState(dsn, answer_timeout=1.0)
    if name.startswith("queuert."):
        with psycopg.connect(dsn) as connection:
            [(text,)] = connection.execute("select pg_get_functiondef(%s::regproc)", [name]).fetchall()
            assert old in text, "the function has changed: so must its mutant"
            connection.execute(text.replace(old, new).encode())
        return state
    statements = Statements(state.schema)
    assert old.encode() in getattr(statements, name), "the statement has changed: so must its mutant"
    for variant in variants(name):
        changed = getattr(statements, variant).replace(old.encode(), new.encode())
        replace_statements(state, {variant: changed})
    if name == "claim_rest":
        # After a claim it shows only in races what it does.
        replace_statements(state, dict.fromkeys(("claim", "claim_many"), getattr(state._statements, name)))
    return state


@pytest.mark.parametrize("case", sorted({case for name, *_, case in MUTANTS if name in ("claim", "claim_rest")}))
def test_claim_rest_claims_alone(dsn: str, case: str) -> None:
    """So it is not for another reason that its mutants are caught."""
    asyncio.run(run_case(CASES[case], mutant(dsn, "claim_rest", "", ""), Mode.SYNC, Rows(dsn)))


@pytest.mark.parametrize(("name", "old", "new", "case"), MUTANTS)
def test_mutants_are_caught(
    dsn: str, monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str, case: str
) -> None:
    state = mutant(dsn, name, old, new)
    # A case may ask for what never comes: not for as long as on a store that is whole.
    monkeypatch.setattr(builders, "_TRIES", 200)
    with pytest.raises((AssertionError, ValueError, QueuertError)):
        asyncio.run(run_case(CASES[case], state, Mode.SYNC, Rows(dsn)))


@pytest.mark.parametrize("broken", [False, True], ids=["as it is", "without a look at the lease"])
def test_a_renewal_between_the_statements_of_the_reaper(
    dsn: str, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """The reaper has found a lease expired, and locks its job when it was renewed: the case sees what it does."""
    found, renewed = threading.Event(), threading.Event()
    fail, renew = PostgresFinishing._fail_expired, PostgresClaiming.renew

    def fail_late(self: PostgresFinishing, connection: Any, row: Any) -> Any:
        if "work" in row:
            found.set()
            assert renewed.wait(WAIT)
        return fail(self, connection, row)

    def renew_late(self: PostgresClaiming, renewals: Sequence[Renewal]) -> list[bool]:
        # Others let the lease expire.
        if renewals[0].seconds != 60.0:
            return renew(self, renewals)
        assert found.wait(WAIT)
        held = renew(self, renewals)
        renewed.set()
        return held

    monkeypatch.setattr(PostgresFinishing, "_fail_expired", fail_late)
    monkeypatch.setattr(PostgresClaiming, "renew", renew_late)
    case = CASES["races-renew_against_reap_at_the_cap"]
    if broken:
        state = mutant(dsn, "fail_expired", "AND job.lease_expires_at <= clock_timestamp()", "")
        with pytest.raises(AssertionError):
            asyncio.run(run_case(case, state, Mode.SYNC, Rows(dsn)))
    else:
        asyncio.run(run_case(case, PostgresState(dsn), Mode.SYNC, Rows(dsn)))


@pytest.mark.parametrize(
    "case",
    [
        "claim-best_priority_first", "claim-oldest_first", "claim-longest_due_first", "claim-oldest_first_across_types",
        "claim-best_of_those_whose_time_has_come", "claim-next_best_for_those_that_are_held",
        "limits-no_more_of_a_type_than_its_concurrency", "limited_types-best_of_limited_and_unlimited_types",
    ],
)  # fmt: skip
def test_the_order_of_claims_is_kept_where_no_index_gives_it(dsn: str, case: str) -> None:
    """The plans of today read an index in the order that is asked for. Others may not, and must sort."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for setting in ("enable_indexscan", "enable_indexonlyscan"):
            connection.execute(
                sql.SQL("ALTER DATABASE {} SET {} = off").format(
                    sql.Identifier(connection.info.dbname), sql.Identifier(setting)
                )
            )
    asyncio.run(run_case(CASES[case], PostgresState(dsn), Mode.SYNC, Rows(dsn)))


def test_cases_are_named_once_and_say_what_they_show() -> None:
    assert len(CASES) == len(all_cases()) > 150
    for case in CASES.values():
        assert case.shows.strip().endswith((".", "|")), case
        assert inspect.iscoroutinefunction(case.run), case
    assert all_cases() == all_cases()


@pytest.mark.parametrize("store", sampling.STORES)
def test_the_sample_has_each_operation_in_both_modes(store: str) -> None:
    """And each case in one at least, in the other one on another store."""
    for operation in sampling.operations():
        users = [case for case in CASES.values() if operation in sampling.names(case)]
        assert not users or set().union(*(sampling.modes(case, store) for case in users)) == set(Mode), operation
    for case in CASES.values():
        assert sampling.modes(case, store)
        assert set().union(*(sampling.modes(case, other) for other in sampling.STORES)) == set(Mode)


def test_what_an_adapter_cannot_is_skipped_by_name(dsn: str) -> None:
    class Lesser(PostgresState):
        capabilities = frozenset({Capability.MULTI_PROCESS})

    run: Callable[..., None] = conformance_tests("given")

    class Request:
        def getfixturevalue(self, name: str) -> object:
            assert name == "given"
            return Lesser(dsn)

    case = CASES["transactions-commits_together"]
    assert case.needs == (Capability.USER_TRANSACTIONS,)
    with pytest.raises(pytest.skip.Exception, match="user_transactions"):
        run(Request(), case, Mode.SYNC)
    run(Request(), CASES["lookup-nothing_is_due"], Mode.SYNC)


def test_user_transactions_need_user_data(dsn: str) -> None:
    case: Case = CASES["transactions-commits_together"]
    with pytest.raises(LookupError, match="user_data"):
        asyncio.run(run_case(case, PostgresState(dsn), Mode.ASYNC))
