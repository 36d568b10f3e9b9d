"""What is no identifier is refused by each method that takes one, before a store sees it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from queuert import Client, JobType, JobTypes
from queuert.errors import InvalidIdentifierError
from queuert.state.sqlite import SQLiteState

work = JobType("work", input=int, output=int)
NOW = datetime.now(UTC)

CALLS: dict[str, Callable[[Client, Any], object]] = {
    "get_chain": lambda client, id: client.get_chain(id),
    "get_chains": lambda client, id: client.get_chains([id]),
    "get_chain_states": lambda client, id: client.get_chain_states([id]),
    "get_chain_tree": lambda client, id: client.get_chain_tree(id),
    "list_chain_jobs": lambda client, id: client.list_chain_jobs(id),
    "list_dependents": lambda client, id: client.list_dependents(id),
    "explain": lambda client, id: client.explain(id),
    "get_job": lambda client, id: client.get_job(id),
    "get_jobs": lambda client, id: client.get_jobs([id]),
    "get_blockers": lambda client, id: client.get_blockers(id),
    "get_steps": lambda client, id: client.get_steps(id),
    "get_phases": lambda client, id: client.get_phases(id),
    "trigger_job": lambda client, id: client.trigger_job(id),
    "trigger_jobs": lambda client, id: client.trigger_jobs([id]),
    "complete_chain": lambda client, id: client.complete_chain(id, 1, expecting=work),
    "cancel_chain": lambda client, id: client.cancel_chain(id),
    "cancel_chains": lambda client, id: client.cancel_chains([id]),
    "retry_chain": lambda client, id: client.retry_chain(id),
    "delete_chain": lambda client, id: client.delete_chain(id),
    "update_result_ttl": lambda client, id: client.update_result_ttl([id], 5),
    "send_event": lambda client, id: client.send_event(id, "name", 1),
    "send_event, id": lambda client, id: client.send_event("chain", "name", 1, id=id),
    "run_schedule": lambda client, id: client.run_schedule(id),
    "backfill_schedule": lambda client, id: client.backfill_schedule(id, since=NOW, before=NOW),
    "delete_schedules": lambda client, id: client.delete_schedules([id]),
    "pause_schedules": lambda client, id: client.pause_schedules([id]),
    "resume_schedules": lambda client, id: client.resume_schedules([id]),
    "pause_job_types": lambda client, id: client.pause_job_types([id]),
    "resume_job_types": lambda client, id: client.resume_job_types([id]),
    "get_bulk_operation": lambda client, id: client.get_bulk_operation(id),
    "list_events": lambda client, id: client.list_events(chain=id),
    "get_webhook": lambda client, id: client.get_webhook(id),
    "change_webhook": lambda client, id: client.change_webhook(id, description="x"),
    "rotate_webhook_secret": lambda client, id: client.rotate_webhook_secret(id),
    "disable_webhook": lambda client, id: client.disable_webhook(id),
    "enable_webhook": lambda client, id: client.enable_webhook(id),
    "delete_webhook": lambda client, id: client.delete_webhook(id),
    "ping_webhook": lambda client, id: client.ping_webhook(id),
    "replay_webhook": lambda client, id: client.replay_webhook(id, since=NOW),
    "replay_webhook_delivery": lambda client, id: client.replay_webhook_delivery(id),
    "replay_webhook_delivery, webhook": lambda client, id: client.replay_webhook_delivery("one", webhook=id),
    "list_webhook_deliveries": lambda client, id: client.list_webhook_deliveries(id),
}


@pytest.mark.parametrize("id", ["a\0", "\ud800", "", "x" * 513], ids=["NUL", "surrogate", "empty", "long"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_no_identifier_is_refused(call: Callable[[Client, Any], object], id: str) -> None:
    with Client(SQLiteState(), JobTypes(work)) as client, pytest.raises(InvalidIdentifierError):
        call(client, id)
