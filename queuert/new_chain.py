"""Chains to be started: their arguments, and the checks that precede the write."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypedDict, TypeVar, Unpack

from queuert.attributes import GivenAttributes, checked_attributes
from queuert.deduplication import Deduplicate
from queuert.errors import ConfigurationError, InvalidIdentifierError
from queuert.ids import new_id, new_ids
from queuert.job_types import HasJobTypes, JobType, not_a_job_type, not_registered
from queuert.jobs import Attributes
from queuert.policies import checked_attempts, checked_ttl
from queuert.run_at import RunAt, not_a_run_at
from queuert.state.types import NewJob
from queuert.texts import check_text
from queuert.webhooks.endpoints import CHAIN_ATTRIBUTE, checked_chain_url

I = TypeVar("I")  # noqa: E741
R = TypeVar("R", covariant=True)
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

MAX_PRIORITY = 1_000_000


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


ChainReference: TypeAlias = str | _HasId
"""A chain: its id, or any object that has one, such as ``Chain``."""


class RequestOptions(TypedDict, total=False):
    """The options of ``client.start_and_wait``: those of ``start_chain`` but ``attach`` and ``connection``."""

    id: str | None
    run_at: RunAt | None
    priority: int
    blockers: Iterable[ChainReference]
    deduplication: Deduplicate | None
    limit_key: str | None
    result_ttl: float | timedelta | None
    attributes: GivenAttributes | None
    max_attempts: int | None
    webhook: str | None


class ChainOptions(RequestOptions, total=False):
    """The options of a start, which ``client.start_chain`` explains: for functions of yours that pass them on.

    Example::

        def start_for(tenant: str, request: Resize, **options: Unpack[ChainOptions]) -> Chain[Thumbnail]:
            return client.start_chain(resize, request, **{**options, "limit_key": tenant})
    """

    attach: bool


@dataclass(slots=True, eq=False, repr=False)
class NewChain(Generic[R]):
    """A chain to be started by ``start_chains``: the arguments of ``start_chain``, as a value.

    Args:
        job_type: the job type of the first job.
        input: the input of the first job.
        id: an id of your own, at most 512 characters; by default a new UUID.
        run_at: when the job may first run: ``after(minutes=5)`` or ``at(moment)``; by default at once.
        priority: higher priorities are claimed sooner; between -1,000,000 and 1,000,000.
        blockers: chains that must close before the job may run.
        deduplication: start the chain only if no other chain of the same key matches.
        attach: with ``id``: if a chain of this id exists, return its handle instead of raising.
        limit_key: the key under which the per-key limits of the job type count the job.
        result_ttl: seconds or a timedelta that the chain is kept after it closed; by default without end. With 0 it
            counts as deleted as soon as it has closed.
        attributes: names and values by which ``list_chains`` finds the chain: strings, numbers, or lists of them.
        max_attempts: how many attempts of the first job may fail, instead of the ``max_attempts`` of its retry policy.
        webhook: an address that is told when the chain has closed.

    Raises:
        DefinitionError: ``job_type`` is not a JobType.

    Example::

        chains = client.start_chains([NewChain(resize, Resize(url=url, width=width)) for width in (100, 200)])
    """

    job_type: JobType[Any, R]
    input: Any
    _: KW_ONLY
    id: str | None = None
    run_at: RunAt | None = None
    priority: int = 0
    blockers: Iterable[ChainReference] = ()
    deduplication: Deduplicate | None = None
    attach: bool = False
    limit_key: str | None = None
    result_ttl: float | timedelta | None = None
    attributes: GivenAttributes | None = None
    max_attempts: int | None = None
    webhook: str | None = None

    if TYPE_CHECKING:
        # The input is checked against the job type, and the value does not keep its type.
        def __init__(self, job_type: JobType[I, R], input: I, **options: Unpack[ChainOptions]) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.job_type, JobType):
            raise not_a_job_type(self.job_type)
        # The type first, since this runs for each chain.
        if type(self.blockers) is not tuple and not isinstance(self.blockers, tuple | str):
            self.blockers = tuple(listed(self.blockers, "blockers must be a sequence"))

    def replace(self, **changes: Any) -> NewChain[R]:
        """Return a copy with some arguments changed, for client middlewares."""
        return replace(self, **changes)

    def __repr__(self) -> str:
        return f"NewChain({self.job_type.name!r}, id={self.id!r})"


def shows_options(options: type[ChainOptions] | type[RequestOptions]) -> Callable[[F], F]:
    """Have ``help`` and ``inspect.signature`` show the options that ``**options`` of a method stands for."""

    def expanded(method: F) -> F:
        signature = inspect.signature(method)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        named = [one for one in inspect.signature(NewChain).parameters.values() if one.name in options.__annotations__]
        parameters = sorted([*own, *named], key=lambda one: one.kind)
        method.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return method

    return expanded


def check_options(method: str, options: type[ChainOptions] | type[RequestOptions], given: Mapping[str, object]) -> None:
    """Raise the error of a method that was called with options that it does not have, if it was.

    It is called where :class:`NewChain` has refused them, whose name the caller may have never seen.

    Raises:
        TypeError: as Python says it.
    """
    known = options.__annotations__
    for name in given:
        if name not in known:
            near = "".join(f". Did you mean {one!r}?" for one in get_close_matches(name, known, 1))
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}{near}") from None


class HasTypeNames(HasJobTypes, Protocol):
    """The part of ``JobTypes`` that new jobs need."""

    def __contains__(self, item: object, /) -> bool: ...


TraceContext: TypeAlias = Callable[[str, str], str | None]
"""The trace context of a new job, by its job type and id."""


def new_jobs(
    job_types: HasTypeNames, starts: Sequence[NewChain[Any]], trace: TraceContext | None = None
) -> Iterator[NewJob]:
    """Return an iterator of the first jobs of these chains, each checked and encoded when its turn comes.

    Raises the errors of :func:`new_job`.

    Raises:
        InvalidIdentifierError: two chains have the same id.
    """
    made = map(partial(new_job, job_types, trace=trace), starts, new_ids(len(starts)))
    for start in starts:
        if start.id is not None:
            return _with_distinct_ids(made)
    return made


def _with_distinct_ids(jobs: Iterable[NewJob]) -> Iterator[NewJob]:
    chosen: set[str] = set()
    for job in jobs:
        if job.id_chosen:
            if job.id in chosen:
                raise InvalidIdentifierError(f"ids must be unique within one start_chains, got {job.id!r} twice")
            chosen.add(job.id)
        yield job


PART = 250
"""How many chains are checked, encoded and sent at a time. One statement costs the server a tenth of so many chains."""

FIRST_PART = 50
"""The size of the first part, which is smaller so that the server can begin sooner."""

LONG_PART = 0.02
"""Seconds after which the first part counts as slow; thirty times as long as simple models take."""

_LONGEST_PART = 0.05
"""Seconds after which a part is sent though it is not full.

The server ends a transaction that is idle for a second, and the other tasks of an event loop have a turn once a part.
"""

_TURN = 0.01
"""Seconds of encoding after which other tasks have a turn, before anything is sent."""


MANY = 2 * PART
"""From how many chains on a start sends them in parts."""


def may_conflict(starts: Sequence[NewChain[Any]]) -> bool:
    """Whether a chain may exist already, or depend on another one, so that all must be written at a time."""
    for start in starts:  # noqa: SIM110  (a third faster than any(), for each chain)
        if start.id is not None or start.blockers or start.deduplication is not None:
            return True
    return False


async def async_listed(jobs: Iterable[NewJob]) -> list[NewJob]:
    """Return jobs as a list. If making them takes long, other tasks run in between."""
    made: list[NewJob] = []
    until = time.monotonic() + _TURN
    for job in jobs:
        made.append(job)
        if time.monotonic() >= until:
            await asyncio.sleep(0)
            until = time.monotonic() + _TURN
    return made


def sync_listed(jobs: Iterable[NewJob]) -> list[NewJob]:
    """Return jobs as a list."""
    return list(jobs)


def parts(jobs: Iterator[NewJob]) -> Iterator[list[NewJob]]:
    """Yield jobs in the parts in which they are sent, each made when the one before is sent.

    The caller iterates within an open transaction. So if making them takes long, parts are smaller.
    """
    while True:
        part: list[NewJob] = []
        until = time.monotonic() + _LONGEST_PART
        for job in itertools.islice(jobs, PART):
            part.append(job)
            if time.monotonic() > until:
                break
        if not part:
            return
        yield part


def new_job(
    job_types: HasTypeNames, start: NewChain[Any], id: str | None = None, trace: TraceContext | None = None
) -> NewJob:
    """Return the first job of a chain, checked and encoded; ``id`` is used if the caller chose none.

    Raises:
        UnknownJobTypeError: the job type is not registered with the client.
        DuplicateJobTypeError: another job type of this name is registered with the client.
        BlockerMismatchError: the job type declares other blockers.
        PayloadError: the input cannot be stored.
        InvalidIdentifierError: the id, the id of a blocker, or an attribute cannot be stored.
        ConfigurationError: the priority, TTL or number of attempts is out of range, ``attach`` is set without an id, a
            start with ``debounce`` has a time or blockers, or there are too many attributes, or one is of the wrong
            type.
    """
    if start.run_at is not None and not isinstance(start.run_at, RunAt):
        raise not_a_run_at(start.run_at)
    if start.deduplication is not None and not isinstance(start.deduplication, Deduplicate):
        raise ConfigurationError(f"deduplication must be Deduplicate(key), got {start.deduplication!r}")
    if start.attach and start.id is None:
        raise ConfigurationError("attach=True needs an id: pass id=")
    if start.job_type not in job_types:
        raise not_registered(start.job_type, job_types)
    declared = start.job_type.blockers is not None
    blockers = resolve_blockers(start.job_type, start.blockers) if start.blockers or declared else ()
    run_at = start.run_at
    if start.deduplication is not None and start.deduplication.debounce is not None:
        if run_at is not None or blockers:
            raise ConfigurationError("debounce says when the job is due: pass neither run_at= nor blockers= with it")
        run_at = RunAt(delay=start.deduplication.debounce)  # type: ignore[arg-type]
    chosen = id or new_id() if start.id is None else check_text(start.id, what="id")
    return NewJob(
        id=chosen,
        type=start.job_type.name,
        input=start.job_type.encode_input(start.input),
        priority=checked_priority(start.priority),
        run_at=run_at,
        blockers=blockers,
        id_chosen=start.id is not None,
        trace_context=None if trace is None else trace(start.job_type.name, chosen),
        deduplication=start.deduplication,
        attach=start.attach,
        limit_key=None if start.limit_key is None else check_text(start.limit_key, what="limit key"),
        result_ttl=None if start.result_ttl is None else checked_ttl("result_ttl", start.result_ttl, zero=True),
        attributes=None if start.attributes is None and start.webhook is None else _attributes(start),
        max_attempts=None if start.max_attempts is None else checked_attempts("max_attempts", start.max_attempts),
    )


def _attributes(start: NewChain[Any]) -> Attributes | None:
    """Return the attributes of a chain; the address of its webhook is one."""
    if start.webhook is None:
        return None if start.attributes is None else checked_attributes(start.attributes) or None
    return checked_attributes({**(start.attributes or {}), CHAIN_ATTRIBUTE: checked_chain_url(start.webhook)})


def checked_priority(priority: object) -> int:
    """Return the priority, if it is an integer in range.

    Raises:
        ConfigurationError: it is not.
    """
    if type(priority) is int and -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        return priority  # Nearly always, for each chain.
    if isinstance(priority, int) and type(priority) is not bool and -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        return int(priority)
    raise ConfigurationError(
        f"priority must be an integer between -{MAX_PRIORITY:,} and {MAX_PRIORITY:,}, got {priority!r}"
    )


def listed(values: Iterable[T], must: str) -> list[T]:
    """Return the values; ``must`` is the beginning of the error if there is one object instead.

    Raises:
        ConfigurationError: it is no iterable.
    """
    try:
        return list(values)
    except TypeError:
        if isinstance(values, Iterable):
            raise  # It is one, and has failed.
    raise ConfigurationError(f"{must}, got one {type(values).__name__}; write [...] around it")


def chain_ids(chains: Iterable[ChainReference]) -> tuple[str, ...]:
    """Return the ids of chains, each once, in order."""
    return tuple(chain_types(chains))


def chain_types(chains: Iterable[ChainReference]) -> dict[str, str | None]:
    """Return the ids of chains, each once, in order, with the names of their job types where the references have them.

    Raises:
        InvalidIdentifierError: an id cannot be one of a chain, or ``chains`` is a string.
        ConfigurationError: ``chains`` is one object.
    """
    if isinstance(chains, str):
        raise InvalidIdentifierError("chains must be a sequence of ids or handles, got a string; write [id]")
    found: dict[str, str | None] = {}
    for chain in listed(chains, "chains must be a sequence of ids or handles"):
        id = check_text(chain if isinstance(chain, str) else getattr(chain, "id", chain), what="chain id")
        found[id] = found.get(id) or referenced_type(chain)
    return found


def referenced_type(chain: object) -> str | None:
    """Return the name of a chain's job type, if the reference has it: handles and ``NewChain`` do, ids do not."""
    reported = chain.job_type.name if isinstance(chain, NewChain) else getattr(chain, "type", None)
    return reported if isinstance(reported, str) else None


def resolve_blockers(job_type: JobType[Any, Any], blockers: Iterable[ChainReference]) -> tuple[str, ...]:
    """Return the ids of the chains that a job of this type will wait for.

    Raises:
        BlockerMismatchError: the job type declares other blockers.
    """
    if not blockers and job_type.blockers is None:
        return ()
    awaited = chain_types(blockers)
    if job_type.blockers is not None:
        job_type.blockers.check(list(awaited.values()))
    return tuple(awaited)
