"""Client middlewares: their order, what they may change, and what becomes of errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import pytest

from queuert import AsyncClient, Client, JobType, JobTypes, NewChain, PostgresState, after
from queuert.client import ClientMiddleware
from queuert.errors import ClientMiddlewareError, JobIdConflictError, PayloadError, UnknownJobTypeError
from queuert.jobs import JobStatus
from queuert.notify.in_process import InProcessNotify
from queuert.observability.events import ChainStarted
from queuert.testing.events import EventLog

Chains = Sequence[NewChain[Any]]

work = JobType("work", input=str, output=str)
other = JobType("other", input=str, output=str)
unknown = JobType("unknown", input=str, output=str)
JOB_TYPES = JobTypes(work, other)

MakeClient = Callable[..., Client]


@pytest.fixture
def log() -> EventLog:
    return EventLog()


@pytest.fixture
def make(dsn: str, log: EventLog) -> Iterator[MakeClient]:
    clients: list[Client] = []

    def make(*middlewares: ClientMiddleware) -> Client:
        client = Client(
            PostgresState(dsn), JOB_TYPES, notify=InProcessNotify(), observability=log, middlewares=middlewares
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


def recorder(name: str, seen: list[str]) -> ClientMiddleware:
    @contextmanager
    def middleware(chains: Chains) -> Iterator[Chains]:
        seen.append(f"{name} before {[chain.input for chain in chains]}")
        yield [chain.replace(input=f"{chain.input} {name}") for chain in chains]
        seen.append(f"{name} after")

    return middleware


def test_an_onion(make: MakeClient) -> None:
    seen: list[str] = []
    client = make(recorder("outer", seen), recorder("inner", seen))
    chains = client.start_chains([NewChain(work, "a"), NewChain(work, "b")])
    assert seen == ["outer before ['a', 'b']", "inner before ['a outer', 'b outer']", "inner after", "outer after"]
    assert [client.get_chain(chain.id).input for chain in chains] == ["a outer inner", "b outer inner"]


async def test_asynchronous_clients_have_the_same(dsn: str) -> None:
    seen: list[str] = []
    middlewares = [recorder("outer", seen), recorder("inner", seen)]
    async with AsyncClient(PostgresState(dsn), JOB_TYPES, middlewares=middlewares) as client:
        chain = await client.start_chain(work, "a")
        assert (await chain.refresh()).input == "a outer inner"
    assert seen[-2:] == ["inner after", "outer after"]


def test_everything_can_be_changed(make: MakeClient) -> None:
    blocker = make().start_chain(work, "blocker")

    @contextmanager
    def middleware(chains: Chains) -> Iterator[Chains]:
        [chain] = chains
        yield [
            chain.replace(
                job_type=other, id="chosen", priority=7, run_at=after(hours=1), blockers=[blocker], limit_key="tenant"
            )
        ]

    client = make(middleware)
    chain = client.start_chain(work, "a")
    job = client.get_job("chosen")
    assert (chain.id, chain.type) == ("chosen", "other")
    assert (job.type, job.priority, job.limit_key, job.status) == ("other", 7, "tenant", JobStatus.BLOCKED)


def test_many_chains_and_none(make: MakeClient) -> None:
    seen: list[str] = []
    client = make(recorder("m", seen))
    assert client.start_chains([]) == []
    assert len(client.start_chains(NewChain(work, str(n)) for n in range(3))) == 3
    assert seen == ["m before []", "m after", "m before ['0', '1', '2']", "m after"]


@contextmanager
def yields_one_less(chains: Chains) -> Iterator[Chains]:
    yield chains[1:]


@contextmanager
def yields_one_more(chains: Chains) -> Iterator[Chains]:
    yield [*chains, NewChain(work, "more")]


@contextmanager
def yields_nothing(chains: Chains) -> Iterator[Any]:
    yield


@contextmanager
def yields_inputs(chains: Chains) -> Iterator[Any]:
    yield [chain.input for chain in chains]


@contextmanager
def yields_an_iterator(chains: Chains) -> Iterator[Any]:
    yield iter(chains)


def is_no_manager(chains: Chains) -> Any:
    return chains


def forgets_the_decorator(chains: Chains) -> Any:
    yield chains


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (yields_one_less, r"yields_one_less must yield as many chains as it received \(2\), got 1"),
        (yields_one_more, r"yields_one_more must yield as many chains as it received \(2\), got 3"),
        (yields_nothing, "yields_nothing must yield a sequence of NewChain"),
        (yields_inputs, "yields_inputs must yield a sequence of NewChain"),
        (yields_an_iterator, "yields_an_iterator must yield a sequence of NewChain"),
        (is_no_manager, "is_no_manager must return a context manager, got list"),
        (forgets_the_decorator, "forgets_the_decorator must return a context manager, got generator"),
    ],
)
def test_a_wrong_middleware_is_named_and_nothing_is_written(
    make: MakeClient, log: EventLog, wrong: ClientMiddleware, message: str
) -> None:
    ended: list[str] = []

    @contextmanager
    def outer(chains: Chains) -> Iterator[Chains]:
        try:
            yield chains
        finally:
            ended.append("outer")

    with pytest.raises(ClientMiddlewareError, match=message):
        make(outer, wrong).start_chains([NewChain(work, "a"), NewChain(work, "b")])
    assert ended == ["outer"]
    assert log.of(ChainStarted) == []


def test_an_error_before_the_yield_keeps_the_start_back(make: MakeClient, log: EventLog) -> None:
    @contextmanager
    def refuses(chains: Chains) -> Iterator[Chains]:
        if chains:
            raise PermissionError("no tenant")
        yield chains

    with pytest.raises(PermissionError, match="no tenant"):
        make(refuses).start_chain(work, "a", id="a")
    assert log.of(ChainStarted) == []
    make().start_chain(work, "a", id="a")


def test_an_error_after_the_yield_reaches_the_caller_who_has_a_chain(make: MakeClient, log: EventLog) -> None:
    @contextmanager
    def stumbles(chains: Chains) -> Iterator[Chains]:
        yield chains
        raise PermissionError("too late")

    with pytest.raises(PermissionError, match="too late"):
        make(stumbles).start_chain(work, "a", id="a")
    assert [event.chain_id for event in log.of(ChainStarted)] == ["a"], "workers hear of it"


@pytest.mark.parametrize(
    ("start", "error"),
    [
        (NewChain(work, "a", id="taken"), JobIdConflictError),
        (NewChain(work, "\0"), PayloadError),
        (NewChain(unknown, "a"), UnknownJobTypeError),
    ],
    ids=["store", "payload", "type"],
)
@pytest.mark.parametrize("swallows", [True, False])
def test_errors_of_the_start_pass_through(
    make: MakeClient, start: NewChain[str], error: type[Exception], swallows: bool
) -> None:
    """Each middleware sees the error at its yield; whoever swallows it does not hide it from the caller."""
    make().start_chain(work, "a", id="taken")
    seen: list[type[BaseException]] = []

    @contextmanager
    def watches(chains: Chains) -> Iterator[Chains]:
        with suppress(Exception) if swallows else nullcontext():
            try:
                yield chains
            except Exception as failure:
                seen.append(type(failure))
                raise

    with pytest.raises(error):
        make(watches).start_chains([start])
    assert seen == [error]


def test_a_middleware_may_be_any_context_manager(make: MakeClient) -> None:
    class Counting(AbstractContextManager[Chains]):
        count = 0

        def __init__(self, chains: Chains) -> None:
            self.chains = chains

        def __enter__(self) -> Chains:
            Counting.count += len(self.chains)
            return self.chains

        def __exit__(self, *details: object) -> None:
            return None

    make(Counting).start_chain(work, "a")
    assert Counting.count == 1
