"""What clients change on Redis. ``sync_management.py`` is generated from this module.

A call for a few chains is one script. One for many is first checked and then written in several scripts. A chain that
another client changes between the two is left as it is. If one is deleted, the call raises, and what it has written
stays. If the process dies between two scripts, the same call does the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from random import randrange
from typing import TYPE_CHECKING, Any, TypeAlias

from queuert.errors import BlockerReferenceError, ChainNotFoundError, ChainNotRetriableError, JobIdConflictError
from queuert.jobs import JobError, JobStatus
from queuert.run_at import RunAt
from queuert.state.redis import decode, encode
from queuert.state.redis.encode import Arguments, Flags
from queuert.state.redis.errors import refuse_connection
from queuert.state.redis.portions import READ, TYPES, WRITTEN, in_order, portions
from queuert.state.steps import NewEvent, SendResult
from queuert.state.types import (
    BlockerLink,
    ChainUpdate,
    DeleteResult,
    InputEdit,
    SweepResult,
    TriggeredJob,
    WorkerlessCompletion,
    check_completions,
)

_LINKS = 10_000
"""Blockers of a chain that decide in which order chains are changed."""

_COMPACTED = 8
"""Parts of a waiting list with many dead entries that one sweep looks at."""

_Arguments: TypeAlias = Callable[[Sequence[Any], Flags], Arguments]
"""Returns the arguments of a script for a part of the call."""


class AsyncRedisManagement:
    """Completes, cancels, retries, changes, triggers and deletes chains, and sends events."""

    if TYPE_CHECKING:

        async def _run(self, name: str, arguments: Arguments) -> Any: ...

        async def _commit(self, name: str, arguments: Arguments) -> Any: ...

        async def get_blocker_links(
            self, chain_ids: Sequence[str], *, limit: int, connection: Any = None
        ) -> list[BlockerLink]: ...

    async def _write(self, name: str, parts: Sequence[Sequence[Any]], arguments: _Arguments) -> list[Any]:
        """Run a script for each part, after a check of all if there are several, and return their answers.

        What is deleted after the check has none: the others are changed, so that a call is never half done.
        """
        flags: Flags = {}
        if len(parts) > 1:
            await self._check(name, parts, arguments)
            flags = {"checked": True}
        answer: list[Any] = []
        for part in parts:
            # What is flushed when the last one returns includes what those before it have written.
            run = self._commit if part is parts[-1] else self._run
            answer += await run(name, arguments(part, flags))
        return answer

    async def _check(self, name: str, parts: Sequence[Sequence[Any]], arguments: _Arguments) -> None:
        """Check all parts of a call before the first is written.

        Raises:
            ChainNotFoundError: chains do not exist; it names those of all parts, as that of one script does.
            ChainNotRetriableError: chains are open or completed; likewise.
        """
        missing: list[str] = []
        refused: dict[str, str] = {}
        for part in parts:
            try:
                await self._run(name, arguments(part, {"check": True}))
            except ChainNotFoundError as error:
                missing += error.ids
            except ChainNotRetriableError as error:
                refused.update(dict.fromkeys(error.chain_ids, error.status))
        if missing:
            raise ChainNotFoundError(missing[0], ids=missing)
        if refused:
            [(id, status), *_] = refused.items()
            raise ChainNotRetriableError(id, status, chain_ids=refused)

    async def _parts(self, ids: Sequence[str], *, blockers_first: bool) -> Sequence[Sequence[str]]:
        """Return the ids in the parts in which they are changed."""
        unique = list(dict.fromkeys(ids))
        if len(unique) <= WRITTEN:
            return [unique]
        links = await self.get_blocker_links(unique, limit=_LINKS)
        if blockers_first:
            return in_order(unique, [(link.blocker_id, link.chain_id) for link in links])
        return in_order(unique, [(link.chain_id, link.blocker_id) for link in links])

    async def complete_chains(
        self,
        completions: Sequence[WorkerlessCompletion],
        *,
        cancel: Sequence[str] = (),
        reason: str = "",
        connection: Any = None,
    ) -> list[ChainUpdate]:
        """Finish the last job of each chain with an output or a continuation."""
        refuse_connection(connection)
        check_completions(completions, cancel)
        if not completions:
            return []
        of_chain = {one.chain_id: one for one in completions}
        cancelled = list(dict.fromkeys(cancel))
        error = JobError("cancel", reason)
        # What is cancelled goes in parts of its own, after the others, unless all fit into one script.
        whole = len(of_chain) + len(cancelled) <= WRITTEN
        parts = [[of_chain[id] for id in part] for part in await self._parts(list(of_chain), blockers_first=False)]
        behind = [] if whole or not cancelled else await self._parts(cancelled, blockers_first=False)
        refused = False
        if len(parts) + len(behind) > 1:
            ids = Counter(one.continuation.id for one in completions if one.continuation is not None)
            if twice := [id for id, times in ids.items() if times > 1]:
                raise JobIdConflictError(twice)
            for others in behind:
                await self._run("cancel_chains", encode.cancel(others, error, {"check": True}))
            checks = [await self._run("complete_chains", encode.completions(part, check=True)) for part in parts]
            refused = not all(checks)
        answer: list[Any] = []
        for part in parts:
            run = self._commit if part is parts[-1] and not behind else self._run
            with_it = cancelled if whole else []
            answer += await run(
                "complete_chains", encode.completions(part, refused=refused, cancel=with_it, error=error)
            )
        updates = {one.chain_id: one for one in map(decode.update, answer)}
        for others in behind if all(updates[id].written for id in of_chain) else []:
            run = self._commit if others is behind[-1] else self._run
            for one in map(decode.update, await run("cancel_chains", encode.cancel(others, error, {"checked": True}))):
                updates[one.chain_id] = one
        return [updates[id] for id in (*of_chain, *cancelled) if id in updates]

    async def cancel_chains(self, ids: Sequence[str], *, reason: str, connection: Any = None) -> list[ChainUpdate]:
        """Close open chains as cancelled."""
        refuse_connection(connection)
        if not ids:
            return []
        error = JobError("cancel", reason)
        # A chain that waits for another of them is cancelled first, so that nobody claims its job meanwhile.
        parts = await self._parts(ids, blockers_first=False)
        answer = await self._write("cancel_chains", parts, lambda part, flags: encode.cancel(part, error, flags))
        return _in_given_order(ids, answer)

    async def retry_chains(
        self, ids: Sequence[str], *, edit: InputEdit | None = None, connection: Any = None
    ) -> list[ChainUpdate]:
        """Open failed and cancelled chains again."""
        refuse_connection(connection)
        if not ids:
            return []
        # A chain that waits for another of them is retried after it, so that it waits for it again.
        # An edit is that of one chain.
        parts = await self._parts(ids, blockers_first=True) if edit is None else [ids]
        answer = await self._write("retry_chains", parts, lambda part, flags: encode.retry(part, edit, flags))
        return _in_given_order(ids, answer)

    async def change_waiting_jobs(
        self,
        ids: Sequence[str],
        *,
        run_at: RunAt | None = None,
        priority: int | None = None,
        edit: InputEdit | None = None,
        connection: Any = None,
    ) -> list[ChainUpdate]:
        """Give the last jobs of chains another due time, priority or input, if they wait."""
        refuse_connection(connection)
        if not ids:
            return []
        parts = list(portions(list(dict.fromkeys(ids)), WRITTEN)) if edit is None else [ids]
        answer = await self._write(
            "change_waiting_jobs", parts, lambda part, flags: encode.changes(part, run_at, priority, edit, flags)
        )
        return _in_given_order(ids, answer)

    async def trigger_jobs(self, ids: Sequence[str], *, connection: Any = None) -> list[TriggeredJob]:
        """Make scheduled jobs due now."""
        refuse_connection(connection)
        if not ids:
            return []
        parts = list(portions(list(dict.fromkeys(ids)), WRITTEN))
        answer = await self._write("trigger_jobs", parts, lambda part, flags: encode.trigger(part, flags))
        triggered = {one.id: one for one in map(decode.triggered, answer)}
        return [triggered[id] for id in ids if id in triggered]

    async def send_event(self, chain_id: str, event: NewEvent, *, connection: Any = None) -> SendResult:
        """Keep an event for an open chain, and make its last job due if that waits for it."""
        refuse_connection(connection)
        params = encode.plain({"chain": chain_id, "id": event.id, "name": event.name})
        chain_type, written, woken = await self._commit("send_event", [*params, event.payload])
        return SendResult(chain_id, decode.text(chain_type), written == 1, tuple(map(decode.triggered, woken)))

    async def delete_chains(self, ids: Sequence[str], *, cascade: bool = False, connection: Any = None) -> DeleteResult:
        """Delete chains with all their jobs."""
        refuse_connection(connection)
        order, dependents = list(dict.fromkeys(ids)), dict[str, set[str]]()
        parts: Sequence[Sequence[str]] = [order]
        running: list[str] = []
        if cascade or len(order) > WRITTEN:
            order, parts, dependents = await self._to_delete(order, cascade=cascade)
        if dependents:
            running += await self._close(order, dependents)
        deleted: set[str] = set()
        for part in parts:
            run = self._commit if part is parts[-1] else self._run
            waited = sorted({one for id in part for one in dependents.get(id, ())})
            gone, ran = await run("delete_chains", encode.plain({"ids": list(part), "dependents": waited}))
            deleted.update(decode.texts(gone))
            running += decode.texts(ran)
        return DeleteResult(tuple(id for id in order if id in deleted), tuple(running))

    async def _close(self, ids: Sequence[str], dependents: Mapping[str, Collection[str]]) -> list[str]:
        """Cancel the open ones of chains that are about to be deleted, and return which of their jobs were running.

        Raises:
            BlockerReferenceError: a job of another chain than these and their ``dependents`` waits for one of them
                since they were read; what was cancelled before stays so.
        """
        error = JobError("cancel", "deleted")
        closed: list[ChainUpdate] = []
        for part in await self._parts(ids, blockers_first=False):
            waiting = {one for id in part for one in dependents[id]}
            arguments = encode.cancel(part, error, {"checked": True}, deleting=waiting)
            closed += map(decode.update, await self._run("cancel_chains", arguments))
        return [one.job_id for one in closed if one.written and one.previous_status is JobStatus.RUNNING]

    async def _to_delete(
        self, ids: Sequence[str], *, cascade: bool
    ) -> tuple[list[str], Sequence[Sequence[str]], dict[str, set[str]]]:
        """Return those of the chains that exist, with ``cascade`` those that they wait for, too; and the parts in which
        they are deleted.

        A cascade of several parts begins with the chains that wait for nothing, and ends with the given ones: whatever
        is left if the process dies can still be found from these. The chains that waited for each are returned with it.
        They must not run without it, so they have to be closed first. Without a cascade each chain is deleted after
        those that wait for it.

        Raises:
            BlockerReferenceError: a job of another chain waits or waited for one of them.
        """
        dependents: dict[str, list[tuple[str, str]]] = {}
        following = list(ids)
        while following:
            blockers: set[str] = set()
            for part in portions(following, READ):
                for id, blocker_ids, flat in await self._run("get_relations", encode.plain(list(part))):
                    texts = decode.texts(flat)
                    dependents[decode.text(id)] = list(zip(texts[::2], texts[1::2], strict=True))
                    blockers.update(decode.texts(blocker_ids))
            following = sorted(blockers.difference(dependents)) if cascade else []
        given = [id for id in ids if id in dependents]
        order = [*given, *sorted(dependents.keys() - set(given))]
        waiting = [(chain, job, id) for id in order for chain, job in dependents[id]]
        if references := [(id, job) for chain, job, id in waiting if chain not in dependents]:
            raise BlockerReferenceError(references)
        if len(order) <= WRITTEN:
            return order, [order], {}
        if not cascade:
            return order, in_order(order, [(chain, id) for chain, _, id in waiting]), {}
        parts = in_order(order, [(id, chain) for chain, _, id in waiting])
        return order, parts, {id: {chain for chain, _ in dependents[id]} for id in order}

    async def release_stranded(self, *, cursor: str | None = None, limit: int = 500) -> SweepResult:
        """Release blocked jobs all of whose blockers have closed."""
        if cursor is None:
            await self._mend_lists()
        released: list[TriggeredJob] = []
        for read in range(0, limit, READ):
            params: dict[str, Any] = {"limit": min(READ, limit - read)}
            params.update({} if cursor is None else {"cursor": cursor})
            following, found = await self._run("release_stranded", encode.plain(params))
            released += map(decode.triggered, found)
            cursor = decode.text(following) or None
            if cursor is None:
                break
        return SweepResult(tuple(released), cursor)

    async def _mend_lists(self) -> None:
        """Drop entries that are dead, and let the reaper find running jobs whose lease is lost."""
        for holder in decode.texts(await self._run("list_holders", [])):
            following = 0
            while following >= 0:
                params = {"holder": holder, "from": following, "count": READ}
                following = int(await self._run("mend_holder", encode.plain(params)))
        for part in portions(decode.texts(await self._run("list_types", [])), TYPES):
            for type, rank, length in await self._run("lists_to_compact", encode.plain(list(part))):
                # At the beginning, where claims are, and at random.
                for begin in (0, *(randrange(length + 1) for _ in range(_COMPACTED - 1))):
                    params = {"type": decode.text(type), "rank": decode.text(rank), "from": begin}
                    await self._run("compact", encode.plain(params))


def _in_given_order(ids: Sequence[str], answer: Sequence[Any]) -> list[ChainUpdate]:
    """Return the update of each id that has one."""
    updates = {one.chain_id: one for one in map(decode.update, answer)}
    return [updates[id] for id in ids if id in updates]
