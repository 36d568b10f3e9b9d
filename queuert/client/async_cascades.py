"""Which chains a cascade concerns. ``sync_cascades.py`` is generated from this module.

The reads are not one snapshot; the write that follows checks each chain under its lock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from queuert.errors import ChainNotFoundError, ConfigurationError, NotInStatusError
from queuert.job_types import JobType
from queuert.jobs import ChainRecord, ChainStatus, Job, JobStatus
from queuert.state.async_store import AsyncStore
from queuert.state.paging import MAX_PAGE, PageRequest
from queuert.state.types import BlockerRecord, ChainUpdate

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
            for blocker in await _blockers(store, following, connection)
            if blocker.status is ChainStatus.FAILED
            or (blocker.status is ChainStatus.CANCELLED and blocker.type in types)
        }
        failed = await _chains(store, sorted(blockers.difference(found)), connection)
        _add(found, failed, MAX_CASCADE)
        following = list(failed.values())
    return list(found)


async def closed_blockers(
    store: AsyncStore, chains: Sequence[ChainRecord], statuses: Collection[ChainStatus], connection: Any
) -> list[ChainRecord]:
    """Return the chains of these statuses that the last jobs of the chains have as blockers, each once."""
    ids = [one.chain_id for one in await _blockers(store, chains, connection) if one.status in statuses]
    return list((await _chains(store, list(dict.fromkeys(ids)), connection)).values())


async def awaited_by_none_else(store: AsyncStore, ids: Sequence[str], connection: Any) -> Cascade:
    """Return the chains, and the open chains that only jobs of these wait for, recursively.

    A given chain that was cancelled before, or failed, still names what its last job waited for.

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
) -> list[ChainUpdate]:
    """Cancel chains, and those that close with them; with ``cascade`` all open ones that nobody else waits for.

    The results of the given ones come first. Those that were spared are looked at again: see :func:`cancel_spared`.

    Raises:
        ChainNotFoundError: one of the given chains does not exist.
        ConfigurationError: the cascade has too many chains.
        NotInStatusError: those that are cancelled with them were deleted again and again meanwhile.
    """
    for _ in range(ROUNDS):
        if cascade:
            concerned = await awaited_by_none_else(store, ids, connection)
        else:
            concerned = await closing_with(store, ids, connection, job_types)
        try:
            results = await store.cancel_chains(concerned.ids, reason=reason, connection=connection)
        except ChainNotFoundError as error:
            if not set(ids).isdisjoint(error.ids):
                raise
        else:
            spared = await cancel_spared(store, concerned.spared, reason, connection, job_types, cascade=cascade)
            return results + spared
    raise NotInStatusError(f"the chains that {ids[0]!r} waits for changed {ROUNDS} times meanwhile: try again")


async def held_by_others(
    store: AsyncStore, ids: Sequence[str], connection: Any, job_types: Iterable[JobType[Any, Any]] = ()
) -> set[str]:
    """Return those of the chains that :func:`cancel_closing` would wait for now, because of others' locks.

    A chain is not cancelled without those that close with it, so that it is held if one of these is.

    Raises:
        ChainNotFoundError: one of the given chains does not exist.
    """
    concerned = (await closing_with(store, ids, connection, job_types)).ids
    held = set(await store.held_chains(concerned, dependents=True, connection=connection))
    following = held.difference(ids)
    while following:
        waiting: set[str] = set()
        for id in sorted(following):
            async for page in _dependents(store, id, connection):
                waiting.update(job.chain_id for job in page if job.status is JobStatus.BLOCKED)
        following = waiting.intersection(concerned) - held
        held |= following
    return held.intersection(ids)


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
    """
    written: list[ChainUpdate] = []
    for id in sorted(ids):
        if not await _awaited_by_others(store, id, {}, connection):
            with suppress(ChainNotFoundError):
                results = await cancel_closing(store, [id], reason, connection, job_types, cascade=cascade)
                written += [one for one in results if one.written]
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
        added = await _chains(store, alone, connection)
        _add(found, added, most)
        following = [chain for chain in added.values() if chain.status is ChainStatus.OPEN]
    return Cascade(list(found), candidates.difference(found))


def _names_blockers(chain: ChainRecord, types: Collection[str] | None) -> bool:
    """Whether what the chain waits or waited for is cancelled with it.

    A cascade of all types is also a request to finish what a cancel without one has left. The blockers of a chain that
    a client completed go on, as they are meant to.
    """
    if types is None:
        return chain.status is not ChainStatus.COMPLETED
    return chain.status is ChainStatus.OPEN


async def _awaited(
    store: AsyncStore, chains: Sequence[ChainRecord], connection: Any, types: Collection[str] | None
) -> set[str]:
    """Return the open chains of some types that the last jobs of the chains have as blockers."""
    return {
        one.chain_id
        for one in await _blockers(store, chains, connection)
        if one.status is ChainStatus.OPEN and (types is None or one.type in types)
    }


async def _blockers(store: AsyncStore, chains: Sequence[ChainRecord], connection: Any) -> list[BlockerRecord]:
    """Return what the last jobs of the chains have as blockers."""
    tails = {chain.id: chain.tail_id for chain in chains}
    found: list[BlockerRecord] = []
    for part in _parts(list(tails)):
        # Most chains have no blockers at all: one read says so of many.
        links = await store.get_blocker_links(part, limit=1, connection=connection)
        for chain_id in dict.fromkeys(link.chain_id for link in links):
            found += await store.get_blockers(tails[chain_id], outputs=False, connection=connection)
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
    found = await _chains(store, ids, connection)
    for id in ids:
        if id not in found:
            raise ChainNotFoundError(id)
    return found


async def _chains(store: AsyncStore, ids: Sequence[str], connection: Any) -> dict[str, ChainRecord]:
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
        for chain in (await _chains(store, list(failed), connection)).values()
        if chain.tail_id == failed[chain.id] and _closed_after(chain, blocker)
    ]


def _closed_after(chain: ChainRecord, blocker: ChainRecord) -> bool:
    return chain.closed_at is not None and blocker.closed_at is not None and chain.closed_at >= blocker.closed_at


async def _awaited_by_others(store: AsyncStore, chain_id: str, found: dict[str, ChainRecord], connection: Any) -> bool:
    async for page in _dependents(store, chain_id, connection):
        if any(job.status is JobStatus.BLOCKED and job.chain_id not in found for job in page):
            return True
    return False
