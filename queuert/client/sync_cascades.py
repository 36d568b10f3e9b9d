# Generated from queuert/client/async_cascades.py, do not edit: see scripts/unasync.py
"""Which chains a cascade concerns. ``sync_cascades.py`` is generated from this module.

The reads are not one snapshot; the write that follows checks each chain under its lock.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, TypeVar

from queuert.client.management import TooManyChainsError
from queuert.errors import (
    ChainNotFoundError,
    ChainNotRetriableError,
    LeaseLostError,
    NotInStatusError,
    StateUnavailableError,
)
from queuert.job_types import JobType
from queuert.jobs import ChainRecord, ChainStatus, JobStatus
from queuert.limits import TypeTraits
from queuert.state.sync_store import Store
from queuert.state.types import BlockerLink, ChainUpdate, was_locked

_T = TypeVar("_T")

_log = logging.getLogger("queuert.client")

BeforeWrite: TypeAlias = Callable[[], None] | None
"""Called directly before each write, which is not done if it raises ``LeaseLostError``."""

MAX_CASCADE = 10_000
"""The most chains of a cascade, which is one transaction, with those that it only looks at; and the most chains that
close with those which a call cancels or completes."""

_READ = 500
"""The chains that are read at once."""

_READ_LINKS = 50
"""The chains whose blockers are read at once."""

_LINKS = 1_000
"""The blockers of one of them, of all its jobs; of a chain with more, those of its last job are read alone."""

_READ_DEPENDENTS = 50
"""The chains whose dependents, perhaps thousands of each, are read at once."""

_FEW_DEPENDENTS = 100
"""The dependents of a chain that are read with those which the cascade has already: a list of these, perhaps of 10,000
ids, is sent only for chains that have more."""

_SPARED = 25
"""The chains that are looked at and cancelled at once, of those that others may have begun to wait for meanwhile."""

_RETRIABLE = (ChainStatus.FAILED, ChainStatus.CANCELLED)

_NOT_FAILED = tuple(one for one in JobStatus if one not in (JobStatus.FAILED, JobStatus.CANCELLED))

_NAMES_BLOCKERS = (ChainStatus.OPEN, ChainStatus.CANCELLED)
"""Chains that a cascade cancels with what they wait or waited for. The blockers of a chain that a client completed go
on, as they are meant to; so do those of one that failed, which may have been retried since."""

ROUNDS = 5
"""How often an operation is repeated because chains have changed meanwhile."""


def failed_together(
    store: Store, ids: Sequence[str], connection: Any, job_types: Iterable[JobType[Any, Any]] = ()
) -> list[str]:
    """Return the chains, those that failed because one of them had, and the failed blockers of all of them.

    A chain failed because of another if its last job waited for it, and if it closed after it. A blocker that closes
    with its parent counts as failed when it is cancelled.

    Given chains that are open or completed are left out. They may have been retried by a call that was interrupted, so
    those that failed before because of them are returned; and these are looked for behind other such chains as well.

    Raises:
        ChainNotFoundError: one of the given chains does not exist.
        ChainNotRetriableError: all of them are open or completed, and nothing around them has failed.
        TooManyChainsError: there are too many.
    """
    given = _given(store, ids, connection)
    found = dict(given)
    following = list(found.values())
    while following:
        failed = _failed_after(store, following, found, connection)
        found.update(failed)
        _check_bound(len(found))
        following = list(failed.values())
    types = _closing_types(store, connection, job_types)
    following = [chain for chain in found.values() if chain.status in _RETRIABLE or chain.id in given]
    while following:
        failed = {
            blocker.id: blocker
            for of_chain in (blockers_of(store, _tails(following), connection)).values()
            for blocker in of_chain
            if blocker.id not in found
            and (
                blocker.status is ChainStatus.FAILED
                or (blocker.status is ChainStatus.CANCELLED and blocker.type in types)
            )
        }
        found.update(failed)
        _check_bound(len(found))
        following = list(failed.values())
    retriable = [chain.id for chain in found.values() if chain.status in _RETRIABLE]
    if retriable or not given:
        return retriable
    statuses = {chain.id: chain.status for chain in given.values()}
    [(id, status), *_] = statuses.items()
    raise ChainNotRetriableError(id, status, chain_ids=statuses)


def awaited_by_none_else(store: Store, ids: Sequence[str], connection: Any) -> Cascade:
    """Return the chains, and the open chains that only jobs of these wait for, recursively.

    A chain that was cancelled before still names what its last job waited for, whether it was given or is such a
    blocker itself. So a cascade makes up for a cancel without one, and for a call that was interrupted.

    Raises:
        ChainNotFoundError: one of the given chains does not exist.
        TooManyChainsError: there are too many.
    """
    return _spread(store, ids, connection)


class Cascade(NamedTuple):
    """Chains that an operation concerns, and open ones that it spares since other jobs wait for them."""

    ids: list[str]
    spared: set[str]


def closing_with(
    store: Store,
    ids: Sequence[str],
    connection: Any,
    job_types: Iterable[JobType[Any, Any]] = (),
    kept: Collection[str] = (),
) -> Cascade:
    """Return the chains, and those that close with them: see ``JobType(closes_with_parent=True)``.

    That is known of the types that workers have recorded, and of the given ones. ``kept`` are chains that a job is
    about to wait for, which do not close. Nothing closes with a chain that is closed already: whoever retried a child
    of it since meant that.

    Raises:
        ChainNotFoundError: one of the given chains does not exist.
        TooManyChainsError: too many close with them.
    """
    types = _closing_types(store, connection, job_types)
    if not types:
        return Cascade(list(dict.fromkeys(ids)), set())
    return _spread(store, ids, connection, types, kept)


def _closing_types(store: Store, connection: Any, job_types: Iterable[JobType[Any, Any]]) -> set[str]:
    return closing_types(store.list_type_traits(connection=connection), job_types)


def closing_types(traits: Iterable[TypeTraits], job_types: Iterable[JobType[Any, Any]]) -> set[str]:
    """Return the job types that close with their parents, by what workers have recorded and by the given ones."""
    types = {one.type for one in traits if one.closes_with_parent}
    types.update(one.name for one in job_types if one.closes_with_parent)
    return types


def cancel_closing(
    store: Store,
    ids: Sequence[str],
    reason: str,
    connection: Any,
    job_types: Iterable[JobType[Any, Any]] = (),
    *,
    cascade: bool = False,
    before_write: BeforeWrite = None,
) -> list[ChainUpdate]:
    """Cancel chains, and those that close with them; with ``cascade`` all open ones that nobody else waits for.

    The results of the given ones come first. Those that were spared are looked at again: see :func:`cancel_spared`.

    Raises:
        ChainNotFoundError: some of the given chains do not exist; it names them all.
        TooManyChainsError: there are too many.
        NotInStatusError: those that are cancelled with them were deleted again and again meanwhile.
        LeaseLostError: ``before_write`` has raised it, and nothing was written.
    """
    for _ in range(ROUNDS):
        concerned = _concerned(store, ids, connection, job_types, cascade=cascade)
        results = _cancel(store, concerned, ids, reason, connection, before_write)
        if results is not None:
            return results + cancel_spared(
                store, concerned.spared, reason, connection, job_types, cascade=cascade, before_write=before_write
            )
    raise _changing(ids)


def cancel_unheld(
    store: Store,
    ids: Sequence[str],
    reason: str,
    connection: Any,
    job_types: Iterable[JobType[Any, Any]] = (),
    *,
    lock_timeout: float,
) -> list[ChainUpdate]:
    """Cancel those of the chains that nobody holds, and what closes with them; the others have no results.

    Raises:
        ChainNotFoundError: some of the chains do not exist; it names them all.
        TooManyChainsError: too many close with them.
        NotInStatusError: the write would have to wait longer for a lock than the transaction allows, or those that are
            cancelled with them were deleted again and again meanwhile.
    """
    for _ in range(ROUNDS):
        concerned = closing_with(store, ids, connection, job_types)
        held = _held(store, concerned.ids, lock_timeout, connection, job_types)
        if not held.isdisjoint(ids):
            ids = [id for id in ids if id not in held]
            concerned = closing_with(store, ids, connection, job_types)
        if not ids:
            return []
        try:
            results = _cancel(store, concerned, ids, reason, connection)
        except StateUnavailableError as error:
            # The write has a savepoint of its own, so that the caller's transaction can go on.
            if not was_locked(error):
                raise
            raise NotInStatusError("others hold rows of the chains, or of what closes with them") from error
        if results is not None:
            return results + cancel_spared(store, concerned.spared, reason, connection, job_types)
    raise _changing(ids)


def _concerned(
    store: Store,
    ids: Sequence[str],
    connection: Any,
    job_types: Iterable[JobType[Any, Any]],
    *,
    cascade: bool,
) -> Cascade:
    if cascade:
        return awaited_by_none_else(store, ids, connection)
    return closing_with(store, ids, connection, job_types)


def _cancel(
    store: Store,
    concerned: Cascade,
    ids: Sequence[str],
    reason: str,
    connection: Any,
    before_write: BeforeWrite = None,
) -> list[ChainUpdate] | None:
    """Cancel what a cancellation of chains concerns; None if some of the others were deleted meanwhile: look again.

    Raises:
        ChainNotFoundError: some of the given chains do not exist; it names them all.
        LeaseLostError: ``before_write`` has raised it.
    """
    if before_write is not None:
        before_write()
    try:
        return store.cancel_chains(concerned.ids, reason=reason, connection=connection)
    except ChainNotFoundError as error:
        if not set(ids).isdisjoint(error.ids):
            raise
        return None


def _changing(ids: Sequence[str]) -> NotInStatusError:
    return NotInStatusError(f"the chains that {ids[0]!r} waits for changed {ROUNDS} times meanwhile: try again")


def _held(
    store: Store, ids: Sequence[str], lock_timeout: float, connection: Any, job_types: Iterable[JobType[Any, Any]]
) -> set[str]:
    """Return those of the chains that cannot be cancelled now, because of others' locks.

    A chain is not cancelled without those that close with it, so that it is held if one of these is.
    """
    held = set(store.held_chains(ids, lock_timeout=lock_timeout, dependents=True, connection=connection))
    types = _closing_types(store, connection, job_types) if held else set()
    following = held
    while following and types:
        closing = [
            id for id, one in (existing_chains(store, sorted(following), connection)).items() if one.type in types
        ]
        waiting: set[str] = set()
        for part in _parts(closing, _READ_DEPENDENTS):
            links = store.get_dependent_links(
                part, statuses=(JobStatus.BLOCKED,), limit=MAX_CASCADE + len(ids), connection=connection
            )
            waiting.update(link.chain_id for link in links)
        following = waiting.intersection(ids) - held
        held |= following
    return held


def cancel_spared(
    store: Store,
    ids: Collection[str],
    reason: str,
    connection: Any,
    job_types: Iterable[JobType[Any, Any]] = (),
    *,
    cascade: bool = False,
    before_write: BeforeWrite = None,
) -> list[ChainUpdate]:
    """Cancel those chains that no job waits for any more, as :func:`cancel_closing` does; return what was written.

    Whoever closes a parent spares the children that another one waits for. If that one is closed at the same moment, it
    spares them as well: so each looks again when its own is closed, and the last one sees both.

    What cannot be cancelled stays open: the call has written what it was for, and without ``connection`` committed it.
    """
    written: list[ChainUpdate] = []
    parts = list(_parts(sorted(ids), _SPARED))
    try:
        for part in parts:  # It grows meanwhile.
            try:
                results, spared = _cancel_unawaited(
                    store, part, reason, connection, job_types, cascade=cascade, before_write=before_write
                )
            except (TooManyChainsError, StateUnavailableError) as error:
                # The write has a savepoint of its own, so that the caller's transaction can go on.
                if isinstance(error, StateUnavailableError) and not was_locked(error):
                    raise
                # One of them must not keep the others open.
                parts += [[id] for id in part] if len(part) > 1 else []
                continue
            written += results
            parts += _parts(sorted(spared), _SPARED)
    except StateUnavailableError as error:
        if connection is not None:
            raise
        _log.warning("chains that nobody waits for any more were not cancelled, among %s: %s", sorted(ids)[:3], error)
    except LeaseLostError:
        _log.warning("chains that nobody waits for any more were not cancelled, among %s: lease lost", sorted(ids)[:3])
    return written


def _cancel_unawaited(
    store: Store,
    ids: Sequence[str],
    reason: str,
    connection: Any,
    job_types: Iterable[JobType[Any, Any]],
    *,
    cascade: bool,
    before_write: BeforeWrite,
) -> tuple[list[ChainUpdate], set[str]]:
    """Cancel those of the chains that exist and that no job waits for, and what is cancelled with them.

    Returns:
        What was written, and chains that were spared.
    """
    alone = ids
    for _ in range(ROUNDS):
        awaited = _awaited_by_others(store, alone, (), connection)
        alone = [id for id in existing_chains(store, alone, connection) if id not in awaited]
        if not alone:
            break
        with suppress(ChainNotFoundError):
            concerned = _concerned(store, alone, connection, job_types, cascade=cascade)
            results = _cancel(store, concerned, alone, reason, connection, before_write)
            if results is not None:
                return [one for one in results if one.written], concerned.spared
    return [], set()


def _spread(
    store: Store,
    ids: Sequence[str],
    connection: Any,
    types: Collection[str] | None = None,
    kept: Collection[str] = (),
) -> Cascade:
    """Return the chains, and the open chains that only jobs of these wait for, recursively.

    With ``types`` only those of these types, and of chains that are open: see :func:`closing_with`. Without, also of
    chains that were cancelled before: see :func:`awaited_by_none_else`.
    """
    found = _given(store, ids, connection)
    given, followed = len(found), _NAMES_BLOCKERS if types is None else (ChainStatus.OPEN,)
    passed: dict[str, ChainRecord] = {}
    spared: set[str] = set()
    following = [chain for chain in found.values() if chain.status in followed]
    while following:
        blockers = [
            one
            for of_chain in (blockers_of(store, _tails(following), connection)).values()
            for one in of_chain
            if one.id not in found and one.id not in kept and (types is None or one.type in types)
        ]
        spared.update(one.id for one in blockers if one.status is ChainStatus.OPEN)
        # One that another job waits for is looked at again, as that job may belong to a chain that was added since.
        awaited = _awaited_by_others(store, sorted(spared), found, connection)
        added = existing_chains(store, sorted(spared - awaited), connection)
        found.update(added)
        spared = awaited
        through: dict[str, ChainRecord] = {}
        if types is None:
            through = {one.id: one for one in blockers if one.status is ChainStatus.CANCELLED and one.id not in passed}
            passed.update(through)
            _check_bound(len(found) + len(passed))
        elif len(found) - given > MAX_CASCADE:
            raise TooManyChainsError(
                f"at most {MAX_CASCADE:,} chains must close with those that are cancelled or completed, got more with "
                f"{ids[0]!r}: pause its job type, cancel its children by start_bulk_operation(), and try again"
            )
        following = [chain for chain in [*added.values(), *through.values()] if chain.status in followed]
    return Cascade(list(found), spared)


def _tails(chains: Iterable[ChainRecord]) -> dict[str, str]:
    return {chain.id: chain.tail_id for chain in chains}


def blockers_of(store: Store, tails: Mapping[str, str], connection: Any) -> dict[str, list[ChainRecord]]:
    """Return the blockers of the last jobs of chains, by chain; chains whose jobs have none are left out.

    ``tails`` has the last job of each chain.
    """
    ids: dict[str, list[str]] = {}
    for part in _parts(list(tails)):
        # Most chains have no blockers at all: one read says so of many.
        waiting = {link.chain_id for link in store.get_blocker_links(part, limit=1, connection=connection)}
        for some in _parts([id for id in part if id in waiting], _READ_LINKS):
            of_chain: dict[str, list[BlockerLink]] = {id: [] for id in some}
            for link in store.get_blocker_links(some, limit=_LINKS, connection=connection):
                of_chain[link.chain_id].append(link)
            for id, links in of_chain.items():
                if len(links) < _LINKS:
                    ids[id] = [link.blocker_id for link in links if link.job_id == tails[id]]
                else:  # They may be those of earlier jobs.
                    records = store.get_blockers(tails[id], outputs=False, connection=connection)
                    ids[id] = [one.chain_id for one in records]
    # Chains that wait for the same ones are many: each of these is read once.
    unique = list(dict.fromkeys(one for of_chain in ids.values() for one in of_chain))
    chains = existing_chains(store, unique, connection)
    return {id: [chains[one] for one in blockers if one in chains] for id, blockers in ids.items()}


def _parts(items: Sequence[_T], size: int = _READ) -> Iterator[Sequence[_T]]:
    return (items[begin : begin + size] for begin in range(0, len(items), size))


def _check_bound(chains: int) -> None:
    """Refuse a cascade of too many chains.

    Raises:
        TooManyChainsError: there are too many.
    """
    if chains > MAX_CASCADE:
        raise TooManyChainsError(
            f"a cascade must have at most {MAX_CASCADE:,} chains, got more: use start_bulk_operation() for parts of it"
        )


def _given(store: Store, ids: Sequence[str], connection: Any) -> dict[str, ChainRecord]:
    found = existing_chains(store, ids, connection)
    if missing := [id for id in ids if id not in found]:
        raise ChainNotFoundError(missing[0], ids=missing)
    return found


def existing_chains(store: Store, ids: Sequence[str], connection: Any) -> dict[str, ChainRecord]:
    """Read chains, without inputs and outputs. Those that were deleted meanwhile are left out."""
    found: dict[str, ChainRecord] = {}
    for part in _parts(ids):
        chains = store.get_chains(part, payloads=False, connection=connection)
        found.update({chain.id: chain for chain in chains if chain is not None})
    return found


def _failed_after(
    store: Store, blockers: Sequence[ChainRecord], found: Collection[str], connection: Any
) -> dict[str, ChainRecord]:
    """Return the chains that failed because of the others, and those to look behind for more, but for the found ones.

    These are dependents of a chain that was retried since: open again, or completed, as it is.
    """
    failed: dict[str, ChainRecord] = {}
    for part in _parts(blockers, _READ_DEPENDENTS):
        of_part = {chain.id: chain for chain in part}
        known = {*found, *failed}
        retried = [id for id, chain in of_part.items() if chain.status not in _RETRIABLE]
        links = [
            *_dependents(store, list(of_part), (JobStatus.FAILED,), MAX_CASCADE + 1, known, connection),
            *_dependents(store, retried, _NOT_FAILED, MAX_CASCADE + 1, known, connection),
        ]
        dependents = existing_chains(store, sorted({link.chain_id for link in links}), connection)
        for link in links:
            chain = dependents.get(link.chain_id)
            if chain is not None and _is_concerned(chain, link.job_id, of_part[link.blocker_id]):
                failed[chain.id] = chain
        if len(found) + len(failed) > MAX_CASCADE:
            break  # Too many, as the caller will find.
    return failed


def _is_concerned(chain: ChainRecord, job_id: str, blocker: ChainRecord) -> bool:
    """Whether a chain, with a job that waited for a blocker, failed because of it, or was retried since as it was."""
    if chain.status is not ChainStatus.FAILED:
        return chain.status is not ChainStatus.CANCELLED and blocker.status not in _RETRIABLE
    if chain.tail_id != job_id or chain.closed_at is None:
        return False
    if blocker.closed_at is None:
        return True  # A job cannot fail while it waits: the blocker was retried since.
    is_before = chain.closed_at < blocker.closed_at
    return is_before if blocker.status is ChainStatus.COMPLETED else not is_before


def _awaited_by_others(store: Store, ids: Sequence[str], chains: Collection[str], connection: Any) -> set[str]:
    """Return those of the chains that a job of another chain than these waits for."""
    awaited: set[str] = set()
    for part in _parts(ids):
        links = _dependents(store, part, (JobStatus.BLOCKED,), 1, chains, connection)
        awaited.update(link.blocker_id for link in links)
    return awaited


def _dependents(
    store: Store,
    ids: Sequence[str],
    statuses: Collection[JobStatus],
    limit: int,
    chains: Collection[str],
    connection: Any,
) -> list[BlockerLink]:
    """Return which jobs of other chains than ``chains`` wait for chains or did, ``limit`` of each or more."""
    if not ids:
        return []
    if len(chains) <= _FEW_DEPENDENTS:
        return store.get_dependent_links(ids, statuses=statuses, limit=limit, excluding=chains, connection=connection)
    links = store.get_dependent_links(ids, statuses=statuses, limit=_FEW_DEPENDENTS, connection=connection)
    read = Counter(link.blocker_id for link in links)
    others = [link for link in links if link.chain_id not in chains]
    enough = Counter(link.blocker_id for link in others)
    # Behind so many there may be more, also if none of those that were read counts.
    full = {id: None for id in ids if read[id] >= _FEW_DEPENDENTS and enough[id] < limit}
    if not full:
        return others
    more = store.get_dependent_links(
        list(full), statuses=statuses, limit=limit, excluding=chains, connection=connection
    )
    return [link for link in others if link.blocker_id not in full] + more
