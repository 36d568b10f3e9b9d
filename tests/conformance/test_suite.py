"""The conformance suite itself: complete, named, and able to fail."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from queuert.errors import StateUnavailableError
from queuert.state import Capability
from queuert.state.postgres import PostgresState
from queuert.state.postgres.statements import Statements
from queuert.testing.conformance import Case, Colour, all_cases, run_case
from queuert.testing.conformance.pytest_glue import conformance_tests

CASES = {str(case): case for case in all_cases()}

MUTANTS = [
    # Statement, what is there, what a mutant has instead, and the case that must notice.
    ("claim", "attempt = attempt + 1", "attempt = attempt", "claim-attempts_count_up_by_one"),
    ("claim", "ORDER BY head.rank, head.scheduled_at", "ORDER BY wanted.type", "claim-oldest_first_across_types"),
    (
        "claim",
        "ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at",
        "ORDER BY scheduled_at",
        "claim-best_priority_first",
    ),
    ("claim", "AND scheduled_at <= statement_timestamp()", "", "claim-not_before_its_time"),
    ("renew", "AND job.lease_token = asked.token", "", "renew-refuses_a_stranger"),
    ("renew", "SKIP LOCKED", "", "renew-passes_over_a_locked_job"),
    ("release", "AND job.lease_token = asked.token", "", "release-only_by_its_holder"),
    ("release", "attempt = attempt - 1,", "", "release-due_at_once_and_not_counted"),
    ("finish", "AND job.lease_token = asked.token", "", "finish-two_leases_of_a_job_in_one_call"),
    ("finish", "%(closes_awaited)s OR NOT has_dependents", "true", "blockers-known_to_the_claimer_or_not"),
    ("reap", "AND lease_expires_at <= clock_timestamp()", "", "reap-live_leases_are_let_be"),
    ("reap", "attempt - uncounted >= max_attempts", "attempt >= max_attempts", "reap-interruptions_do_not_count"),
    ("fail_expired", "lease_expirations = lease_expirations + 1,", "", "reap-fails_at_the_cap"),
    ("unblock", "greatest(scheduled_at, clock_timestamp())", "scheduled_at", "blockers-does_not_jump_the_queue"),
    ("unblock", "open_blockers - counted.closed", "0", "blockers-released_by_the_last"),
    ("next_due", "status = 'ready'", "status = 'running'", "lookup-something_is_due_now"),
]


def mutant(dsn: str, name: str, old: str, new: str) -> PostgresState:
    """A store with one statement changed."""
    state = PostgresState(dsn, answer_timeout=1.0)
    statement = getattr(Statements(state.schema), name)
    assert old.encode() in statement, "the statement has changed: so must its mutant"
    setattr(state._statements, name, statement.replace(old.encode(), new.encode()))
    return state


@pytest.mark.parametrize(("name", "old", "new", "case"), MUTANTS)
def test_mutants_are_caught(dsn: str, name: str, old: str, new: str, case: str) -> None:
    class NoData:
        """The cases named here write nothing of their own."""

        add: Any = None
        keys: Any = None
        transaction: Any = None

    state = mutant(dsn, name, old, new)
    with pytest.raises((AssertionError, ValueError, StateUnavailableError)):
        asyncio.run(run_case(CASES[case], state, Colour.SYNC, NoData()))


def test_cases_are_named_once_and_say_what_they_show() -> None:
    assert len(CASES) == len(all_cases()) > 150
    for case in CASES.values():
        assert case.shows.strip().endswith((".", "|")), case
        assert inspect.iscoroutinefunction(case.run), case
    assert all_cases() == all_cases()


def test_what_an_adapter_cannot_is_skipped_by_name(dsn: str) -> None:
    class Lesser(PostgresState):
        capabilities = frozenset({Capability.MULTI_PROCESS})

    run: Callable[..., None] = conformance_tests("given")

    class Request:
        def getfixturevalue(self, name: str) -> object:
            assert name == "given"
            return Lesser(dsn)

    case = CASES["transactions-commits_together"]
    assert case.needs is Capability.USER_TRANSACTIONS
    with pytest.raises(pytest.skip.Exception, match="user_transactions"):
        run(Request(), case, Colour.SYNC)
    run(Request(), CASES["lookup-nothing_is_due"], Colour.SYNC)


def test_user_transactions_need_user_data(dsn: str) -> None:
    case: Case = CASES["transactions-commits_together"]
    with pytest.raises(LookupError, match="user_data"):
        asyncio.run(run_case(case, PostgresState(dsn), Colour.ASYNC))
