"""Flows: queues in an order, children that join, and what is handed on from step to step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import BaseModel

from examples import guild_access_flow as guild
from queuert import AsyncChain, Attempt, ChainStatus, JobStatus, JobType, JobTypes, NewChain, RetryPolicy
from queuert.errors import ConfigurationError, JobFailedError, RetryLater
from queuert.ids import new_id
from queuert.observability.events import AttemptContinued, AttemptRetried, AttemptStarted, AttemptWaiting
from queuert.state.types import NewJob
from queuert.worker import CallNext
from tests.behaviours.conftest import NewHarness
from tests.support.harness import Harness
from tests.support.waiting import WAIT, Gate, in_time


class Order(BaseModel):
    user: int
    correlation: str = ""


class Part(BaseModel):
    user: int
    name: str
    correlation: str = ""


class Node(BaseModel):
    depth: int
    width: int


child = JobType("join/part", input=Part, output=str)
other_child = JobType("join/other", input=Part, output=int)
finish = JobType("finish", input=Order, output=list[str])
audit = JobType("audit", input=Order, continues_with=finish)
join = JobType("join", input=Order, continues_with=(audit, finish))
leave = JobType("leave", input=Order, continues_with=(audit, finish))
parent = JobType("parent", input=Order, output=list[Any])
FLOWS = JobTypes(child, other_child, finish, audit, join, leave, parent)


@pytest.fixture
def flows(new_harness: NewHarness) -> Harness:
    """The harness of each store, with the job types of the flows."""
    return new_harness(FLOWS)


async def _part(attempt: Attempt[Part, str]) -> str:
    return f"{attempt.input.name} of {attempt.input.user}"


async def _ends(attempt: Attempt[Order, list[str]]) -> list[str]:
    return [attempt.chain_type, attempt.type]


# --- queues in an order -----------------------------------------------------------------------------------------------


async def test_a_flow_goes_from_queue_to_queue(flows: Harness) -> None:
    """G10, G11, G21: in the order that its types declare; what each step has made is kept with it."""

    async def goes_on(attempt: Attempt[Order, list[str]]) -> Any:
        return attempt.continue_with(audit, attempt.input, output={"joined": attempt.input.user})

    async def audits(attempt: Attempt[Order, list[str]]) -> Any:
        return attempt.continue_with(finish, attempt.input, output="seen")

    flows.handles(join, goes_on)
    flows.handles(audit, audits)
    flows.handles(finish, _ends)
    chain = await flows.client.start_chain(join, Order(user=7))
    async with flows.worker(), flows.worker():
        assert await chain.result(WAIT) == ["join", "finish"]
    jobs = await flows.client.list_chain_jobs(chain)
    assert [(job.type, job.output) for job in jobs] == [
        ("join", {"joined": 7}), ("audit", "seen"), ("finish", ["join", "finish"]),
    ]  # fmt: skip


async def test_the_handler_chooses_the_next_queue(flows: Harness) -> None:
    """G10, G22: a queue that two flows share goes on as the flow demands, in a priority of its own."""
    seen: dict[str, int] = {}

    async def first(attempt: Attempt[Order, list[str]]) -> Any:
        if attempt.input.user == 0:
            return attempt.continue_with(finish, attempt.input)
        return attempt.continue_with(audit, attempt.input)

    async def shared(attempt: Attempt[Order, list[str]]) -> Any:
        lower = attempt.priority - (5 if attempt.chain_type == "leave" else 0)
        return attempt.continue_with(finish, attempt.input, priority=lower)

    async def ends(attempt: Attempt[Order, list[str]]) -> list[str]:
        seen[f"{attempt.chain_type} {attempt.input.user}"] = attempt.priority
        return []

    for job_type in (join, leave):
        flows.handles(job_type, first)
    flows.handles(audit, shared)
    flows.handles(finish, ends)
    starts = [NewChain(one, Order(user=user), priority=10) for one in (join, leave) for user in (0, 1)]
    chains = await flows.client.start_chains(starts)
    async with flows.worker():
        await flows.client.wait(chains, timeout=WAIT)
    assert seen == {"join 0": 10, "join 1": 10, "leave 0": 10, "leave 1": 5}
    types = [[job.type for job in await flows.client.list_chain_jobs(chain)] for chain in chains]
    assert types == [["join", "finish"], ["join", "audit", "finish"], ["leave", "finish"], ["leave", "audit", "finish"]]


async def test_each_handler_sees_what_its_queue_declares(flows: Harness) -> None:
    """G09: its own input, checked, and nothing of the steps before."""
    seen: list[Any] = []

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        seen.append(attempt.input)
        return attempt.continue_with(finish, Order(user=8)) if attempt.type == "join" else []

    flows.handles(join, handler)
    flows.handles(finish, handler)
    chain = await flows.client.start_chain(join, Order(user=7, correlation="c"))
    async with flows.worker():
        await chain.result(WAIT)
    assert seen == [Order(user=7, correlation="c"), Order(user=8)]


async def test_a_step_that_fails_ends_the_flow(flows: Harness) -> None:
    """G15, G16: after the retries of its own queue; the chain says which step it was, and why."""
    attempts: list[int] = []

    async def first(attempt: Attempt[Order, list[str]]) -> Any:
        return attempt.continue_with(audit, attempt.input)

    async def fails(attempt: Attempt[Order, list[str]]) -> Any:
        attempts.append(attempt.number)
        raise ValueError("not allowed")

    flows.handles(join, first)
    flows.handles(audit, fails, retry=RetryPolicy(max_attempts=2, initial_delay=0, jitter=0))
    flows.handles(finish, _ends)
    chain = await flows.client.start_chain(join, Order(user=7))
    async with flows.worker():
        with pytest.raises(JobFailedError, match="not allowed"):
            await chain.result(WAIT)
    assert attempts == [1, 2]
    [_, failed] = await flows.client.list_chain_jobs(chain)
    assert (failed.type, failed.status) == ("audit", JobStatus.FAILED)
    assert failed.last_error is not None
    assert failed.last_error.message == "not allowed"


async def test_a_handler_puts_itself_off(flows: Harness) -> None:
    """G34: by an exception, with the time and the reason; it is shown meanwhile, and may be triggered before."""

    async def handler(attempt: Attempt[Part, str]) -> Any:
        if attempt.number == 1:
            raise RetryLater(after=3600, reason="the platform asks us to wait")
        return "done"

    flows.handles(child, handler, retry=RetryPolicy(max_attempts=2))
    chain = await flows.client.start_chain(child, Part(user=7, name="a"))
    async with flows.worker():
        reported = await flows.log.wait_for(AttemptRetried, job_id=chain.id)
        assert reported.retry_in == 3600
        job = await flows.client.get_job(chain.id)
        assert job.status is JobStatus.SCHEDULED
        assert job.last_error is not None
        assert "asks us to wait" in job.last_error.message
        assert job.started_at is not None
        assert (job.scheduled_at - job.started_at).total_seconds() == pytest.approx(3600, abs=WAIT)
        await flows.client.trigger_job(chain.id)
        assert await chain.result(WAIT) == "done"


# --- children ---------------------------------------------------------------------------------------------------------


def _fans_out(names: Sequence[str]) -> Any:
    async def handler(attempt: Attempt[Order, list[Any]]) -> Any:
        order = attempt.input
        if not attempt.blockers:
            first = [NewChain(child, Part(user=order.user, name=name)) for name in names]
            return attempt.wait_for(*first, NewChain(other_child, Part(user=order.user, name="other")))
        return [*attempt.outputs_of(child), attempt.output_of(other_child)]

    return handler


async def _count(attempt: Attempt[Part, int]) -> int:
    return len(attempt.input.name)


async def test_children_run_side_by_side_and_join(flows: Harness) -> None:
    """G23: in queues of their own; the parent goes on when the last of them is done, with their outputs in order."""
    gate = Gate()

    async def part(attempt: Attempt[Part, str]) -> str:
        await gate.pass_through(attempt)
        return await _part(attempt)

    flows.handles(parent, _fans_out(["a", "b", "c"]))
    flows.handles(child, part)
    flows.handles(other_child, _count)
    chain = await flows.client.start_chain(parent, Order(user=7))
    async with flows.worker(concurrency=4):
        for _ in range(3):
            await gate.next()
        assert (await flows.client.get_job(chain.id)).status is JobStatus.BLOCKED
        gate.open()
        assert await chain.result(WAIT) == ["a of 7", "b of 7", "c of 7", 5]


async def test_who_waits_for_children_takes_no_place(flows: Harness) -> None:
    """G25, G38: one slot is enough for parents and children; a wait is no attempt that counts."""
    flows.handles(parent, _fans_out(["a", "b"]), retry=RetryPolicy(max_attempts=1))
    flows.handles(child, _part)
    flows.handles(other_child, _count)
    chains = await flows.client.start_chains([NewChain(parent, Order(user=user)) for user in range(3)])
    async with flows.worker(concurrency=1):
        outputs = [await chain.result(WAIT) for chain in chains]
    assert outputs == [[f"a of {user}", f"b of {user}", 5] for user in range(3)]
    job = await flows.client.get_job(chains[0].id)
    assert (job.attempt, job.uncounted) == (2, 1)
    assert len(flows.log.of(AttemptWaiting)) == 3


async def test_children_are_started_once(flows: Harness) -> None:
    """G24: with the commit that begins the wait: an attempt that fails before it has started none."""
    fans_out = _fans_out(["a", "b"])

    async def handler(attempt: Attempt[Order, list[Any]]) -> Any:
        outcome = await fans_out(attempt)
        if attempt.number in (1, 3):
            raise ValueError("after the children were made, and after they were done")
        return outcome

    flows.handles(parent, handler)
    flows.handles(child, _part)
    flows.handles(other_child, _count)
    chain = await flows.client.start_chain(parent, Order(user=7))
    async with flows.worker(concurrency=2):
        assert await chain.result(WAIT) == ["a of 7", "b of 7", 5]
    started = Counter(event.type for event in flows.log.of(AttemptStarted))
    assert started == {"parent": 4, "join/part": 2, "join/other": 1}


async def test_a_child_that_fails_fails_its_parent(flows: Harness) -> None:
    """G23: or is looked at by it, where it says so."""

    async def fails(attempt: Attempt[Part, str]) -> Any:
        return attempt.fail("no access")

    async def looks(attempt: Attempt[Order, list[Any]]) -> Any:
        if not attempt.blockers:
            return attempt.wait_for(NewChain(child, Part(user=1, name="a")))
        return [blocker.status for blocker in attempt.failed_blockers]

    strict, lenient = flows.new_processors(), flows.new_processors()
    for group in (strict, lenient):
        group.handles(child)(fails)
        group.handles(other_child)(_count)
    strict.handles(parent)(_fans_out(["a"]))
    lenient.handles(parent, on_blocker_failure="run")(looks)
    async with flows.worker(strict):
        with pytest.raises(JobFailedError, match="no access"):
            await flows.client.start_and_wait(parent, Order(user=1))
    async with flows.worker(lenient):
        assert await flows.client.start_and_wait(parent, Order(user=1)) == ["failed"]


async def test_children_of_their_own_type(new_harness: NewHarness) -> None:
    """A tree of 31 chains, and one that is 40 deep, with one slot; both ways to write a handler."""
    node = JobType("node", input=Node, output=int, blockers=("node", ...))
    harness = new_harness(JobTypes(node))

    async def counts(attempt: Attempt[Node, int]) -> Any:
        below = attempt.input
        if below.depth and not attempt.blockers:
            child = NewChain(node, Node(depth=below.depth - 1, width=below.width))
            return attempt.wait_for(*[child] * below.width)
        return 1 + sum(attempt.outputs_of(node))

    def counts_in_a_thread(attempt: Attempt[Node, int]) -> Any:
        below = attempt.input
        if below.depth and not attempt.blockers:
            return attempt.wait_for(NewChain(node, Node(depth=below.depth - 1, width=1)))
        return 1 + attempt.output_of(node) if attempt.blockers else 1

    coroutines, functions = harness.new_processors(), harness.new_processors()
    coroutines.handles(node)(counts)
    functions.handles(node)(counts_in_a_thread)
    wide = await harness.client.start_chain(node, Node(depth=4, width=2))
    async with harness.worker(coroutines, concurrency=1):
        assert await wide.result(WAIT) == 31
    deep = await harness.client.start_chain(node, Node(depth=39, width=1))
    async with harness.worker(functions, concurrency=1):
        assert await deep.result(WAIT) == 40
    assert len(list((await deep.tree(max_depth=100)).walk())) == 40


async def test_a_tree_of_one_type_fails_is_retried_and_is_cancelled_as_a_whole(new_harness: NewHarness) -> None:
    node = JobType("node", input=Node, output=int, blockers=("node", ...))
    harness = new_harness(JobTypes(node))
    client, broken = harness.client, True

    async def counts(attempt: Attempt[Node, int]) -> Any:
        depth = attempt.input.depth
        if depth and not attempt.blockers:
            return attempt.wait_for(NewChain(node, Node(depth=depth - 1, width=1), id=f"at-{depth - 1}"))
        if not depth and broken:
            return attempt.fail("out of paper")
        return 1 + sum(attempt.outputs_of(node))

    harness.handles(node, counts)
    top = await client.start_chain(node, Node(depth=3, width=1))
    async with harness.worker():
        with pytest.raises(JobFailedError, match="out of paper"):
            await top.result(WAIT)
        broken = False
        assert len(await client.retry_chains(["at-0"], cascade=True)) == 4
        assert await top.result(WAIT) == 4
        await client.pause_job_types([node])
    [below] = await client.start_chains([NewChain(node, Node(depth=0, width=1))])
    above = await client.start_chain(node, Node(depth=1, width=1), blockers=[below])
    assert await client.cancel_chains([above], cascade=True) == [True, True]
    assert (await below.refresh()).status is ChainStatus.CANCELLED


async def test_a_job_that_waits_for_nothing_fails_at_once(new_harness: NewHarness) -> None:
    harness = new_harness(JobTypes(parent))

    async def waits(attempt: Attempt[Order, list[Any]]) -> Any:
        return attempt.wait_for(*[])

    harness.handles(parent, waits)
    async with harness.worker():
        with pytest.raises(JobFailedError, match="must get at least one chain, got none"):
            await harness.client.start_and_wait(parent, Order(user=1))


# --- finding flows, and their ends ------------------------------------------------------------------------------------


async def test_flows_are_found_by_their_attributes(flows: Harness) -> None:
    """G27, G28: by each element of a list, by numbers as by their text; with their jobs and children on request."""
    flows.handles(parent, _fans_out(["a"]))
    flows.handles(child, _part)
    flows.handles(other_child, _count)
    client = flows.client
    async with flows.worker():
        await client.start_and_wait(parent, Order(user=7), id="a", attributes={"user": 7, "roles": [1, 2]})
        await client.start_and_wait(parent, Order(user=7), id="b", attributes={"user": "7", "roles": [2, 3]})

    async def found(**attributes: Any) -> list[str]:
        page = await client.list_chains(attributes=attributes, oldest_first=True)
        return [chain.id for chain in page]

    assert [await found(user=7), await found(roles=1), await found(roles=2)] == [["a", "b"], ["a"], ["a", "b"]]
    assert [await found(user=7, roles=[2, 3]), await found(roles=4)] == [["b"], []]
    with pytest.raises(ConfigurationError):
        await client.start_chain(parent, Order(user=7), attributes={"user": {"id": 7}})  # type: ignore[dict-item]
    children = await client.get_blockers("a")
    assert [(one.type, one.output) for one in children] == [("join/part", "a of 7"), ("join/other", 5)]
    tree = await client.get_chain_tree("a")
    assert [one.chain.output for one in tree.blockers] == ["a of 7", 5]


async def test_a_flow_is_deleted_with_its_children(flows: Harness) -> None:
    """G29, G06: and is not found by its attributes any more."""
    flows.handles(parent, _fans_out(["a", "b"]))
    flows.handles(child, _part)
    flows.handles(other_child, _count)
    client = flows.client
    async with flows.worker():
        await client.start_and_wait(parent, Order(user=7), id="a", attributes={"user": 7})
    gone = await client.delete_chains(["a"], cascade=True)
    assert len(gone) == 4
    assert len(await client.list_chains(attributes={"user": 7})) == len(await client.list_chains()) == 0


async def test_a_correlation_id_follows_into_children(flows: Harness) -> None:
    """G26, G37: a middleware gives it to what is started, another binds it around each handler, which hands it on."""
    bound: list[str] = []

    @contextmanager
    def given(chains: Sequence[NewChain[Any]]) -> Iterator[Sequence[NewChain[Any]]]:
        yield [chain.replace(input=chain.input.model_copy(update={"correlation": "request-1"})) for chain in chains]

    async def binds(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        bound.append(f"{attempt.type}: {attempt.input.correlation}")
        return await call_next()

    async def handler(attempt: Attempt[Order, list[Any]]) -> Any:
        if attempt.blockers:
            return attempt.outputs_of(child)
        of_parent = attempt.priority
        part = Part(user=7, name="a", correlation=attempt.input.correlation)
        return attempt.wait_for(NewChain(child, part, priority=of_parent))

    group = flows.new_processors(middlewares=[binds])
    group.handles(parent)(handler)
    group.handles(child)(_part)
    client = flows.new_client(middlewares=[given])
    chain = await client.start_chain(parent, Order(user=7), priority=3)
    async with flows.worker(group):
        assert await chain.result(WAIT) == ["a of 7"]
    assert bound == ["parent: request-1", "join/part: request-1", "parent: request-1"]
    [part] = await client.get_blockers(chain.id)
    assert (await client.get_job(part.chain_id)).priority == 3


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_trace_context_follows_through_a_flow(flows: Harness) -> None:
    """What a job was started with, its continuation and its children have too, whoever runs them."""

    async def goes_on(attempt: Attempt[Order, list[str]]) -> Any:
        return attempt.continue_with(audit, attempt.input)

    flows.handles(join, goes_on)
    flows.handles(parent, _fans_out(["a"]))
    store = flows.state.async_store(max_connections=1)
    await store.open()
    try:
        order = Order(user=7).model_dump_json()
        await store.start_jobs(
            [
                NewJob(new_id(), one.name, order, trace_context=trace)
                for one, trace in ((join, TRACE), (parent, TRACE), (join, None))
            ]
        )
    finally:
        await store.aclose()
    async with flows.worker():
        await flows.log.wait_for(AttemptContinued, times=2)
        await flows.log.wait_for(AttemptWaiting)
    of_child, *of_audits = [await flows.claim_and_die(one, seconds=60.0) for one in (child, audit, audit)]
    assert of_child.trace_context == TRACE
    assert {one.trace_context for one in of_audits} == {TRACE, None}


async def test_many_flows_at_once(flows: Harness) -> None:
    """G12, G13: each child is run once, each parent joins its own, over several workers."""
    flows.handles(parent, _fans_out(["a", "b", "c"]))
    flows.handles(child, _part)
    flows.handles(other_child, _count)
    chains = await flows.client.start_chains([NewChain(parent, Order(user=user)) for user in range(20)])
    async with flows.worker(concurrency=4), flows.worker(concurrency=4), flows.worker(concurrency=2):
        results = await in_time(asyncio.gather(*(chain.result() for chain in chains)))
    assert results == [[f"{name} of {user}" for name in "abc"] + [5] for user in range(20)]
    started = Counter(event.type for event in flows.log.of(AttemptStarted))
    assert started == {"parent": 40, "join/part": 60, "join/other": 20}


# --- the flow of the example ------------------------------------------------------------------------------------------


async def test_the_access_flow(new_harness: NewHarness) -> None:
    """G01, G02, G21, G23, G33, G37: requirements, roles and rewards of many members, over two workers."""
    harness = new_harness(guild.job_types)
    async with harness.worker(guild.processors, concurrency=4), harness.worker(guild.processors, concurrency=4):

        async def one(user: int) -> guild.Access | str:
            guild.correlation.set(f"request {user}")
            try:
                return await guild.join(harness.client, user, guild.ROLES, priority=user)
            except JobFailedError as error:
                return error.reason

        members = await in_time(asyncio.gather(*(asyncio.create_task(one(user)) for user in (6, 7, 8, 9))))
    refused, fan, member, _ = members
    assert refused == "failed: no role is granted"
    assert isinstance(fan, guild.Access)
    assert isinstance(member, guild.Access)
    assert (fan.roles, member.roles) == (["fan", "member"], ["member"])
    assert sorted(member.rewards) == ["discord member (request 8)", "telegram member (request 8)"]
    [chain] = await harness.client.list_chains(attributes={"user": 8})
    await _follows_through(harness, chain)


async def _follows_through(harness: Harness, chain: AsyncChain[Any]) -> None:
    """Every job of the flow and of its children has the correlation id and the priority of the request."""
    assert chain.status is ChainStatus.COMPLETED
    jobs = list(await harness.client.list_chain_jobs(chain))
    for job in tuple(jobs):
        for one in await harness.client.get_blockers(job.id):
            jobs += await harness.client.list_chain_jobs(one.chain_id)
    assert len(jobs) == 8
    assert {(job.input["correlation"], job.priority) for job in jobs} == {("request 8", 8)}
