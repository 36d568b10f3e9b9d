"""Queues that are broken on purpose, each in one place, to see that something finds it.

A mutant edits the SQL or Lua of a store, or replaces a method of the worker while it is applied. An edit whose pattern
is not there any more is an error: the mutant must follow the code that it breaks.
"""

from __future__ import annotations

import asyncio
import re
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from hashlib import sha1
from types import SimpleNamespace
from typing import Any, Literal
from unittest import mock

from queuert import PostgresState
from queuert.errors import StateUnavailableError
from queuert.notify.adapter import Topic
from queuert.notify.postgres import PostgresSession
from queuert.state.postgres.async_claiming import AsyncPostgresClaiming
from queuert.state.postgres.async_starting import AsyncPostgresStarting
from queuert.state.postgres.async_transaction import AsyncPostgresTransaction
from queuert.state.postgres.statements import variants
from queuert.state.redis import scripts
from queuert.state.types import ClaimedJob, ClaimRequest, Finish, NewJob, StartedJob
from queuert.worker.leases import LeaseRenewer
from queuert.worker.runtime import WorkerRuntime
from tests.support.statements import replace_statements


class MutantIsGoneError(Exception):
    """What a mutant breaks is not there any more."""


@dataclass(frozen=True)
class Edit:
    """One replacement in a statement, everywhere in it."""

    statement: str
    pattern: str
    replacement: str

    def apply(self, text: str) -> str:
        """The broken statement.

        Raises:
            MutantIsGoneError: the pattern is not in it.
        """
        broken, count = re.subn(self.pattern, lambda _: self.replacement, text, flags=re.DOTALL)
        if not count:
            raise MutantIsGoneError(f"{self.statement}: {self.pattern!r} is not there")
        return broken


Patch = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Mutant:
    """One defect, and what finds it: a case of the conformance suite, or a scenario."""

    number: int
    name: str
    found_by: str
    edits: tuple[Edit, ...] = ()
    patch: Patch = nullcontext
    store: Literal["postgres", "redis", "sqlite"] = "postgres"

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    def state(self, dsn: str, **settings: Any) -> PostgresState:
        """The store with the edits."""
        state = PostgresState(dsn, **settings)
        for edit in self.edits:
            for name in variants(edit.statement):
                text: bytes = getattr(state._statements, name)
                replace_statements(state, {name: edit.apply(text.decode()).encode()})
        return state

    @contextmanager
    def applied(self) -> Iterator[None]:
        """What is not in a statement, while the block lasts."""
        with self.patch():
            yield


# --- what is not SQL --------------------------------------------------------------------------------------------------


def _token_of_the_worker() -> AbstractContextManager[Any]:
    claim = AsyncPostgresClaiming.claim

    async def by_worker(self: AsyncPostgresClaiming, request: ClaimRequest) -> list[ClaimedJob]:
        return await claim(self, replace(request, token=str(uuid.uuid5(uuid.NAMESPACE_OID, request.holder))))

    return mock.patch.object(AsyncPostgresClaiming, "claim", by_worker)


def _start_elsewhere() -> AbstractContextManager[Any]:
    start = AsyncPostgresStarting.start_jobs

    async def elsewhere(
        self: AsyncPostgresStarting, jobs: Sequence[NewJob], *, connection: Any = None, notification: Any = None
    ) -> list[StartedJob]:
        return await start(self, jobs)

    return mock.patch.object(AsyncPostgresStarting, "start_jobs", elsewhere)


def _never_poll() -> AbstractContextManager[Any]:
    return mock.patch("queuert.worker.claimer.random", SimpleNamespace(uniform=lambda low, high: 10_000.0))


def _listen_once() -> AbstractContextManager[Any]:
    """The sessions after the first one of an adapter believe that they listen."""
    listen = PostgresSession._listen
    first: dict[int, PostgresSession] = {}

    def once(self: PostgresSession, topics: frozenset[Topic]) -> None:
        if first.setdefault(id(self._subscribers), self) is self:
            listen(self, topics)
        else:
            self._listening |= topics

    return mock.patch.object(PostgresSession, "_listen", once)


def _give_up_renewing() -> AbstractContextManager[Any]:
    failed = LeaseRenewer._on_failure

    def for_good(self: LeaseRenewer, error: Exception) -> float:
        failed(self, error)
        return 3600.0

    return mock.patch.object(LeaseRenewer, "_on_failure", for_good)


def _renewer_stops_first() -> AbstractContextManager[Any]:
    stop = WorkerRuntime.stop

    async def hastily(self: WorkerRuntime, shutdown_timeout: float) -> None:
        await asyncio.to_thread(self.renewer.stop)
        await stop(self, shutdown_timeout)

    return mock.patch.object(WorkerRuntime, "stop", hastily)


def _believe_in_commits() -> AbstractContextManager[Any]:
    resolve: Callable[..., Awaitable[None]] = AsyncPostgresTransaction._resolve

    async def believe(self: AsyncPostgresTransaction, failure: Any, finish: Finish) -> None:
        try:
            await resolve(self, failure, finish)
        except StateUnavailableError:
            return

    return mock.patch.object(AsyncPostgresTransaction, "_resolve", believe)


def broken_script(*edits: Edit) -> AbstractContextManager[Any]:
    """One of the scripts of Redis with edits."""
    [name] = {edit.statement for edit in edits}
    whole = scripts.script(name)
    text = whole.text.decode()
    for edit in edits:
        text = edit.apply(text)
    broken = scripts.Script(whole.name, text.encode(), sha1(text.encode(), usedforsecurity=False).hexdigest())
    original = scripts.script

    def script(requested: str) -> scripts.Script:
        return broken if requested == name else original(requested)

    return _everywhere("script", script)


def _pop_only() -> AbstractContextManager[Any]:
    # The claim's own line, and not the library's, which has the number without `text`.
    return broken_script(
        Edit("claim", r"call\('ZADD', P \.\. 'lease:' \.\. job\.type, text\(job\.leased\), job\.id\)", "")
    )


@contextmanager
def _everywhere(name: str, replacement: Any) -> Iterator[None]:
    """Replace a function of ``scripts`` wherever it was imported."""
    original = getattr(scripts, name)
    holders = [
        module
        for key, module in list(sys.modules.items())
        if key.startswith("queuert.state.redis") and getattr(module, name, None) is original
    ]
    for module in holders:
        setattr(module, name, replacement)
    try:
        yield
    finally:
        for module in holders:
            setattr(module, name, original)


# --- the mutants ------------------------------------------------------------------------------------------------------

_HOLDS = r"AND lease_token = params\.token AND lease_expires_at IS NOT NULL"
_TOKENS = (
    r"AND \(id = ANY \(%\(roots\)s::text\[\]\)"
    r" OR lease_token = ANY \(%\(tokens\)s::uuid\[\]\) AND lease_expires_at IS NOT NULL\)"
)
_HOLDS_PLAINLY = r"AND lease_token = \(%\(params\)s::jsonb -> id ->> 0\)::uuid AND lease_expires_at IS NOT NULL"
_RETURNED = r"RETURNING job\.id, job\.lease_token,"
_AS_REQUESTED = "RETURNING job.id, params.token AS lease_token,"
_CHOSEN = r"job\.ctid = ANY \((CASE WHEN .*? END|ARRAY\(SELECT tid FROM locked WHERE .*? <= %\(max_bytes\)s\))\)"
_BY_ID = """job.id = ANY (ARRAY(SELECT id FROM "queuert".job AS chosen WHERE chosen.ctid = ANY (
    ARRAY(SELECT tid FROM locked))))"""
_RECHECK = """
UPDATE "queuert".job
SET open_blockers = 0, scheduled_at = greatest(scheduled_at, clock_timestamp()), status = 'ready'
WHERE status = 'blocked'
    AND id IN (SELECT job_id FROM "queuert".job_blocker WHERE blocker_chain_id = ANY (%(chains)s::text[]))
    AND NOT EXISTS (
        SELECT FROM "queuert".job_blocker JOIN "queuert".job AS chain ON chain.id = blocker_chain_id
        WHERE job_blocker.job_id = job.id AND chain.chain_status = 'open')
RETURNING job.type, job.status
"""

MUTANTS = (
    Mutant(
        1,
        "no fence",
        "case finish-late_after_the_reaper",
        (
            Edit("finish", _HOLDS, ""),
            Edit("finish", _TOKENS, ""),
            Edit("finish", _RETURNED, _AS_REQUESTED),
            Edit("complete", _HOLDS_PLAINLY, ""),
        ),
    ),
    Mutant(2, "fence by worker", "scenario same_worker_again", patch=_token_of_the_worker),
    Mutant(
        3,
        "fence by status",
        "scenario late_while_the_next_runs",
        (
            Edit("finish", _HOLDS, "AND job.lease_expires_at IS NOT NULL"),
            Edit("finish", _TOKENS, "AND (id = ANY (%(roots)s::text[]) OR lease_expires_at IS NOT NULL)"),
            Edit("finish", _RETURNED, _AS_REQUESTED),
            Edit("complete", _HOLDS_PLAINLY, "AND lease_expires_at IS NOT NULL"),
        ),
    ),
    Mutant(
        4,
        "leases by the time of the transaction",
        "scenario leases_are_dated_when_they_are_written",
        (
            Edit("claim", r"lease_expires_at = clock_timestamp\(\)", "lease_expires_at = now()"),
            Edit("claim_admitted", r"clock_timestamp\(\) \+", "now() +"),
        ),
    ),
    Mutant(
        5,
        "claims without locks",
        "scenario claims_pass_over_claims",
        (
            Edit("claim", r"FOR UPDATE SKIP LOCKED", ""),
            # By id, since the row's place is another one when whoever was first has written it.
            Edit("claim", _CHOSEN, _BY_ID),
        ),
    ),
    Mutant(
        6,
        "release by looking again",
        "scenario blockers_that_close_in_overlap",
        (
            Edit("lock_in_order", r"unnest\(%\(closing\)s::text\[\]\)", "unnest((%(closing)s::text[])[1:0])"),
            Edit("release_dependents", r"\A.*\Z", _RECHECK),
        ),
    ),
    Mutant(
        7,
        "deduplication by look and insert",
        "scenario one_chain_for_a_key",
        (
            Edit(
                "lock_deduplication_keys",
                r"INSERT INTO .*",
                "SELECT type FROM unnest(%(types)s::text[], %(keys)s::text[]) AS a (type, key)",
            ),
        ),
    ),
    Mutant(
        8,
        "reaper without a second look",
        "scenario reaper_and_completion",
        (Edit("reap", r"LIMIT %\(limit\)s FOR UPDATE( OF job)? SKIP LOCKED", "LIMIT %(limit)s"),),
    ),
    Mutant(
        9,
        "attempts counted at the end",
        "scenario deaths_are_counted",
        (Edit("claim", r"attempt = attempt \+ 1,", ""),),
    ),
    Mutant(10, "starts on another connection", "scenario starts_roll_back_with_the_caller", patch=_start_elsewhere),
    Mutant(11, "no poll", "scenario jobs_are_found_without_notifications", patch=_never_poll),
    Mutant(12, "no second LISTEN", "scenario notifications_come_back", patch=_listen_once),
    Mutant(13, "renewals end at the first error", "scenario a_lease_outlives_a_blip", patch=_give_up_renewing),
    Mutant(14, "renewals end before the drain", "scenario leases_are_kept_while_stopping", patch=_renewer_stops_first),
    Mutant(
        15,
        "no cap for the reaper",
        "case reap-fails_at_the_cap",
        (Edit("reap", r"attempt - uncounted >= coalesce\(job.max_attempts.*? >= max_crashes", "false"),),
    ),
    Mutant(
        16, "a broken COMMIT taken for a success", "scenario a_commit_that_never_arrived", patch=_believe_in_commits
    ),
    Mutant(
        17,
        "events passed over before they are handed on",
        "scenario who_follows_the_log_misses_nothing",
        (Edit("list_events", r"pg_snapshot_xmin\(pg_current_snapshot\(\)\)", "'18446744073709551615'::xid8"),),
    ),
    Mutant(18, "a pop without a processing list", "scenario deaths_are_counted", patch=_pop_only, store="redis"),
)
"""By the numbers of the catalogue. 17 is a webhook that is marked as sent before it is: that of the dispatcher is
in tests/webhooks/test_delivering.py; here is the cursor of any reader of the event log."""
