"""The SQL function ``start_chain``: what it writes is what a client writes, and what a client refuses it refuses."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors

from queuert import AsyncClient, Attempt, Client, Deduplicate, InProcessWorker, JobType, JobTypes, PostgresState
from queuert.attributes import MAX_VALUES, checked_attributes
from queuert.errors import ConfigurationError, InvalidIdentifierError, PayloadError
from queuert.new_chain import MAX_PRIORITY, NewChain, new_jobs
from queuert.notify import encoding
from queuert.notify.in_process import InProcessNotify
from queuert.payloads import DEFAULT_LIMITS
from queuert.policies import LONGEST_PAUSE
from queuert.run_at import after
from queuert.trace_context import MAX_BYTES
from queuert.worker import Processors
from tests.support.waiting import WAIT, until

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operate" / "sql-producers.md"
work = JobType("work", input=Any, output=int)
JOB_TYPES = JobTypes(work)
Session = psycopg.Connection[Any]


@pytest.fixture
def session(dsn: str) -> Iterator[Session]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def call(session: Session, type: str | None = "work", input: Any = None, **more: Any) -> tuple[str, bool]:
    """Call the function with these arguments."""
    names = "".join(f", {name} => %({name})s" for name in more)
    query = f"SELECT * FROM queuert.start_chain(%(type)s, %(input)s::jsonb{names})".encode()
    values = {name: json.dumps(value) if name == "attributes" else value for name, value in more.items()}
    text = input if isinstance(input, str) else json.dumps(input)
    [(chain_id, deduplicated)] = session.execute(
        re.sub(rb"%\((attributes)\)s", rb"%(\1)s::jsonb", query), {"type": type, "input": text, **values}
    ).fetchall()
    return chain_id, deduplicated


# --- as a client ------------------------------------------------------------------------------------------------------

STARTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "all": (
        {
            "id": "all", "max_attempts": 3, "priority": -7, "limit_key": "k", "result_ttl": 90.5,
            "deduplication": Deduplicate("key"),
            "attributes": {"user": 17, "tags": ["a", "b", "a", 1.5], "none": []}, "run_at": after(days=36_500),
        },
        {
            "id": "all", "max_attempts": 3, "priority": -7, "limit_key": "k", "result_ttl": "90.5 seconds",
            "deduplication_key": "key",
            "attributes": {"user": 17.0, "tags": ["a", "b", "a", 1.50], "none": []}, "delay": "36500 days",
        },
    ),
    "debounced": (
        {"deduplication": Deduplicate("key", debounce=36_500 * 86_400.0)},
        {"deduplication_key": "key", "debounce": "36500 days"},
    ),
    "blocked": (
        {"id": "waits", "blockers": ["open", "closed"], "run_at": after(days=36_500)},
        {"id": "waits", "blockers": ["open", "closed", "open"], "delay": "36500 days"},
    ),
    "blocked by what has closed": ({"id": "ready", "blockers": ["closed"]}, {"id": "ready", "blockers": ["closed"]}),
}  # fmt: skip


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("level", ["all", "terminal"])
def test_it_writes_what_a_client_writes(session: Session, dsn: str, name: str, level: str) -> None:
    """Each column of each table, except for the times and generated ids."""
    session.execute("UPDATE queuert.event_log SET level = %s", [level])
    given, arguments = STARTS[name]
    written = []
    for by_client in (True, False):
        with Client(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
            client.start_chains([NewChain(work, 1, id="open"), NewChain(work, 2, id="closed")])
            client.cancel_chain("closed")
        if by_client:
            with Client(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
                id = client.start_chain(work, {"a": [1, "é"]}, **given).id
        else:
            id, deduplicated = call(session, "work", {"a": [1, "é"]}, **arguments)
            assert not deduplicated
        written.append(contents(session, id))
        for table in ("job", "job_event", "deduplication", "chain_attribute", "job_blocker"):
            session.execute(f"TRUNCATE queuert.{table} CASCADE".encode())
    assert written[0] == written[1]
    assert written[0]["job"]


def contents(session: Session, id: str) -> dict[str, list[Any]]:
    """All rows, without what differs from one start to the next."""
    found = {}
    for table in ("job", "event", "deduplication", "chain_attribute", "job_blocker"):
        rows = session.execute(f"SELECT to_jsonb(entry) FROM queuert.{table} AS entry ORDER BY 1".encode()).fetchall()
        found[table] = [
            {
                name: "ID" if value == id else value
                for name, value in row.items()
                if not re.search(r"_at$|^tx$|^seq$|^completed_tx$", name)
            }
            for (row,) in rows
        ]
    return found


def test_ids_are_those_of_clients(session: Session) -> None:
    """UUIDs of version 7, whose order is that of their start."""
    ids = []
    for _ in range(50):
        ids.append(call(session)[0])
        session.execute("SELECT pg_sleep(0.002)")
    assert all(re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", id) for id in ids)
    assert sorted(ids) == ids
    assert len(set(ids)) == 50


async def test_a_worker_runs_it_and_a_client_awaits_it(dsn: str, session: Session) -> None:
    processors = Processors(JOB_TYPES)

    @processors.handles(work)
    async def double(attempt: Attempt[Any, int]) -> int:
        return int(attempt.input["n"]) * 2

    async with AsyncClient(PostgresState(dsn), JOB_TYPES) as client, InProcessWorker(client, processors):
        id, _ = call(session, "work", {"n": 21})
        assert await (await client.get_chain(id, work)).result(timeout=WAIT) == 42


def test_notifications_go_out_with_the_commit(dsn: str, session: Session) -> None:
    """One a type, and none of what was rolled back or is a duplicate."""
    session.execute("LISTEN queuert_jobs")
    with psycopg.connect(dsn) as producer:
        call(producer, "lost")
        producer.rollback()
        for _ in range(3):
            call(producer, "work", id="a", attach=True)
        producer.execute("NOTIFY queuert_jobs, 'end'")
        producer.commit()
    seen = []
    for notification in session.notifies(timeout=WAIT):
        seen.append(notification.payload)
        if notification.payload == "end":
            break
    assert [encoding.decode(one) for one in seen] == [frozenset({"work"}), frozenset({"end"})]


# --- what it refuses --------------------------------------------------------------------------------------------------

LONG = "é" * 501  # 1,002 bytes
DEEP = "[" * 65 + "]" * 65
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no type": ({"type": None}, "type must be"),
    "an empty type": ({"type": ""}, "type must be"),
    "a long type": ({"type": "a" * 129}, "type must be"),
    "a type with a space": ({"type": "a b"}, "type must be"),
    "a type with a newline": ({"type": "a\n"}, "type must be"),
    "a type of other letters": ({"type": "é"}, "type must be"),
    "an empty id": ({"id": ""}, "id must have 1 to 512"),
    "a long id": ({"id": "a" * 513}, "id must have 1 to 512"),
    "many bytes": ({"id": LONG}, "at most 1000 bytes"),
    "an empty key": ({"deduplication_key": ""}, "deduplication_key must have 1 to 512"),
    "a long limit key": ({"limit_key": "a" * 513}, "limit_key must have 1 to 512"),
    "attach without an id": ({"attach": True}, "attach needs an id"),
    "an unknown scope": ({"deduplication_key": "a", "deduplication_scope": "all"}, "must be open or any, got 'all'"),
    "a scope without a key": ({"deduplication_scope": "any"}, "need a key"),
    "a window without a key": ({"deduplication_window": "1 hour"}, "need a key"),
    "an empty window": ({"deduplication_key": "a", "deduplication_window": "0"}, "window must be above 0"),
    "two times": ({"run_at": "now", "delay": "1 s"}, "exclude each other"),
    "a time without end": ({"run_at": "infinity"}, "run_at must be"),
    "a time before all": ({"run_at": "-infinity"}, "run_at must be"),
    "a time that Python lacks": ({"run_at": "10001-01-01"}, "run_at must be"),
    "a negative delay": ({"delay": "-1 s"}, "delay must be between 0"),
    "a long delay": ({"delay": "36501 days"}, "delay must be between 0"),
    "a high priority": ({"priority": MAX_PRIORITY + 1}, "priority must be"),
    "a low priority": ({"priority": -MAX_PRIORITY - 1}, "priority must be"),
    "a time to live in the past": ({"result_ttl": "-1 second"}, "result_ttl must be between 0 and"),
    "a long time to live": ({"result_ttl": "36501 days"}, "result_ttl must be between 0 and"),
    "no attempts": ({"max_attempts": 0}, "max_attempts must be between 1 and 1000000, got 0"),
    "many attempts": ({"max_attempts": 1_000_001}, "max_attempts must be"),
    "no blocker": ({"blockers": ["a", None]}, "blockers must be ids of chains"),
    "an empty blocker": ({"blockers": [""]}, "a blocker must have 1 to 512"),
    "a debounce without a key": ({"debounce": "1 s"}, "debounce needs a key"),
    "a debounce with a window": (
        {"debounce": "1 s", "deduplication_key": "a", "deduplication_window": "1 s"}, "debounce needs a key"
    ),
    "a debounce of any": (
        {"debounce": "1 s", "deduplication_key": "a", "deduplication_scope": "any"}, "debounce needs a key"
    ),
    "a debounce and a time": (
        {"debounce": "1 s", "deduplication_key": "a", "delay": "1 s"}, "debounce says when the job is due"
    ),
    "a debounce and blockers": (
        {"debounce": "1 s", "deduplication_key": "a", "blockers": ["b"]}, "debounce says when the job is due"
    ),
    "a debounce of nothing": ({"debounce": "0", "deduplication_key": "a"}, "debounce must be above 0"),
    "a delay that is too short": (
        {"debounce": "2 s", "max_delay": "1 s", "deduplication_key": "a"}, "max_delay must be at least debounce"
    ),
    "a delay without a debounce": ({"max_delay": "1 s"}, "max_delay limits debounce"),
    "a long trace context": ({"trace_context": "a" * (MAX_BYTES + 1)}, "trace_context must have"),
    "a large input": ({"input": json.dumps("x" * DEFAULT_LIMITS.max_bytes)}, "at most 1048576 bytes"),
    "a deep input": ({"input": DEEP}, "nested deeper than 64"),
    "a deep object": ({"input": '{"a":' * 65 + "1" + "}" * 65}, "nested deeper than 64"),
    "deep behind text": ({"input": f'["]]]\\"]]",{DEEP}]'}, "nested deeper than 64"),
    "a long number": ({"input": "9" * 310}, "more than 300 digits"),
    "a number beyond doubles": ({"input": "[1e309]"}, "more than 300 digits"),
    "a long fraction": ({"input": "0." + "1" * 400}, "more than 300 digits"),
    "the reserved key": ({"input": '{"queuert.codec": []}'}, "reserved"),
    "a list of attributes": ({"attributes": ["a"]}, "attributes must be an object"),
    "an empty name": ({"attributes": {"": "a"}}, "attribute name must be"),
    "a long name": ({"attributes": {"a" * 65: "a"}}, "attribute name must be"),
    "a strange name": ({"attributes": {"a b": "a"}}, "attribute name must be"),
    "a truth": ({"attributes": {"a": True}}, "must be strings, numbers"),
    "a null": ({"attributes": {"a": None}}, "must be strings, numbers"),
    "a list in a list": ({"attributes": {"a": [["b"]]}}, "must be strings, numbers"),
    "an empty value": ({"attributes": {"a": ""}}, "values of attribute 'a' must have"),
    "a long value": ({"attributes": {"a": "b" * 513}}, "values of attribute 'a' must have"),
    "many values": ({"attributes": {"a": list(range(MAX_VALUES + 1))}}, "at most 64 values"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(session: Session, name: str) -> None:
    """By one error code, with a message that says what must be; and nothing is written."""
    arguments, message = REFUSED[name]
    with pytest.raises(errors.InvalidParameterValue) as caught:
        call(session, **arguments)
    assert message in str(caught.value)
    assert caught.value.diag.message_primary is not None
    assert caught.value.diag.message_primary.startswith("start_chain: ")
    assert session.execute("SELECT FROM queuert.job").fetchall() == []


@pytest.mark.parametrize("name", [name for name, (given, _) in REFUSED.items() if {"attributes", "input"} & {*given}])
def test_a_client_refuses_it_too(name: str) -> None:
    arguments, _ = REFUSED[name]
    refused = (PayloadError, InvalidIdentifierError, ConfigurationError)
    if "attributes" in arguments:
        with pytest.raises(refused):
            checked_attributes(arguments["attributes"])
    else:
        input = json.loads(arguments["input"], parse_float=Decimal)
        with pytest.raises(refused):
            list(new_jobs(JOB_TYPES, [NewChain(work, input)]))


ALLOWED: dict[str, dict[str, Any]] = {
    "the longest names": {"type": "a" * 128, "id": "é" * 500, "limit_key": "a" * 512},
    "all signs of a type": {"type": "_aZ9.:/-"},
    "64 levels": {"input": "[" * 64 + "]" * 64},
    "brackets in text": {"input": json.dumps(["[{" * 500, '"[' * 500, "\\"])},
    "many lists": {"input": json.dumps([[]] * 500)},
    "300 digits": {"input": "9" * 300},
    "digits in text": {"input": json.dumps("9" * 1000)},
    "the largest double": {"input": "1.7976931348623157e308"},
    "the smallest double": {"input": "[5e-324]"},
    "the key of an envelope below": {"input": '{"a": {"queuert.codec": 1}}'},
    "a text that is the key": {"input": '["queuert.codec"]'},
    "64 values": {"attributes": {"a": list(range(MAX_VALUES))}},
    "the longest delay": {"delay": f"{LONGEST_PAUSE} s"},
    "the past": {"run_at": "2001-01-01"},
    "the highest priority": {"priority": MAX_PRIORITY},
    "a trace context": {"trace_context": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"},
    "NULL for what may be": dict.fromkeys(
        ("id", "attach", "deduplication_key", "deduplication_scope", "run_at", "delay", "priority", "limit_key",
         "attributes", "result_ttl", "trace_context", "max_attempts", "blockers", "debounce", "max_delay")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_allowed(session: Session, dsn: str, name: str) -> None:
    """And a client reads it."""
    id, deduplicated = call(session, **ALLOWED[name])
    assert not deduplicated
    types = JobTypes(JobType(ALLOWED[name].get("type", "work"), input=Any, output=int))
    with Client(PostgresState(dsn), types, notify=InProcessNotify()) as client:
        assert client.get_job(id).id == id


# --- conflicts --------------------------------------------------------------------------------------------------------


def test_an_id_that_exists(session: Session) -> None:
    call(session, id="a")
    with pytest.raises(errors.UniqueViolation) as caught:
        call(session, id="a")
    assert caught.value.diag.constraint_name == "job_pkey"
    assert "pass attach => true" in str(caught.value)
    assert call(session, id="a", attach=True) == ("a", True)
    with pytest.raises(errors.DatatypeMismatch, match="another job type"):
        call(session, "other", id="a", attach=True)


def test_an_id_of_an_expired_chain(session: Session, dsn: str) -> None:
    call(session, id="a", result_ttl="1 hour")
    with Client(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        client.cancel_chain("a")
    session.execute("UPDATE queuert.job SET expires_at = now() - interval '1 s'")
    for attach in (True, False):
        with pytest.raises(errors.UniqueViolation) as caught:
            call(session, id="a", attach=attach)
        assert "its chain has expired" in str(caught.value)


def test_keys_and_windows(session: Session) -> None:
    first, _ = call(session, deduplication_key="k")
    assert call(session, deduplication_key="k") == (first, True)
    assert call(session, "other", deduplication_key="k")[1] is False
    session.execute("UPDATE queuert.job SET created_at = created_at - interval '1 hour' WHERE id = %s", [first])
    assert call(session, deduplication_key="k", deduplication_window="2 hours") == (first, True)
    session.execute("UPDATE queuert.job SET chain_status = 'completed', status = 'completed' WHERE id = %s", [first])
    assert call(session, deduplication_key="k", deduplication_scope="any") == (first, True)
    assert call(session, deduplication_key="k", deduplication_scope="any", deduplication_window="1 minute")[1] is False


def test_a_blocker_that_does_not_exist(session: Session) -> None:
    """The error names it, and nothing is written; a chain of the same transaction may be waited for."""
    with pytest.raises(
        errors.ForeignKeyViolation, match="no chain has the id 'nowhere', which blockers names"
    ) as caught:
        call(session, id="a", blockers=["nowhere"])
    assert caught.value.diag.message_detail == "nowhere"
    assert session.execute("SELECT FROM queuert.job").fetchall() == []
    with session.transaction():
        first, _ = call(session)
        second, _ = call(session, blockers=[first])
    [found] = session.execute("SELECT status, open_blockers FROM queuert.job WHERE id = %s", [second]).fetchall()
    assert found == ("blocked", 1)


@pytest.mark.parametrize("committed", [True, False])
async def test_a_call_that_may_attach_waits_first(session: Session, dsn: str, committed: bool) -> None:
    """It needs its blockers only if the transaction that is writing its id is rolled back."""
    with psycopg.connect(dsn) as first, psycopg.connect(dsn, autocommit=True) as second:
        call(first, id="a")
        calling = asyncio.create_task(asyncio.to_thread(call, second, id="a", attach=True, blockers=["nowhere"]))
        waiting = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        pid = second.info.backend_pid
        await until(lambda: calling.done() or session.execute(waiting, [pid]).fetchall(), "the call waits for the id")
        if committed:
            first.commit()
            assert await calling == ("a", True)
        else:
            first.rollback()
            with pytest.raises(errors.ForeignKeyViolation, match="no chain has the id 'nowhere'"):
                await calling
    assert len(session.execute("SELECT FROM queuert.job").fetchall()) == committed


def test_a_burst_is_one_chain_with_the_newest_input(session: Session) -> None:
    first, _ = call(session, input=1, deduplication_key="k", debounce="1 hour", max_delay="2 hours")
    for number in (2, 3):
        again = call(session, input=number, deduplication_key="k", debounce="1 hour", max_delay="2 hours")
        assert again == (first, True)
    read = "SELECT input, status FROM queuert.job WHERE id = %s"
    assert session.execute(read, [first]).fetchall() == [(3, "scheduled")]
    session.execute("UPDATE queuert.job SET attempt = 1 WHERE id = %s", [first])
    second, deduplicated = call(session, input=4, deduplication_key="k", debounce="1 hour")
    assert (second != first, deduplicated) == (True, False)


# --- whose rights -----------------------------------------------------------------------------------------------------


def test_nobody_else_is_called(session: Session) -> None:
    """Tables, functions and operators of the caller's, on the caller's search path, have no part in it."""
    session.execute(
        """
        CREATE TEMPORARY TABLE job (id text); CREATE TEMPORARY TABLE event_log (level text);
        CREATE SCHEMA evil;
        CREATE FUNCTION evil.char_length(text) RETURNS integer LANGUAGE plpgsql AS $$
            BEGIN RAISE 'called'; END $$;
        CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$
            BEGIN RAISE 'called'; END $$;
        SET search_path = evil, pg_temp, queuert, pg_catalog;
        """
    )
    id, _ = call(session)
    session.execute("RESET search_path")
    assert session.execute("SELECT id FROM queuert.job").fetchall() == [(id,)]


def test_another_schema(bare_dsn: str) -> None:
    """It writes to its own schema, and notifies on its own channel."""
    from queuert import migrations

    migrations.upgrade(bare_dsn, schema="other_one")
    with psycopg.connect(bare_dsn, autocommit=True) as session:
        session.execute("LISTEN other_one_jobs")
        [(id,)] = session.execute("SELECT chain_id FROM other_one.start_chain('work')").fetchall()
        assert session.execute("SELECT id, input FROM other_one.job").fetchall() == [(id, None)]
        [notification] = session.notifies(timeout=10, stop_after=1)
        assert (notification.channel, notification.payload) == ("other_one_jobs", "work")


def test_what_the_document_says(session: Session) -> None:
    """Its statements run as they are; its tables name the arguments and the defaults that there are."""
    text = DOCUMENT.read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```sql\n(.*?)```", text, re.DOTALL) if "cron." not in block]
    session.execute("CREATE TABLE orders (number integer); CREATE ROLE shop_web")
    # Roles are the server's: another test may have made this one.
    made = not session.execute("SELECT FROM pg_roles WHERE rolname = 'queuert_producer'").fetchall()
    if made:
        session.execute("CREATE ROLE queuert_producer")
    try:
        for block in blocks:
            session.execute(block.encode())
        session.execute("INSERT INTO orders VALUES (1), (2)")
        trigger = session.execute("SELECT input FROM queuert.job WHERE type = 'bill' ORDER BY input ->> 'order'")
        assert trigger.fetchall() == [({"order": 1},), ({"order": 2},)]
        started = session.execute(next(block for block in blocks if "'bill-' ||" in block).encode()).fetchall()
        assert {row[0] for row in started} == {"bill-1", "bill-2"}
        waiting = session.execute("SELECT status, open_blockers FROM queuert.job WHERE type = 'book'")
        assert waiting.fetchall() == [("blocked", 3)]
    finally:
        session.execute("REVOKE queuert_producer FROM shop_web; DROP OWNED BY shop_web; DROP ROLE shop_web")
        if made:
            session.execute("DROP ROLE queuert_producer")
    # The table has every argument with its type.
    [(signature,)] = session.execute("SELECT pg_get_function_arguments('queuert.start_chain'::regproc)").fetchall()
    arguments = dict(
        re.findall(r"(?:^|, )(\w+) ((?:text|jsonb|boolean|interval|timestamp with time zone|integer)\b)", signature)
    )
    rows = re.findall(r"^\| `(\w+)` \| ([a-z]+)(?:\[\])? \|", text, re.MULTILINE)
    documented = {name: type.replace("timestamptz", "timestamp with time zone") for name, type in rows}
    assert documented == arguments
