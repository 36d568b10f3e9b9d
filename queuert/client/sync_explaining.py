# Generated from queuert/client/async_explaining.py, do not edit: see scripts/unasync.py
"""Why a job does not run. ``sync_explaining.py`` is generated from this module."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from queuert.client.arguments import known_client_types
from queuert.client.sync_base import ClientBase
from queuert.client.sync_cascades import blockers_of, closing_types, existing_chains
from queuert.errors import ChainNotFoundError, ConfigurationError, QueuertError
from queuert.explanations import (
    MAX_CHAINS,
    MAX_CLOSED,
    MAX_DEPTH,
    RETRIABLE,
    Cause,
    Explanation,
    Surroundings,
    circles,
    failed_for_blocker,
    in_a_line,
    reasons,
)
from queuert.job_types import JobTypes
from queuert.jobs import ChainRecord, ChainStatus, Job, JobStatus
from queuert.limits import client_types
from queuert.new_chain import ChainReference, chain_ids
from queuert.state.sync_store import Store
from queuert.state.types import BlockerRecord, WaitFacts

_FOLLOWED = 0.5
"""Seconds for which the error of a timeout follows the chains that one waits for."""


class ClientExplaining(ClientBase):
    """Explains what holds a chain."""

    def explain(self, chain: ChainReference, *, max_chains: int = MAX_CHAINS) -> Explanation:
        """Return why a chain is not closed yet: all that holds the job that it stands at.

        If that job waits for other chains, those that are open are explained as well, to a depth of 10 and up to
        ``max_chains`` chains. ``str()`` of the result is a text for people. It costs a few reads for each of these
        chains, whatever the number of jobs. The reads are not one snapshot: a job that changes meanwhile is read a
        second time, and may change again.

        Args:
            chain: its id, or a handle; or the id of any of its jobs.
            max_chains: the most chains that are explained, itself among them, between 1 and 100.

        Raises:
            ConfigurationError: ``max_chains`` is out of range.
            ChainNotFoundError: neither a chain nor a job has this id.
            InvalidIdentifierError: the id is not valid.

        Example::

            from queuert.explanations import Cause

            explanation = client.explain(chain)
            print(explanation)
            if Cause.TYPE_PAUSED in explanation.causes:
                client.resume_job_types([explanation.job_type])
        """
        if type(max_chains) is not int or not 1 <= max_chains <= MAX_CHAINS:
            raise ConfigurationError(f"max_chains must be an integer between 1 and {MAX_CHAINS}, got {max_chains!r}")
        [id] = chain_ids([chain])
        store = self._open_store()
        record = _chain_of(store, id)
        around = _surroundings(store, self.job_types)
        found = _Reader(store, around, max_chains).explain(record, depth=1)
        if found is None:
            raise ChainNotFoundError(record.id)
        return found


def reasons_of(store: Store, job_types: JobTypes, ids: Sequence[str]) -> dict[str, str]:
    """Return what holds chains, with a leaf of each that waits for others: a line for each that can be read."""
    found: dict[str, str] = {}
    # Whoever is told has an error to raise already.
    with suppress(QueuertError):
        around = _surroundings(store, job_types)
        for chain in store.get_chains(ids):
            explanation = None
            if chain is not None:
                reader = _Reader(store, around, MAX_DEPTH, to_one_leaf=True, until=time.monotonic() + _FOLLOWED)
                explanation = reader.explain(chain, depth=1)
            if explanation is not None:
                found[explanation.chain_id] = in_a_line(explanation)
    return found


def _surroundings(store: Store, job_types: JobTypes) -> Surroundings:
    paused = {one.type: one for one in store.list_paused_job_types()}
    workers = store.list_workers()
    held = store.count_held([one.id for one in workers])
    traits = store.list_type_traits()
    by_clients = known_client_types(job_types, client_types(traits))
    return Surroundings(
        paused,
        [replace(one, running=held.get(one.id, 0)) for one in workers],
        {one.type: one for one in by_clients},
        frozenset(closing_types(traits, job_types)),
    )


def _chain_of(store: Store, id: str) -> ChainRecord:
    """Return the chain of this id, or the one that the job of this id belongs to."""
    [record] = store.get_chains([id])
    if record is None:
        [job] = store.get_jobs([id])
        if job is not None:
            [record] = store.get_chains([job.chain_id])
    if record is None:
        raise ChainNotFoundError(id)
    return record


@dataclass(frozen=True, slots=True)
class _Read:
    """A chain, its last job, and what decides whether that can be claimed: as read one after the other."""

    chain: ChainRecord
    job: Job
    facts: WaitFacts
    blockers: Sequence[BlockerRecord]
    """The chains that the job waits for, or waited for if one of them made it fail."""
    closed: Sequence[ChainRecord] = ()
    """Those of them that are failed or cancelled, and such ones that made these fail."""


@dataclass(slots=True)
class _Reader:
    """Reads the chains of one explanation, each once."""

    store: Store
    around: Surroundings
    most: int
    to_one_leaf: bool = False
    """Whether only the first of the chains that a job waits for is followed."""
    until: float = math.inf
    """When it stops following chains, on the monotonic clock."""
    seen: set[str] = field(default_factory=set)
    path: list[str] = field(default_factory=list)
    """The chains that wait, directly or not, for the one that is being explained."""

    def explain(self, chain: ChainRecord, depth: int) -> Explanation | None:
        """Return why a chain is not closed; None if it was deleted meanwhile."""
        self.seen.add(chain.id)
        read = self._read_settled(chain)
        if read is None:
            return None
        chain, job, facts = read.chain, read.job, read.facts
        found = reasons(chain, job, facts, self.around, read.blockers, read.closed)
        is_open = chain.status is ChainStatus.OPEN
        waits_for = [one.chain_id for one in read.blockers if is_open and one.status is ChainStatus.OPEN]
        is_behind = any(reason.cause is Cause.KEY_ORDER for reason in found)
        if is_behind and facts.behind_chain is not None and facts.behind_chain not in waits_for:
            waits_for.append(facts.behind_chain)
        found += circles(id for id in waits_for if id in self.path)
        self.path.append(chain.id)
        explained, left = self._explain_all(waits_for, depth) if depth < MAX_DEPTH else ([], len(waits_for))
        self.path.pop()
        return Explanation(
            chain_id=chain.id,
            chain_type=chain.type,
            chain_status=chain.status,
            job_id=job.id,
            job_type=job.type,
            job_status=job.status,
            reasons=tuple(found),
            blockers=tuple(explained),
            more_blockers=left,
        )

    def _read_settled(self, chain: ChainRecord) -> _Read | None:
        """Read a chain, a second time if its job has changed meanwhile: parts of two moments explain nothing."""
        read = self._read(chain)
        if read is not None:
            [now] = self.store.get_chain_states([chain.id])
            if now is not None and (now.status, now.job_id, now.job_status) == (
                read.chain.status,
                read.job.id,
                read.job.status,
            ):
                return read
        [again] = self.store.get_chains([chain.id])
        return None if again is None else self._read(again)

    def _read(self, chain: ChainRecord) -> _Read | None:
        [job] = self.store.get_jobs([chain.tail_id])
        facts = None if job is None else self.store.get_wait_facts(chain.tail_id)
        if job is None or facts is None:
            return None  # It was deleted meanwhile.
        blockers: Sequence[BlockerRecord] = ()
        if failed_for_blocker(chain) or (job.status is JobStatus.BLOCKED and chain.status is ChainStatus.OPEN):
            blockers = self.store.get_blockers(job.id, outputs=False)
        closed = self._closed(blockers) if failed_for_blocker(chain) else ()
        return _Read(chain, job, facts, blockers, closed)

    def _closed(self, blockers: Sequence[BlockerRecord]) -> list[ChainRecord]:
        """Return those of the blockers that are failed or cancelled, and such ones that kept these from running."""
        found: dict[str, ChainRecord] = {}
        below = [one.chain_id for one in blockers if one.status in RETRIABLE]
        while below and len(found) < MAX_CLOSED:
            chains = existing_chains(self.store, below[: MAX_CLOSED - len(found)], None)
            found.update(chains)
            # A retry of what was cancelled, or failed for a blocker itself, fails again unless these are retried.
            tails = {
                chain.id: chain.tail_id
                for chain in chains.values()
                if chain.status is ChainStatus.CANCELLED or failed_for_blocker(chain)
            }
            of_chains = (blockers_of(self.store, tails, None)).values()
            below = list(
                dict.fromkeys(
                    one.id for some in of_chains for one in some if one.status in RETRIABLE and one.id not in found
                )
            )
        return list(found.values())

    def _explain_all(self, ids: list[str], depth: int) -> tuple[list[Explanation], int]:
        """Return the explanations of chains, and how many there are besides."""
        found: list[Explanation] = []
        left = 0
        for id in ids:
            is_enough = len(self.seen) >= self.most or time.monotonic() > self.until or (found and self.to_one_leaf)
            if id in self.seen or is_enough:
                left += 1
                continue
            [chain] = self.store.get_chains([id])
            explanation = None if chain is None else self.explain(chain, depth + 1)
            # One that was deleted meanwhile holds nothing.
            if explanation is not None:
                found.append(explanation)
        return found, left
