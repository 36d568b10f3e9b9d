"""The same defects in Redis and SQLite, where there can be any.

Scripts and transactions come one after the other there, so that nothing is to be found of what two do to each other:
claims without locks, a release by looking again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

from queuert.state.redis.async_store import AsyncRedisStore
from queuert.state.sqlite import claiming, connection, finishing
from queuert.state.sqlite.connection import statements
from queuert.state.types import ClaimedJob, ClaimRequest
from tests.chaos.mutants import Edit, Mutant, broken_script


def _of_the_worker(request: ClaimRequest) -> ClaimRequest:
    return replace(request, token=str(uuid.uuid5(uuid.NAMESPACE_OID, request.holder)))


def _redis_by_worker() -> AbstractContextManager[Any]:
    claim = AsyncRedisStore.claim

    async def by_worker(self: AsyncRedisStore, request: ClaimRequest) -> list[ClaimedJob]:
        return await claim(self, _of_the_worker(request))

    return mock.patch.object(AsyncRedisStore, "claim", by_worker)


def _sqlite_by_worker() -> AbstractContextManager[Any]:
    claim = claiming.claim

    def by_worker(connection: Any, request: ClaimRequest, *rest: Any) -> list[ClaimedJob]:
        return claim(connection, _of_the_worker(request), *rest)

    return mock.patch("queuert.state.sqlite.store.claim", by_worker)


def _sqlite_without_fence() -> AbstractContextManager[Any]:
    look = connection.fetch_one

    def blindly(connection: Any, name: str, /, **values: Any) -> Any:
        found = look(connection, name, **values)
        return (*found[:2], mock.ANY, True) if found and name == "lease_state" else found

    return mock.patch.object(finishing, "fetch_one", blindly)


def _script(name: str, pattern: str, replacement: str) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: broken_script(Edit(name, pattern, replacement))


def _statement(name: str, pattern: str, replacement: str) -> Callable[[], AbstractContextManager[Any]]:
    def broken() -> AbstractContextManager[Any]:
        known = statements()
        return mock.patch.dict(known, {name: Edit(name, pattern, replacement).apply(known[name])})

    return broken


_LATE = "case finish-late_after_the_reaper"
_EARLY = "case reap-live_leases_are_let_be"
_AGAIN = "scenario same_worker_again"
_DEATHS = "scenario deaths_are_counted"

_FENCE = r"job\.status == 'running' and job\.token == token"
_TOO_SOON = "reaper without a look at the end"
_UNCOUNTED = "attempts counted at the end"

_REAP_REDIS = _script("reap", r"text\(NOW\), 'LIMIT'", "'+inf', 'LIMIT'")
_REAP_SQLITE = _statement("expired_leases", r"AND lease_expires_at <= :now", "")
_CLAIM_REDIS = _script("claim", r"attempt = job\.attempt \+ 1,", "")
_CLAIM_SQLITE = _statement("claim", r"attempt = attempt \+ 1,", "")

ELSEWHERE = (
    Mutant(1, "no fence, on Redis", _LATE, patch=_script("finish", _FENCE, "true"), store="redis"),
    Mutant(1, "no fence, on SQLite", _LATE, patch=_sqlite_without_fence, store="sqlite"),
    Mutant(2, "fence by worker, on Redis", _AGAIN, patch=_redis_by_worker, store="redis"),
    Mutant(2, "fence by worker, on SQLite", _AGAIN, patch=_sqlite_by_worker, store="sqlite"),
    Mutant(8, f"{_TOO_SOON}, on Redis", _EARLY, patch=_REAP_REDIS, store="redis"),
    Mutant(8, f"{_TOO_SOON}, on SQLite", _EARLY, patch=_REAP_SQLITE, store="sqlite"),
    Mutant(9, f"{_UNCOUNTED}, on Redis", _DEATHS, patch=_CLAIM_REDIS, store="redis"),
    Mutant(9, f"{_UNCOUNTED}, on SQLite", _DEATHS, patch=_CLAIM_SQLITE, store="sqlite"),
    Mutant(
        18, "claims without a lease, on SQLite", _DEATHS,
        patch=_statement("claim", r"lease_expires_at = :expires", "lease_expires_at = NULL"), store="sqlite",
    ),
)  # fmt: skip
"""By the numbers of the catalogue; 18 on Redis is among the others."""
