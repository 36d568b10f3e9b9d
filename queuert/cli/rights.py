"""Which role of the database may run which command, for errors that name it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import MappingProxyType

from queuert.cli.options import schema_name
from queuert.errors import RightMissingError
from queuert.rights import COUNT, OWNER, READ, RIGHTS, Role, names_of

_METHODS = {
    "workers": "list_workers",
    "why": "explain",
    "chains list": "list_chains",
    "chains show": "get_chain",
    "chains tree": "get_chain_tree",
    "chains cancel": "cancel_chains",
    "chains retry": "retry_chains",
    "chains reschedule": "reschedule_chains",
    "chains reprioritize": "reprioritize_chains",
    "chains edit": "edit_chain_input",
    "chains send-event": "send_event",
    "chains delete": "delete_chains",
    "operations start": "start_bulk_operation",
    "operations list": "list_bulk_operations",
    "operations show": "get_bulk_operation",
    "operations run": "run_bulk_operations",
    "operations cancel": "cancel_chains",
    "jobs list": "list_jobs",
    "jobs show": "get_job",
    "jobs trigger": "trigger_jobs",
    "stats": "count_jobs",
    "demand": "get_demand",
    "activity": "get_activity",
    "events list": "list_events",
    "events tail": "list_events",
    "events status": "get_event_log",
    "events set-level": "set_event_level",
    "events set-retention": "set_event_retention",
    "events maintain": "maintain_event_log",
    "job-types list": "list_paused_job_types",
    "job-types pause": "pause_job_types",
    "job-types resume": "resume_job_types",
    "schedules list": "list_schedules",
    "schedules pause": "pause_schedules",
    "schedules resume": "resume_schedules",
    "schedules delete": "delete_schedules",
    "schedules run": "run_schedule",
    "schedules backfill": "backfill_schedule",
    "webhooks list": "list_webhooks",
    "webhooks create": "create_webhook",
    "webhooks rotate": "rotate_webhook_secret",
    "webhooks disable": "disable_webhook",
    "webhooks enable": "enable_webhook",
    "webhooks delete": "delete_webhook",
    "webhooks ping": "ping_webhook",
    "webhooks deliveries": "list_webhook_deliveries",
    "webhooks replay": "replay_webhook",
    "prune": "prune_chains",
}

COMMANDS: Mapping[str, frozenset[Role]] = MappingProxyType(
    {command: RIGHTS[method] for command, method in _METHODS.items()}
    | dict.fromkeys(("migrate status", "migrate plan", "doctor", "metrics"), COUNT)
    | dict.fromkeys(("migrate up", "migrate down", "migrate stamp", "migrate roles", "migrate adopt"), OWNER)
    | {"web": READ}
)
"""The roles that may run each command. ``migrate up`` that has nothing to do is for whoever may read the revision."""


def of_command(error: RightMissingError, args: argparse.Namespace) -> RightMissingError:
    """Return the error of a command instead of that of the method that it came to.

    It names the roles that may do both: what comes first may need less than the command, and what an option asks for
    may need more.
    """
    called = str(getattr(args, "called", ""))
    if error.remedy is not None:  # Of a store without roles.
        return RightMissingError(error.reason, called or error.operation, remedy=error.remedy)
    roles = COMMANDS.get(called.removeprefix("queuert "))
    if roles is None:
        return error
    names = names_of(roles, schema_name(args))
    both = [name for name in names if error.roles is None or name in error.roles]
    return RightMissingError(error.reason, called, both or names)
