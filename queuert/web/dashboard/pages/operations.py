"""Bulk operations: the list, and the start of one by a filter."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from queuert.errors import ConfigurationError
from queuert.ids import new_id
from queuert.web.dashboard.pages.shared import (
    BULK_ACTIONS,
    CHAIN_FILTERS,
    COUNTED,
    PAGE,
    chain_filter,
    checked_change,
    due_in_notice,
    due_of,
    older,
    priority_of,
    reason_of,
    run_at_of,
)
from queuert.web.dashboard.visit import Visit
from queuert.web.problems import Problem


async def operations(visit: Visit) -> Response:
    """Bulk operations, the newest first."""
    cursor = visit.query("cursor") or None
    page = await visit.listed(lambda: visit.client.list_bulk_operations(limit=PAGE, cursor=cursor))
    return visit.render(
        "operations.html",
        operations=page.items,
        older=older({}, page.next_cursor),
        later=bool(visit.query("cursor")),
    )


def _requested(visit: Visit) -> tuple[str, dict[str, Any]]:
    """The action and the filter of a bulk operation.

    Raises:
        Problem: 400, there is no such action; 403, it is not allowed.
        ConfigurationError: the filter has another status than the action is for.
    """
    action = visit.wanted("action")
    if action not in BULK_ACTIONS:
        raise Problem(400, "invalid-action", f"the action must be one of {', '.join(BULK_ACTIONS)}, got {action!r}")
    needed, statuses = BULK_ACTIONS[action]
    visit.check(needed)
    filter = chain_filter(visit)
    if not set(filter.get("statuses", statuses[:1])) <= set(statuses):
        raise ConfigurationError(f"{action} is for chains that are {' or '.join(statuses)}: choose this status")
    return action, {"statuses": list(statuses[:1]), **filter}


async def confirm(visit: Visit) -> Response:
    """Ask before all chains of a filter are changed, and say how many they are now, and when they are due then."""
    action, filter = _requested(visit)
    # A form that was refused is shown again to be corrected.
    checked = {} if visit.refused or action != "reschedule" else checked_change(visit)
    preview = await visit.client.preview_bulk_operation(action, counted_up_to=COUNTED, **filter)
    given = visit.given(*CHAIN_FILTERS)
    given |= {name: filter[name].isoformat() for name in ("since", "before") if name in filter}
    return visit.render(
        "confirm_bulk.html",
        action=action,
        given=given,
        checked=checked,
        due=due_of(visit) if checked else None,
        run_at=visit.given("run_at").get("run_at", ""),
        statuses=filter["statuses"],
        preview=preview,
        # A form that is sent twice starts one operation.
        operation_id=visit.form.get("operation_id") or new_id(),
    )


async def start(visit: Visit) -> Response:
    """Start a bulk operation.

    Raises:
        ConfigurationError: it is one that needs a due time or a priority, and has none.
    """
    action, filter = _requested(visit)
    due = due_of(visit) if action == "reschedule" else None
    await visit.client.start_bulk_operation(
        action,
        requested_by=visit.principal,
        reason=reason_of(visit) if action == "cancel" else None,
        run_at=run_at_of(visit, due),
        priority=priority_of(visit) if action == "reprioritize" else None,
        id=visit.form.get("operation_id") or None,
        **filter,
    )
    return visit.go("/operations", notice="operation-started", **due_in_notice(due))
