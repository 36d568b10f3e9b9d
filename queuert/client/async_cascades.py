"""Which chains a cascade concerns. ``sync_cascades.py`` is generated from this module.

The reads are not one snapshot; the write that follows checks each chain under its lock.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from queuert.errors import (
    ChainNotFoundError,
    ConfigurationError,
    NotInStatusError,
    StateUnavailableError,
)
from queuert.job_types import JobType
from queuert.jobs import ChainRecord, ChainStatus, Job, JobStatus
from queuert.state.async_store import AsyncStore
from queuert.state.paging import MAX_PAGE, PageRequest
from queuert.state.types import BlockerRecord, ChainUpdate, was_locked

_log = logging.getLogger("queuert.client")

MAX_CASCADE = 10_000
"""The most chains of a cascade, which is one transaction."""

_READ = 500
"""The chains that are read at once."""

ROUNDS = 5
"""How often an operation is repeated because chains have changed meanwhile."""


async def failed_together(
    store: AsyncStore, ids: Sequence[str], connection: Any, job_types: Iterable[JobType[Any, Any]] = ()
) -> list[str]:
    """Return the chains, those that failed because one of them had, and the failed blockers of all of them.

    A chain failed because of another if its last job waited for it, and if it closed after it. A blocker that closes
    with its parent counts as failed when it is cancelled.

    Raises:
        ChainNotFoundError: one of the given chains does not exist.
        ConfigurationError: there are too many.
    """
    found = await _given(store, ids, connection)
    following = list(found.values())
    while following:
        failed: dict[str, ChainRecord] = {}
        for chain in following:
            for dependent in await _failed_after(store, chain, connection):
                if dependent.id not in found:
                    failed[dependent.id] = dependent
        _add(found, failed, MAX_CASCADE)
        following = list(failed.values())
    types = await _closing_types(store, connection, job_types)
    following = list(found.values())
    while following:
        blockers = {
            blocker.chain_id
            for of_chain in (await blockers_of(store, _tails(following), connection)).values()
            for blocker in of_chain
            if blocker.status is ChainStatus.FAILED
            or (blocker.status is ChainStatus.CANCELLED and blocker.type in types)
        }
        failed = await existing_chains(store, sorted(blockers.difference(found)), connection)
        _add(found, failed, MAX_CASCADE)
        following = list(failed.values())
    return list(found)


async def awaited_by_none_else(store: AsyncStore, ids: Sequence[str], connection: Any) -> Cascade:
    """Return the chains, and the open chains that only jobs of these wait for, recursively.

    A given chain that was cancelled before still names what its last job waited for.

    Raises:
        ChainNotFoundError: one of the given chains does not exist.
        ConfigurationError: there are too many.
    """
    return await _spread(store, ids, connection, most=MAX_CASCADE)


class Cascade(NamedTuple):
    """Chains that an operation concerns, and open ones that it spares since other jobs wait for them."""

    ids: list[str]
    spared: set[str]


async def closing_with(
    store: AsyncStore,
    ids: Sequence[str],
    connection: Any,
    job_types: Iterable[JobType[Any, Any]] = (),
    kept: Collection[str] = (),
) -> Cascade:
    """Return the chains, and those that close with them: see ``JobType(closes_with_parent=True)``.

    That is known of the types that workers have recorded, and of the given ones. ``kept`` are chains that a job is
    about to wait for, which do not close.

    Raises:
        ChainNotFoundError: one of the given chains does not exist.
    """
    types = await _closing_types(store, connection, job_types)
    return await _spread(store, ids, connection, types, kept) if types else Cascade(list(dict.fromkeys(ids)), set())


async def _closing_types(store: AsyncStore, connection: Any, job_types: Iterable[JobType[Any, Any]]) -> set[str]:
    """Return the job types that close with their parents, by what workers have recorded and by the given ones."""
    types = {one.type for one in await store.list_type_traits(connection=connection) if one.closes_with_parent}
    types.update(one.name for one in job_types if one.closes_with_parent)
    return types


async def cancel_closing(
    store: AsyncStore,
    ids: Sequence[str],
    reason: str,
    connection: Any,
    job_types: Iterable[JobType[Any, Any]] = (),
    *,
    cascade: bool = False,
    lock_timeout: float | None = None,
    optional: bool = False,
) -> list[ChainUpdate]:
    """Cancel chains, and those that close with them; with ``cascade`` all open ones that nobody else waits for.

    The results of the given ones come first. Those that were spared are looked at again: see :func:`cancel_spared`.
    With ``lock_timeout`` given chains are left out, and have no results, if others hold them or what closes with them.
    With ``optional`` none is cancelled if the write would have to wait too long for a lock.

    Raises:
        ChainNotFoundError: some of the given chains do not exist; it names them all.
        ConfigurationError: the cascade has too many chains.
        NotInStatusError: those that are cancelled with them were deleted again and again meanwhile; or with
            ``lock_timeout`` the write would have to wait too long for a lock.
    """
    for _ in range(ROUNDS):
        if cascade:
            concerned = await awaited_by_none_else(store, ids, connection)
        else:
            concerned = await closing_with(store, ids, connection, job_types)
        if lock_timeout is not None:
            held = await _held(store, concerned.ids, lock_timeout, connection, job_types)
            if not held.isdisjoint(ids):
                ids = [id for id in ids if id not in held]
                concerned = await closing_with(store, ids, connection, job_types)
        if not ids:
            return []
        try:
            results = await store.cancel_chains(concerned.ids, reason=reason, connection=connection)
        except ChainNotFoundError as error:
            if not set(ids).isdisjoint(error.ids):
                raise
        except StateUnavailableError as error:
            # The write has a savepoint of its own, so that the caller's transaction can go on.
            if not was_locked(error):
                raise
            if optional:
                return []
            if lock_timeout is None:
                raise
            raise NotInStatusError("others hold rows of the chains, or of what closes with them") from error
        else:
            spared = await cancel_spared(store, concerned.spared, reason, connection, job_types, cascade=cascade)
            return results + spared
    raise NotInStatusError(f"the chains that {ids[0]!r} waits for changed {ROUNDS} times meanwhile: try again")


async def _held(
    store: AsyncStore, ids: Sequence[str], lock_timeout: float, connection: Any, job_types: Iterable[JobType[Any, Any]]
) -> set[str]:
    """Return those of the chains that cannot be cancelled now, because of others' locks.

    A chain is not cancelled without those that close with it, so that it is held if one of these is.
    """
    held = set(await store.held_chains(ids, lock_timeout=lock_timeout, dependents=True, connection=connection))
    types = await _closing_types(store, connection, job_types) if held else set()
    following = held
    while following and types:
        closing = [
            id for id, one in (await existing_chains(store, sorted(following), connection)).items() if one.type in types
        ]
        waiting: set[str] = set()
        for id in closing:
            async for page in _dependents(store, id, connection):
                waiting.update(job.chain_id for job in page if job.status is JobStatus.BLOCKED)
        following = waiting.intersection(ids) - held
        held |= following
    return held


async def cancel_spared(
    store: AsyncStore,
    ids: Collection[str],
    reason: str,
    connection: Any,
    job_types: Iterable[JobType[Any, Any]] = (),
    *,
    cascade: bool = False,
) -> list[ChainUpdate]:
    """Cancel those chains that no job waits for any more, as :func:`cancel_closing` does; return what was written.

    Whoever closes a parent spares the children that another one waits for. If that one is closed at the same moment, it
    spares them as well: so each looks again when its own is closed, and the last one sees both.

    What cannot be cancelled stays open: the call has written what it was for, and without ``connection`` committed it.
    """
    written: list[ChainUpdate] = []
    for id in sorted(ids):
        try:
            if not await _awaited_by_others(store, id, {}, connection):
                results = await cancel_closing(
                    store, [id], reason, connection, job_types, cascade=cascade, optional=True
                )
                written += [one for one in results if one.written]
        except (ChainNotFoundError, NotInStatusError, ConfigurationError):
            continue
        except StateUnavailableError as error:
            if connection is not None:
                raise
            _log.warning("chains that nobody waits for any more were not cancelled, %s among them: %s", id, error)
            break
    return written


async def _spread(
    store: AsyncStore,
    ids: Sequence[str],
    connection: Any,
    types: Collection[str] | None = None,
    kept: Collection[str] = (),
    most: int | None = None,
) -> Cascade:
    """Return the chains, and the open chains of some types that only jobs of these wait for, recursively."""
    found = await _given(store, ids, connection)
    candidates: set[str] = set()
    following = [chain for chain in found.values() if _names_blockers(chain, types)]
    while following:
        candidates |= await _awaited(store, following, connection, types)
        candidates.difference_update(found, kept)
        # One that another job waits for may be found again, when that job belongs to a chain of the cascade.
        alone = [id for id in sorted(candidates) if not await _awaited_by_others(store, id, found, connection)]
        added = await existing_chains(store, alone, connection)
        _add(found, added, most)
        following = [chain for chain in added.values() if chain.status is ChainStatus.OPEN]
    return Cascade(list(found), candidates.difference(found))


def _names_blockers(chain: ChainRecord, types: Collection[str] | None) -> bool:
    """Whether what the chain waits or waited for is cancelled with it.

    A cascade of all types is also a request to finish what a cancel without one has left. The blockers of a chain that
    a client completed go on, as they are meant to; so do those of one that failed, which may have been retried since.
    """
    if types is None:
        return chain.status in (ChainStatus.OPEN, ChainStatus.CANCELLED)
    return chain.status is ChainStatus.OPEN


async def _awaited(
    store: AsyncStore, chains: Sequence[ChainRecord], connection: Any, types: Collection[str] | None
) -> set[str]:
    """Return the open chains of some types that the last jobs of the chains have as blockers."""
    return {
        one.chain_id
        for of_chain in (await blockers_of(store, _tails(chains), connection)).values()
        for one in of_chain
        if one.status is ChainStatus.OPEN and (types is None or one.type in types)
    }


def _tails(chains: Iterable[ChainRecord]) -> dict[str, str]:
    return {chain.id: chain.tail_id for chain in chains}


async def blockers_of(store: AsyncStore, tails: Mapping[str, str], connection: Any) -> dict[str, list[BlockerRecord]]:
    """Return the blockers of the last jobs of chains, by chain; chains whose jobs have none are left out.

    ``tails`` has the last job of each chain.
    """
    found: dict[str, list[BlockerRecord]] = {}
    for part in _parts(list(tails)):
        # Most chains have no blockers at all: one read says so of many.
        links = await store.get_blocker_links(part, limit=1, connection=connection)
        for chain_id in dict.fromkeys(link.chain_id for link in links):
            found[chain_id] = await store.get_blockers(tails[chain_id], outputs=False, connection=connection)
    return found


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[begin : begin + _READ] for begin in range(0, len(ids), _READ))


def _add(found: dict[str, ChainRecord], more: dict[str, ChainRecord], most: int | None) -> None:
    found.update(more)
    if most is not None and len(found) > most:
        raise ConfigurationError(
            f"a cascade must have at most {most:,} chains, got more: use start_bulk_operation() for parts of it"
        )


async def _given(store: AsyncStore, ids: Sequence[str], connection: Any) -> dict[str, ChainRecord]:
    found = await existing_chains(store, ids, connection)
    if missing := [id for id in ids if id not in found]:
        raise ChainNotFoundError(missing[0], ids=missing)
    return found


async def existing_chains(store: AsyncStore, ids: Sequence[str], connection: Any) -> dict[str, ChainRecord]:
    """Read chains. Those that were deleted meanwhile are left out."""
    found: dict[str, ChainRecord] = {}
    for part in _parts(ids):
        chains = await store.get_chains(part, connection=connection)
        found.update({chain.id: chain for chain in chains if chain is not None})
    return found


async def _dependents(store: AsyncStore, chain_id: str, connection: Any) -> AsyncIterator[Sequence[Job]]:
    """Yield the pages of the jobs that wait or waited for a chain."""
    cursor = None
    while True:
        page = await store.list_dependents(chain_id, PageRequest(MAX_PAGE, cursor), connection=connection)
        yield page.items
        cursor = page.next_cursor
        if cursor is None:
            return


async def _failed_after(store: AsyncStore, blocker: ChainRecord, connection: Any) -> list[ChainRecord]:
    """Return the chains whose last job waited for the chain, and that failed after it had closed."""
    failed: dict[str, str] = {}
    async for page in _dependents(store, blocker.id, connection):
        failed.update({job.chain_id: job.id for job in page if job.status is JobStatus.FAILED})
        if len(failed) > MAX_CASCADE:
            break  # Too many, as the caller will find.
    return [
        chain
        for chain in (await existing_chains(store, list(failed), connection)).values()
        if chain.tail_id == failed[chain.id] and _closed_after(chain, blocker)
    ]


def _closed_after(chain: ChainRecord, blocker: ChainRecord) -> bool:
    return chain.closed_at is not None and blocker.closed_at is not None and chain.closed_at >= blocker.closed_at


async def _awaited_by_others(store: AsyncStore, chain_id: str, found: dict[str, ChainRecord], connection: Any) -> bool:
    async for page in _dependents(store, chain_id, connection):
        if any(job.status is JobStatus.BLOCKED and job.chain_id not in found for job in page):
            return True
    return False
