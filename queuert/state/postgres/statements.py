"""The SQL of ``sql/``, one file a group of operations, read once and bound to a schema."""

from __future__ import annotations

from functools import cache

from queuert.migrations import check_schema_name
from queuert.state.named_sections import read_sections
from queuert.state.postgres.protocol import NamedStatement, named

EVENTS_A_ROW = 28
"""Events of one statement that share a row of the log: with the usual ids just below 2 kB, from which on Postgres would
compress a row and store it elsewhere. Their numbers have place below the 64 that rows are apart."""


class Statements:
    """All statements of one schema, as bytes for the driver. The section ``-- name: claim`` is the attribute
    ``claim``."""

    def __init__(self, schema: str) -> None:
        self.schema = check_schema_name(schema)
        for name, text in _texts().items():
            setattr(self, name, text.replace("{schema}", f'"{schema}"').encode())

    def named(self, name: str) -> NamedStatement:
        """The statement of this name as it goes past the cursors, under a name: see wire.py."""
        return named(name, getattr(self, name))

    start_jobs: bytes
    start_one: bytes
    start_uniform: bytes
    start_if_absent: bytes
    lock_deduplication_keys: bytes
    find_duplicates: bytes
    find_chains_by_id: bytes
    lock_in_order: bytes
    set_short_lock_timeout: bytes
    add_blockers: bytes
    unblock: bytes
    claim: bytes
    lock_limits: bytes
    promote_due: bytes
    select_admissible: bytes
    claim_admitted: bytes
    prune_rate_window: bytes
    renew: bytes
    release: bytes
    release_claim: bytes
    finish: bytes
    complete: bytes
    complete_and_commit: bytes
    finish_simple: bytes
    hold: bytes
    reap: bytes
    fail_expired: bytes
    lease_states: bytes
    next_due: bytes
    get_jobs: bytes
    get_chains: bytes
    closed_chains: bytes
    get_blockers: bytes
    counts: bytes
    estimate: bytes
    list_jobs: bytes
    list_chains: bytes
    list_chain_jobs: bytes
    list_dependents: bytes
    lock_chains: bytes
    cancel: bytes
    complete_outside: bytes
    retry: bytes
    reblock_dependents: bytes
    reblock_job: bytes
    lock_jobs: bytes
    trigger: bytes
    lock_chains_for_delete: bytes
    external_references: bytes
    delete: bytes
    delete_keys: bytes
    find_stranded: bytes
    lock_stranded: bytes
    release_stranded: bytes
    now: bytes
    put_schedules: bytes
    delete_schedules: bytes
    list_schedules: bytes
    pause_schedules: bytes
    due_schedules: bytes
    fire_schedule: bytes
    start_scheduled: bytes
    pause_job_types: bytes
    resume_job_types: bytes
    list_paused_job_types: bytes
    update_result_ttl: bytes
    find_expired: bytes
    find_expired_ids: bytes
    find_beyond_retention: bytes
    lock_prunable: bytes
    prune: bytes
    index_attributes: bytes
    delete_attributes: bytes
    list_chains_by_attributes: bytes
    record_heartbeat: bytes
    delete_stale_workers: bytes
    remove_worker: bytes
    list_workers: bytes
    list_events: bytes
    event_levels: bytes
    set_event_default: bytes
    set_event_levels: bytes
    delete_event_levels: bytes
    list_partitions: bytes
    try_maintenance_lock: bytes
    delete_events: bytes
    bulk_count: bytes
    bulk_chain_ids: bytes
    bulk_make_stage: bytes
    bulk_record_stage: bytes
    bulk_touch_stage: bytes
    bulk_copy: bytes
    bulk_drop_stage: bytes
    bulk_forget_stage: bytes
    bulk_forget_strange: bytes
    bulk_forget_writes: bytes
    bulk_idle_stages: bytes
    bulk_find_write: bytes
    bulk_record_write: bytes
    bulk_record_started: bytes
    bulk_count_staged: bytes
    bulk_lock_fence: bytes
    bulk_conflicts: bytes
    bulk_repeated: bytes
    bulk_drop_repeated: bytes
    bulk_drop_existing: bytes
    bulk_lock_keys: bytes
    bulk_drop_duplicates: bytes
    bulk_blockers: bytes
    bulk_waiting: bytes
    bulk_start: bytes
    bulk_start_recorded: bytes
    bulk_event_level: bytes
    bulk_place: bytes
    stream_find: bytes
    stream_record_batch: bytes
    stream_forget_staged: bytes
    stream_forget_attempts: bytes
    stream_sweep: bytes
    read_log: bytes
    read_last_event: bytes
    log_owner: bytes
    adopt_look: bytes
    adopt_days: bytes
    adopt_day: bytes
    adopt_numbers: bytes
    adopt_jobs: bytes
    adopt_note: bytes
    read_blocks: bytes
    read_id_bounds: bytes
    read_days: bytes
    read_first_event: bytes
    read_nth_event: bytes
    history_facts: bytes
    history_dates: bytes
    history_lock: bytes
    history_retained: bytes
    notify: bytes
    notify_after_start: bytes
    schema_revision: bytes


@cache
def _texts() -> dict[str, str]:
    sections = read_sections("queuert.state.postgres", "sql", ".sql")
    return {name: text.replace("{events_a_row}", str(EVENTS_A_ROW)) for name, text in sections.items()}
