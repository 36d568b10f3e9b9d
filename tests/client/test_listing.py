"""What a client lists and counts, and what it refuses to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest

from queuert import (
    AsyncClient,
    Chain,
    ChainStatus,
    Client,
    Deduplicate,
    JobStatus,
    JobType,
    JobTypes,
    NewChain,
    PostgresState,
    after,
)
from queuert.errors import (
    ChainNotFoundError,
    ConfigurationError,
    InvalidCursorError,
    InvalidIdentifierError,
    JobNotFoundError,
    PayloadDecodeError,
    UnsupportedConnectionError,
)
from queuert.notify.in_process import InProcessNotify
from queuert.state.paging import ChainFilter, JobFilter, Page, PageRequest, Position
from queuert.state.postgres.listing import Counted, type_counts
from queuert.state.redis import RedisState
from queuert.state.types import TypeCount
from tests.support.waiting import WAIT

number = JobType("number", input=int, output=int)
word = JobType("word", input=str, output=str)
pair = JobType("pair", input=str, output=tuple[int, int])
order = JobType("order", input=str, continues_with=pair)
JOB_TYPES = JobTypes(number, word, pair, order)


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        yield client


@pytest.fixture
async def async_client(dsn: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        yield client


@pytest.fixture
def stranger(dsn: str) -> Iterator[Client]:
    """A client that knows no job types, as an operator's."""
    with Client(PostgresState(dsn), JobTypes(), notify=InProcessNotify()) as client:
        yield client


def execute(dsn: str, statement: str, *values: Any) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(statement.encode(), values)


def walk(read: Callable[..., Page[Any]], limit: int, **requested: Any) -> list[str]:
    """The ids of all pages."""
    found: list[str] = []
    cursor: str | None = None
    while not found or cursor is not None:
        page = read(limit=limit, cursor=cursor, **requested)
        assert len(page) == limit or page.next_cursor is None
        found += [one.id for one in page]
        cursor = page.next_cursor
        assert len(found) < 2000, "the pages go round in a circle"
    return found


# --- chains -----------------------------------------------------------------------------------------------------------


def test_listed_chains_are_handles(client: Client, stranger: Client) -> None:
    chain = client.start_chain(number, 7)
    [listed] = client.list_chains()
    assert isinstance(listed, Chain)
    assert (listed.id, listed.type, listed.status, listed.input) == (chain.id, "number", ChainStatus.OPEN, 7)
    client.complete_chain(listed, 8)
    assert listed.result(timeout=WAIT) == 8
    [strange] = stranger.list_chains(job_types=["number"], statuses=["completed"])
    assert (strange.id, strange.status) == (chain.id, ChainStatus.COMPLETED)


def test_chains_by_type_status_and_time(client: Client) -> None:
    ids = [client.start_chain(job_type, value).id for job_type, value in ((number, 1), (number, 2))]
    third = client.start_chain(word, "x").id
    client.cancel_chain(ids[0])
    assert [one.id for one in client.list_chains()] == [third, *ids[::-1]]
    assert [one.id for one in client.list_chains(oldest_first=True)] == [*ids, third]
    assert [one.id for one in client.list_chains(job_types=[number])] == ids[::-1]
    assert [one.id for one in client.list_chains(job_types=["word", number], statuses=[ChainStatus.OPEN])] == [
        third,
        ids[1],
    ]
    assert client.list_chains(job_types=["removed long ago"]).items == ()
    assert client.list_chains(job_types=[]).items == ()
    moment = client.get_chain(ids[1]).created_at
    assert moment is not None
    elsewhere = moment.astimezone(timezone(timedelta(hours=-7)))
    assert [one.id for one in client.list_chains(since=elsewhere)] == [third, ids[1]]
    assert [one.id for one in client.list_chains(before=elsewhere)] == [ids[0]]
    assert client.list_chains(since=moment, before=moment).items == ()


def test_entries_of_one_moment_are_parted_by_their_ids(client: Client, dsn: str) -> None:
    """Pages of chains and jobs that all have the same time, to the microsecond, in both orders."""
    ids = [f"id-{letter}" for letter in "gécaéfbd!"[:4]] + ["id-z", "id-\U0010ffff", "id-%s"]
    client.start_chains([NewChain(number, at, id=id) for at, id in enumerate(ids)])
    execute(dsn, "UPDATE queuert.job SET created_at = '2024-02-29 23:59:59.999999+00'")
    expected = sorted(ids)
    for limit in (1, 2, 6, 7, 100):
        for read in (client.list_chains, client.list_jobs):
            assert walk(read, limit, oldest_first=True) == expected
            assert walk(read, limit) == expected[::-1]
    moment = datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC)
    assert walk(client.list_jobs, 3, since=moment, before=moment + timedelta(microseconds=1)) == expected[::-1]
    assert client.list_jobs(before=moment).items == ()


def test_old_and_far_times(client: Client, dsn: str) -> None:
    """Cursors of times that few calendars know."""
    ids = [client.start_chain(number, at).id for at in range(4)]
    for id, time in zip(
        ids, ("0001-01-01", "1582-10-04 12:00:00.000001", "2024-01-01", "9999-12-31 23:59"), strict=True
    ):
        execute(dsn, "UPDATE queuert.job SET created_at = %s::timestamptz WHERE id = %s", f"{time}+00", id)
    assert walk(client.list_chains, 1, oldest_first=True) == ids
    assert walk(client.list_jobs, 1) == ids[::-1]


def test_the_session_may_be_in_any_time_zone(dsn: str) -> None:
    with Client(PostgresState(f"{dsn}?options=-c%20TimeZone%3DAsia/Kathmandu"), JOB_TYPES) as client:
        ids = [client.start_chain(number, at).id for at in range(5)]
        assert walk(client.list_chains, 2) == ids[::-1]
        cursor = client.list_chains(limit=2).next_cursor
    with Client(PostgresState(dsn), JOB_TYPES) as client:
        assert [one.id for one in client.list_chains(cursor=cursor)] == ids[2::-1]


def test_dead_letters_are_retried_page_by_page(client: Client, dsn: str) -> None:
    chains = client.start_chains([NewChain(number, at) for at in range(7)])
    client.cancel_chains(chains)
    seen, cursor = 0, None
    while True:
        page = client.list_chains(statuses=[ChainStatus.CANCELLED], limit=3, cursor=cursor)
        client.retry_chains(page)
        seen += len(page)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == 7
    assert [(one.status, one.count) for one in client.count_jobs()] == [(JobStatus.READY, 7)]


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_jobs_of_all_kinds(client: Client) -> None:
    chain = client.start_chain(order, "tea")
    step = client.continue_chain(chain, pair, "x", run_at=after(hours=1))
    assert [(one.id, one.chain_index) for one in client.list_jobs()] == [(step, 1), (chain.id, 0)]
    assert [one.id for one in client.list_jobs(job_types=[pair])] == [step]
    assert [one.id for one in client.list_jobs(statuses=["scheduled", JobStatus.READY])] == [step]
    assert [one.id for one in client.list_jobs(statuses=[JobStatus.CONTINUED])] == [chain.id]
    assert client.list_jobs(job_types=["order"], statuses=["scheduled"]).items == ()
    [job] = client.list_jobs(job_types=["pair"])
    assert job == client.get_job(step)


def test_jobs_of_a_chain(client: Client) -> None:
    chain = client.start_chain(order, "tea")
    step = client.continue_chain(chain, pair, "x")
    assert [one.id for one in client.list_chain_jobs(chain)] == [chain.id, step]
    assert walk(lambda **requested: client.list_chain_jobs(chain.id, **requested), 1) == [chain.id, step]
    assert [one.id for one in client.list_chain_jobs(chain.id, oldest_first=False)] == [step, chain.id]
    assert client.list_chain_jobs("unknown").items == ()


def test_jobs_that_wait_and_what_for(client: Client, stranger: Client) -> None:
    first, second = client.start_chains([NewChain(order, "tea"), NewChain(number, 1)])
    ids = sorted(client.start_chain(word, "x", blockers=[second, first]).id for _ in range(3))
    assert [one.id for one in client.list_dependents(first)] == ids
    assert walk(lambda **requested: client.list_dependents(first.id, **requested), 2) == ids
    assert walk(lambda **requested: client.list_dependents(first.id, oldest_first=False, **requested), 1) == ids[::-1]
    client.continue_chain(first, pair, "x")
    client.complete_chain(first, (1, 2))
    client.cancel_chain(second, reason="no more")
    [one, two] = client.get_blockers(ids[0])
    assert (one.chain_id, one.type, one.status, one.output) == (second.id, "number", ChainStatus.CANCELLED, None)
    assert one.error is not None
    assert one.error.message == "no more"
    assert (two.chain_id, two.type, two.output, two.error) == (first.id, "order", (1, 2), None)
    assert [strange.output for strange in stranger.get_blockers(ids[0])] == [None, [1, 2]]
    assert client.get_blockers("unknown") == []


def test_a_tree_of_chains(client: Client, stranger: Client) -> None:
    leaf = client.start_chain(number, 1, id="leaf")
    left, right = (client.start_chain(word, "x", id=id, blockers=[leaf]) for id in ("left", "right"))
    top = client.start_chain(order, "tea", id="top", blockers=[right, left])
    client.complete_chain(leaf, 7)
    tree = client.get_chain_tree(top)
    assert str(tree) == (
        "top (order): open\n  right (word): open\n    leaf (number): completed\n"
        "  left (word): open\n    leaf (number): completed, shown above"
    )
    assert [(one.chain.id, one.waiting_job_id, one.repeated) for one in tree.walk()] == [
        ("top", None, False), ("right", "top", False), ("leaf", "right", False), ("left", "top", False),
        ("leaf", "left", True),
    ]  # fmt: skip
    assert tree.blockers[0].blockers[0].chain.output == 7
    assert str(stranger.get_chain_tree("top")) == str(top.tree()) == str(tree)
    assert not any(one.incomplete for one in tree.walk())


def test_a_tree_is_bounded(client: Client) -> None:
    client.start_chain(number, 0, id="c0")
    for n in range(1, 5):
        client.start_chain(number, n, id=f"c{n}", blockers=[f"c{n - 1}"])
    client.start_chain(number, 9, id="wide", blockers=[f"c{n}" for n in range(5)])

    def shown(id: str, **bounds: Any) -> list[tuple[str, bool]]:
        return [(one.chain.id, one.incomplete) for one in client.get_chain_tree(id, **bounds).walk()]

    assert shown("c4", max_depth=0) == [("c4", True)]
    assert shown("c0", max_depth=0) == [("c0", False)]
    assert shown("c4", max_depth=2) == [("c4", False), ("c3", False), ("c2", True)]
    assert shown("c4", max_chains=2) == [("c4", False), ("c3", True)]
    assert shown("wide", max_chains=3, max_depth=1) == [("wide", True), ("c0", False), ("c1", True)]
    assert [id for id, _ in shown("wide")] == ["wide", "c0", "c1", "c0", "c2", "c1", "c3", "c2", "c4", "c3"]
    refused: list[dict[str, Any]] = [{"max_depth": -1}, {"max_depth": 101}, {"max_chains": 0}, {"max_chains": 10_001}]
    for bounds in refused:
        with pytest.raises(ConfigurationError, match="must be an integer between"):
            client.get_chain_tree("c0", **bounds)
    with pytest.raises(ChainNotFoundError):
        client.get_chain_tree("nowhere")


def test_an_output_that_no_model_can_read(client: Client, stranger: Client, dsn: str) -> None:
    chain = client.start_chain(number, 1)
    waiting = client.start_chain(word, "x", blockers=[chain])
    client.complete_chain(chain, 2)
    execute(dsn, "UPDATE queuert.job SET output = '\"two\"' WHERE id = %s", chain.id)
    with pytest.raises(PayloadDecodeError, match="number"):
        client.get_blockers(waiting.id)
    assert stranger.get_blockers(waiting.id)[0].output == "two"


# --- counts -----------------------------------------------------------------------------------------------------------


def test_counts(client: Client, stranger: Client) -> None:
    client.start_chains([*(NewChain(number, at) for at in range(3)), NewChain(word, "x", run_at=after(hours=1))])
    for asker in (client, stranger):
        found = {(one.type, one.status): one.count for one in asker.count_jobs()}
        assert found == {("number", JobStatus.READY): 3, ("word", JobStatus.SCHEDULED): 1}
    assert [one.type for one in client.count_jobs([word, "removed long ago"])] == ["word"]
    assert client.count_jobs([]) == []


def test_large_numbers_are_put_together() -> None:
    """What was counted, and what was estimated, as one number for each status that is shown."""
    ready, later, cap = JobStatus.READY, JobStatus.SCHEDULED, 10

    def shown(ready_ones: int, due: int, later_ones: int, **estimates: int) -> list[tuple[JobStatus, int, bool]]:
        found = [
            Counted("a", ready, False, ready_ones, 5.0),
            Counted("a", later, True, due, 7.0),
            Counted("a", later, False, later_ones, 0.0),
        ]
        known = {("a", JobStatus(name)): rows for name, rows in estimates.items()}
        counts = type_counts([one for one in found if one.number], known, cap)
        return [(one.status, one.count, one.estimated) for one in counts]

    assert shown(3, 4, 5) == [(ready, 7, False), (later, 5, False)]
    assert shown(10, 10, 10) == [(ready, 20, False), (later, 10, False)]
    assert shown(11, 4, 5, ready=500) == [(ready, 504, True), (later, 5, False)]
    assert shown(11, 0, 0, ready=2) == [(ready, 11, True)]
    assert shown(3, 4, 11, scheduled=500) == [(ready, 7, False), (later, 496, True)]
    assert shown(3, 11, 5, scheduled=500) == [(ready, 498, True), (later, 5, False)]
    assert shown(0, 11, 11, scheduled=500) == [(ready, 11, True), (later, 489, True)]
    unknown_age = [Counted("a", ready, False, 5, None), Counted("a", later, True, 1, 2.0)]
    assert type_counts(unknown_age, {}, cap) == [TypeCount("a", ready, 6, None)]


# --- what is refused --------------------------------------------------------------------------------------------------

TIME = Position("2024-01-01T00:00:00+00:00", "id").encode()


@pytest.mark.parametrize(
    "cursor", ["", "x", "nonsense", "W10=", TIME[:-1], TIME + "x", 7, b"x", Position("1", "id").encode()], ids=repr
)
def test_what_is_no_cursor(client: Client, cursor: Any) -> None:
    for read in (client.list_chains, client.list_jobs):
        with pytest.raises(InvalidCursorError, match="must be a next_cursor of this listing"):
            read(cursor=cursor)


def test_cursors_are_looked_at_before_anything_is_read(dsn: str) -> None:
    """A store that is not open refuses a bad cursor, rather than for being closed."""
    store = PostgresState(dsn).sync_store()
    page = PageRequest(cursor="nonsense")
    reads: list[Callable[[], object]] = [
        lambda: store.list_chains(ChainFilter(), page),
        lambda: store.list_jobs(JobFilter(), page),
        lambda: store.list_chain_jobs("id", page),
        lambda: store.list_dependents("id", page),
    ]
    for read in reads:
        with pytest.raises(InvalidCursorError):
            read()


def test_a_cursor_of_another_kind_of_list(client: Client) -> None:
    chain = client.start_chain(order, "tea")
    client.continue_chain(chain, pair, "x")
    client.start_chains([NewChain(word, "x", blockers=[chain]) for _ in range(2)])
    cursors = [
        client.list_jobs(limit=1).next_cursor,
        client.list_chain_jobs(chain, limit=1).next_cursor,
        client.list_dependents(chain, limit=1).next_cursor,
    ]
    reads: list[Callable[..., Page[Any]]] = [client.list_jobs, client.list_chain_jobs, client.list_dependents]
    for at, read in enumerate(reads):
        given = () if at == 0 else (chain,)
        for other, cursor in enumerate(cursors):
            assert cursor is not None
            if at == other:
                read(*given, cursor=cursor)
                continue
            with pytest.raises(InvalidCursorError):
                read(*given, cursor=cursor)


@pytest.mark.parametrize("limit", [0, -1, 1001, 10**20, 1.5, "5", None, True], ids=repr)
def test_limits_out_of_range(client: Client, limit: Any) -> None:
    reads: list[Callable[[], object]] = [
        lambda: client.list_chains(limit=limit),
        lambda: client.list_jobs(limit=limit),
        lambda: client.list_chain_jobs("id", limit=limit),
        lambda: client.list_dependents("id", limit=limit),
    ]
    for read in reads:
        with pytest.raises(ConfigurationError, match=r"limit must be an integer between 1 and 1,000"):
            read()


def test_limits_at_the_edge(client: Client) -> None:
    client.start_chains([NewChain(number, at) for at in range(1001)])
    assert len(walk(client.list_chains, 1000)) == len(walk(client.list_jobs, 1000)) == 1001
    page = client.list_chains(limit=1000)
    assert (len(page), page.next_cursor is None) == (1000, False)
    client.delete_chain(page.items[0])
    assert client.list_chains(limit=1000).next_cursor is None
    assert PageRequest(1000).limit == 1000


def test_times_without_a_zone_and_other_mistakes(client: Client) -> None:
    mistakes: list[dict[str, Any]] = [
        {"since": datetime(2024, 1, 1)},
        {"before": datetime(2024, 1, 1)},
        {"since": date(2024, 1, 1)},
        {"before": "2024-01-01"},
        {"statuses": ["done"]},
        {"statuses": "failed"},
        {"statuses": JobStatus.FAILED},
        {"statuses": [None]},
    ]
    for requested in mistakes:
        for read in (client.list_chains, client.list_jobs):
            with pytest.raises(ConfigurationError):
                read(**requested)
    with pytest.raises(ConfigurationError, match="must be among open, completed, failed, cancelled"):
        client.list_chains(statuses=["ready"])
    for types in ("number", [""], ["\0"], [5]):
        with pytest.raises(InvalidIdentifierError):
            client.list_jobs(job_types=types)  # type: ignore[arg-type]
        with pytest.raises(InvalidIdentifierError):
            client.count_jobs(types)  # type: ignore[arg-type]
    for id in ("", "\0"):
        for call in (client.list_chain_jobs, client.list_dependents, client.get_blockers):
            with pytest.raises(InvalidIdentifierError):
                call(id)


# --- the other mode -------------------------------------------------------------------------------------------------


async def test_all_of_it_asynchronously(async_client: AsyncClient) -> None:
    chain = await async_client.start_chain(order, "tea")
    step = await async_client.continue_chain(chain, pair, "x")
    waiting = await async_client.start_chain(word, "x", blockers=[chain])
    assert [one.id for one in await async_client.list_chains()] == [waiting.id, chain.id]
    assert [one.id for one in await async_client.list_jobs(job_types=[pair])] == [step]
    assert [one.id for one in await async_client.list_chain_jobs(chain)] == [chain.id, step]
    assert [one.id for one in await async_client.list_dependents(chain)] == [waiting.id]
    assert [one.chain_id for one in await async_client.get_blockers(waiting.id)] == [chain.id]
    assert sum(one.count for one in await async_client.count_jobs()) == 3
    [listed] = await async_client.list_chains(job_types=[order])
    await async_client.complete_chain(listed, (3, 4))
    assert await listed.result(timeout=WAIT) == (3, 4)


def test_jobs_by_id(client: Client) -> None:
    """Each once, in the given order; all of them must exist."""
    first, second = client.start_chains([NewChain(number, 1), NewChain(number, 2)])
    assert [job.id for job in client.get_jobs([second.id, first.id, second.id])] == [second.id, first.id]
    assert client.get_jobs([]) == []
    with pytest.raises(JobNotFoundError, match="nobody"):
        client.get_jobs([first.id, "nobody"])
    with pytest.raises(InvalidIdentifierError, match="must be a sequence of ids"):
        client.get_jobs(first.id)


def test_reads_on_redis_take_no_connection(redis_url: str) -> None:
    with Client(RedisState(redis_url), JOB_TYPES, notify=InProcessNotify()) as client:
        other: Any = object()
        reads: list[Callable[[], object]] = [
            lambda: client.get_chain("a", connection=other),
            lambda: client.get_chains(["a"], connection=other),
            lambda: client.get_job("a", connection=other),
            lambda: client.list_chains(connection=other),
            lambda: client.list_jobs(connection=other),
            lambda: client.list_chain_jobs("a", connection=other),
            lambda: client.list_dependents("a", connection=other),
            lambda: client.get_blockers("a", connection=other),
        ]
        for read in reads:
            with pytest.raises(UnsupportedConnectionError, match="Redis"):
                read()


async def test_chains_by_key(async_client: AsyncClient) -> None:
    """The newest of the key, open or any; all open ones are cancelled at once."""
    client = async_client
    assert await client.find_chain(number, "key") is None
    first = await client.start_chain(number, 1, deduplication=Deduplicate("key"))
    second = await client.start_chain(number, 2, deduplication=Deduplicate("key", excluding=[first]))
    other = await client.start_chain(word, "a", deduplication=Deduplicate("key"))
    found = await client.find_chain(number, "key")
    assert found is not None
    assert (found.id, found.input, found.status) == (second.id, 2, ChainStatus.OPEN)
    assert await client.cancel_chains_of_key(number, "key", reason="not wanted") == 2
    assert await client.cancel_chains_of_key("number", "key") == 0
    assert await client.find_chain("number", "key") is None
    closed = await client.find_chain("number", "key", scope="any")
    assert closed is not None
    assert (closed.id, str(closed.error)) == (second.id, "not wanted")
    assert (await other.refresh()).status is ChainStatus.OPEN
    with pytest.raises(ConfigurationError, match="scope must be"):
        await client.find_chain(number, "key", scope="all")
    for wrong in ("", "a" * 513):
        with pytest.raises(InvalidIdentifierError, match="deduplication key"):
            await client.find_chain(number, wrong)
        with pytest.raises(InvalidIdentifierError, match="deduplication key"):
            await client.cancel_chains_of_key(number, wrong)


def test_chains_by_key_in_a_transaction(client: Client, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        started = client.start_chain(number, 1, deduplication=Deduplicate("key"), connection=connection)
        found = client.find_chain(number, "key", connection=connection)
        assert found is not None
        assert found.id == started.id
        assert client.find_chain(number, "key") is None
        assert client.cancel_chains_of_key(number, "key", connection=connection) == 1
        connection.rollback()
    assert client.find_chain(number, "key", scope="any") is None
