"""Which role may do what: the methods of a client by the roles whose grants in ``roles.sql`` are enough for them.

What is refused is explained by this table, and the one in ``docs/security.md`` is made from it.
``tests/security/test_rights.py`` calls every method as every role, so that it says what Postgres does.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from enum import StrEnum
from types import FrameType, MappingProxyType


class Role(StrEnum):
    """The roles of programs and people that log in to the database."""

    WORKER = "worker"
    """Runs workers."""
    CLIENT = "client"
    """Starts chains and reads."""
    WRITER = "writer"
    """Starts chains from Spark."""
    PRODUCER = "producer"
    """Starts chains by the SQL function ``start_chain``, and nothing else."""
    COMPLETER = "completer"
    """Reads, and completes chains: approvals, answers from outside."""
    OPERATOR = "operator"
    """Manages chains: cancels, retries, deletes, pauses."""
    OBSERVER = "observer"
    """Counts and watches. It cannot read payloads."""


_LEAST_FIRST = (Role.OBSERVER, Role.CLIENT, Role.WRITER, Role.COMPLETER, Role.OPERATOR, Role.WORKER)

OWNER: frozenset[Role] = frozenset()
"""No role: only who owns the tables."""

EVERYBODY = frozenset(Role)
"""What needs no right, since it reads and writes nothing."""

COUNT = frozenset(Role) - {Role.PRODUCER}
READ = COUNT - {Role.OBSERVER}
_START = frozenset({Role.WORKER, Role.CLIENT, Role.WRITER})
_SEND = frozenset({Role.WORKER, Role.CLIENT, Role.OPERATOR})
_MANAGE = frozenset({Role.WORKER, Role.OPERATOR})
_COMPLETE = frozenset({Role.WORKER, Role.COMPLETER})
_WORK = frozenset({Role.WORKER})
_OPERATE = frozenset({Role.OPERATOR})

WORKING = "queuert worker"
"""What a worker does by itself."""

_BY_ROLES = {
    _START: "start_chain start_chains start_and_wait",
    READ: "get_chain get_chains find_chain get_job get_jobs wait watch_chain list_chains list_jobs list_chain_jobs "
    "list_dependents get_chain_states get_blockers get_chain_tree get_steps get_phases explain list_schedules "
    "list_events follow follow_events preview_bulk_operation preview_prune get_bulk_operation list_bulk_operations",
    COUNT: "open count_jobs get_demand get_activity list_workers list_client_types list_paused_job_types "
    "event_cursor get_event_log",
    _SEND: "trigger_job trigger_jobs send_event send_event_to_key",
    _MANAGE: "cancel_chain cancel_chains cancel_chains_of_key retry_chain retry_chains reschedule_chains "
    "reprioritize_chains delete_chain delete_chains update_result_ttl prune_chains create_webhook "
    "list_webhooks get_webhook change_webhook rotate_webhook_secret disable_webhook enable_webhook delete_webhook "
    "list_webhook_deliveries",
    _COMPLETE: "complete_chain",
    _WORK: "continue_chain retry_chain_with_input edit_chain_input run_bulk_operations run_schedule "
    "backfill_schedule ping_webhook replay_webhook_delivery replay_webhook",
    _OPERATE: "start_bulk_operation put_schedules delete_schedules pause_schedules resume_schedules pause_job_types "
    "resume_job_types set_event_level set_event_retention",
    OWNER: "maintain_event_log",
    EVERYBODY: "callback_url",
}

RIGHTS: Mapping[str, frozenset[Role]] = MappingProxyType(
    {name: roles for roles, names in _BY_ROLES.items() for name in names.split()}
)
"""The roles that may call each method of a client."""


def roles_that_may(operation: str | None, schema: str) -> list[str] | None:
    """Return the usual names of the roles that may do this; None if it is not known."""
    roles = _WORK if operation == WORKING else RIGHTS.get(operation or "")
    return None if roles is None else names_of(roles, schema)


def names_of(roles: Collection[Role], schema: str) -> list[str]:
    """Return the usual names of roles, the one that may least first."""
    return [f"{schema}_{role}" for role in _LEAST_FIRST if role in roles]


def requested_operation() -> str | None:
    """Return what was being done: the method of a client that the program has called, or ``queuert worker``.

    It looks at the stack, for errors alone: that each start notes its name for them would cost all starts.
    """
    frame: FrameType | None = sys._getframe(1)
    called = stored = None
    in_worker = False
    while frame is not None:
        module, name = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        if name in RIGHTS and module.startswith("queuert.client."):
            called = name
        elif name in RIGHTS and module.startswith("queuert.state.postgres."):
            stored = name
        in_worker = in_worker or module.startswith("queuert.worker.")
        frame = frame.f_back
    if called is None and in_worker:
        # The schedules of a worker's code are the operator's to store.
        return stored if stored is not None and Role.WORKER not in RIGHTS[stored] else WORKING
    return called or stored
