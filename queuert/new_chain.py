"""What a client is asked to start, checked before anything is written."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from queuert.attributes import GivenAttributes, checked_attributes
from queuert.deduplication import Deduplicate
from queuert.errors import ConfigurationError, InvalidIdentifierError, UnknownJobTypeError
from queuert.ids import new_id, new_ids
from queuert.job_types import JobType
from queuert.payloads import check_text
from queuert.policies import checked_ttl
from queuert.run_at import RunAt
from queuert.state.types import NewJob

I = TypeVar("I")  # noqa: E741
R = TypeVar("R", covariant=True)

MAX_PRIORITY = 1_000_000


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


ChainReference: TypeAlias = str | _HasId
"""A chain: its id, or any object that has one, such as ``Chain``."""


class NewChain(Generic[R]):
    """A chain to be started by ``start_chains``: the arguments of ``start_chain``, as a value.

    Args:
        job_type: the type of its first job.
        input: that job's input.
        id: an id of your own choice, at most 512 characters of any kind; by default a new UUID.
        schedule: when it may run first: ``after(minutes=5)`` or ``at(moment)``; by default at once.
        priority: higher is claimed sooner; between -1,000,000 and 1,000,000.
        blockers: chains that must close before it may run.
        deduplication: start it only if no other chain of its key is a duplicate of it.
        attach: with ``id``: where a chain of this id exists, that is the one.
        limit_key: what the per-key limits of its job type count it under.
        result_ttl: seconds, or a timedelta, that the chain is kept after it closed; by default there is no end.
        attributes: what the chain can be found by with ``list_chains``: strings or numbers, or lists of them, by name.

    Example::

        chains = client.start_chains([NewChain(resize, Resize(url=url, width=width)) for width in (100, 200)])
    """

    __slots__ = (
        "attach", "attributes", "blockers", "deduplication", "id", "input", "job_type", "limit_key", "priority",
        "result_ttl", "run_at",
    )  # fmt: skip

    def __init__(
        self,
        job_type: JobType[I, R],
        input: I,
        *,
        id: str | None = None,
        run_at: RunAt | None = None,
        priority: int = 0,
        blockers: Iterable[ChainReference] = (),
        deduplication: Deduplicate | None = None,
        attach: bool = False,
        limit_key: str | None = None,
        result_ttl: float | timedelta | None = None,
        attributes: GivenAttributes | None = None,
    ) -> None:
        self.job_type: JobType[Any, R] = job_type
        self.input: Any = input
        self.id = id
        self.run_at = run_at
        self.priority = priority
        self.blockers: Iterable[ChainReference] = blockers if isinstance(blockers, str) else tuple(blockers)
        self.deduplication = deduplication
        self.attach = attach
        self.limit_key = limit_key
        self.result_ttl = result_ttl
        self.attributes = attributes

    def replace(self, **changes: Any) -> NewChain[R]:
        """A copy with some arguments changed, for client middlewares."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return NewChain(**{**values, **changes})

    def __repr__(self) -> str:
        return f"NewChain({self.job_type.name!r}, id={self.id!r})"


def checked_chains(chains: Iterable[NewChain[R]]) -> list[NewChain[R]]:
    """The chains as a list.

    Raises:
        ConfigurationError: one of them is something else.
    """
    given = list(chains)
    for one in given:
        if not isinstance(one, NewChain):
            raise ConfigurationError(f"start_chains takes NewChain(job_type, input), not {type(one).__name__}")
    return given


class HasTypeNames(Protocol):
    """What new jobs need of the job types that they may be of."""

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        ...

    def __contains__(self, item: object, /) -> bool: ...


def new_jobs(job_types: HasTypeNames, starts: Sequence[NewChain[Any]]) -> list[NewJob]:
    """The jobs that start these chains, checked and encoded.

    Raises:
        What :func:`new_job` does, and InvalidIdentifierError: two of them are to have one id.
    """
    jobs = [new_job(job_types, start, id) for start, id in zip(starts, new_ids(len(starts)), strict=True)]
    refuse_repeated_ids(jobs)
    return jobs


PART = 250
"""Chains that are checked, encoded and sent at a time. A statement costs the server a tenth of what so many cost it."""

FIRST_PART = 50
"""Fewer come first, so that the server has something to do sooner."""

_LONG_PART = 0.02
"""Seconds for the first part; thirty times as long as simple models take."""


def can_pipeline(starts: Sequence[NewChain[Any]]) -> bool:
    """Whether these can be sent before all are made: they are many, and nothing can stand in their way."""
    return len(starts) >= 2 * PART and not any(
        start.id is not None or start.blockers or start.deduplication is not None for start in starts
    )


def pipeline_batches(job_types: HasTypeNames, starts: Sequence[NewChain[Any]]) -> Iterable[list[NewJob]]:
    """The jobs that start these chains: the first part checked and encoded, each other one when it is asked for.

    A connection is held meanwhile, with a transaction open. So where the first part took long, because of what its
    models do, all are made at once.

    Raises:
        What :func:`new_job` does, here or from the iterator.
    """
    ids = new_ids(len(starts))

    def part(begin: int, end: int) -> list[NewJob]:
        given = zip(starts[begin:end], ids[begin:end], strict=True)
        return [new_job(job_types, start, id) for start, id in given]

    began = time.monotonic()
    first = part(0, FIRST_PART)
    if time.monotonic() - began > _LONG_PART:
        return [first + part(FIRST_PART, len(starts))]
    return itertools.chain([first], (part(at, at + PART) for at in range(FIRST_PART, len(starts), PART)))


def new_job(job_types: HasTypeNames, start: NewChain[Any], id: str | None = None) -> NewJob:
    """The job that starts a chain, checked and encoded; ``id`` is what it gets if none was chosen for it.

    Raises:
        UnknownJobTypeError: its type is not registered with the client.
        BlockerMismatchError: its type declares other blockers.
        PayloadError: its input cannot be stored.
        InvalidIdentifierError: its id, or a blocker's, or an attribute, cannot be stored.
        ConfigurationError: its priority or TTL is out of range, it is to attach and has no id of its own, or its
            attributes are too many or of the wrong kind.
    """
    if start.run_at is not None and not isinstance(start.run_at, RunAt):
        raise ConfigurationError(f"schedule is {start.run_at!r}: use after(...) or at(...)")
    if start.deduplication is not None and not isinstance(start.deduplication, Deduplicate):
        raise ConfigurationError(f"deduplication is {start.deduplication!r}: use Deduplicate(key)")
    if start.attach and start.id is None:
        raise ConfigurationError("attach=True needs an id to attach to")
    if start.job_type not in job_types:
        raise UnknownJobTypeError(start.job_type.name, job_types.names)
    awaited = resolve_blockers(start.job_type, start.blockers)
    return NewJob(
        id=id or new_id() if start.id is None else check_text(start.id, what="id"),
        type=start.job_type.name,
        input=start.job_type.encode_input(start.input),
        priority=checked_priority(start.priority),
        run_at=start.run_at,
        blockers=awaited,
        id_chosen=start.id is not None,
        deduplication=start.deduplication,
        attach=start.attach,
        limit_key=None if start.limit_key is None else check_text(start.limit_key, what="limit key"),
        result_ttl=None if start.result_ttl is None else checked_ttl("result_ttl", start.result_ttl),
        attributes=checked_attributes(start.attributes) or None,
    )


def checked_priority(priority: int) -> int:
    """The priority, if it is a whole number in range."""
    if type(priority) is not int or abs(priority) > MAX_PRIORITY:
        raise ConfigurationError(f"priority is {priority!r}: a whole number from -{MAX_PRIORITY:,} to {MAX_PRIORITY:,}")
    return priority


def chain_ids(chains: Iterable[ChainReference]) -> tuple[str, ...]:
    """The ids of chains, each once, in order."""
    return tuple(chain_types(chains))


def chain_types(chains: Iterable[ChainReference]) -> dict[str, str | None]:
    """The ids of chains, each once, in order, with the names of their types as far as the references tell them."""
    if isinstance(chains, str):
        raise InvalidIdentifierError("chains are given as a sequence, not as one string")
    found: dict[str, str | None] = {}
    for chain in chains:
        id = check_text(chain if isinstance(chain, str) else chain.id, what="chain id")
        found[id] = found.get(id) or referenced_type(chain)
    return found


def referenced_type(chain: object) -> str | None:
    """The name of a chain's type, if the reference tells it: handles and ``NewChain`` do, ids do not."""
    reported = chain.job_type.name if isinstance(chain, NewChain) else getattr(chain, "type", None)
    return reported if isinstance(reported, str) else None


def resolve_blockers(job_type: JobType[Any, Any], blockers: Iterable[ChainReference]) -> tuple[str, ...]:
    """The ids of the chains that a job of this type will wait for.

    Raises:
        BlockerMismatchError: its type declares others.
    """
    if not blockers and job_type.blockers is None:
        return ()
    awaited = chain_types(blockers)
    if job_type.blockers is not None:
        job_type.blockers.check(list(awaited.values()))
    return tuple(awaited)


def refuse_repeated_ids(jobs: Sequence[NewJob]) -> None:
    """Raise if two jobs of a batch have one id."""
    chosen = [job.id for job in jobs if job.id_chosen]
    if len(set(chosen)) < len(chosen):
        twice = next(one for one in chosen if chosen.count(one) > 1)
        raise InvalidIdentifierError(f"the id {twice!r} is given twice in one batch")
