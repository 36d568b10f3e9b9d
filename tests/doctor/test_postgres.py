"""The checks of ``queuert doctor`` on Postgres: each with its symptom, and all on a server where all is well."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from queuert import Client, JobType, JobTypes, PostgresState, migrations
from queuert.cli import main
from queuert.cli.exit_codes import Exit
from queuert.embedded import EmbeddedPostgres, EmbeddedServerError
from queuert.notify.in_process import InProcessNotify
from queuert.state.diagnosis import DEFAULT_THRESHOLDS, POSTGRES_CHECKS, Finding, Severity, Thresholds
from queuert.state.postgres.doctor import expected_grants
from queuert.state.postgres.roles import Role, grant_roles
from queuert.workers import WorkerHeartbeat
from tests.conftest import TIMEOUT, StartPostgres, server_is_missing
from tests.faults.pgbouncer import pgbouncer_before
from tests.support.addresses import as_user, password_of

number = JobType("number", input=int, output=int)
JOB_TYPES = JobTypes(number)

CHECKS = {*POSTGRES_CHECKS, "workers", "retention"}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A server of these tests' own, as an operator should have it, with roles of the usual names."""
    settings: dict[str, str | int] = {"max_connections": 60, "max_prepared_transactions": 4}
    with ExitStack() as stack:
        try:
            found = stack.enter_context(EmbeddedPostgres(settings=settings, timeout=TIMEOUT))
        except EmbeddedServerError as error:
            server_is_missing(error)
        migrations.upgrade(found.dsn())
        grant_roles(found.dsn())
        with admin(found) as connection:
            connection.execute(sql.SQL("CREATE ROLE app LOGIN PASSWORD {}").format(password_of(found.dsn())))
            connection.execute("GRANT queuert_worker, queuert_operator, pg_read_all_stats TO app")
        yield found


@pytest.fixture
def app(server: EmbeddedPostgres) -> str:
    """The address of a login with the rights of a worker."""
    with Client.from_url(server.dsn(), JOB_TYPES) as client:
        client.maintain_event_log()  # The server may be of yesterday.
    return as_user(server.dsn(), "app")


def admin(server: EmbeddedPostgres) -> psycopg.Connection[Any]:
    return psycopg.connect(server.dsn(), autocommit=True)


def found(dsn: str, check: str, thresholds: Thresholds = DEFAULT_THRESHOLDS, **options: Any) -> list[Finding]:
    return [one for one in PostgresState(dsn, **options).diagnose(thresholds) if one.check == check]


def problem(dsn: str, check: str, thresholds: Thresholds = DEFAULT_THRESHOLDS, **options: Any) -> Finding:
    """The only finding of a check, which says what is wrong, why, and what to do."""
    [one] = found(dsn, check, thresholds, **options)
    assert one.severity in (Severity.WARNING, Severity.ERROR), one
    assert one.found
    assert one.reason
    assert one.remedy
    return one


def run(dsn: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["doctor", "--url", dsn, *arguments])
    return code, capsys.readouterr().out


def test_all_is_well(app: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(app, capsys)
    assert code == Exit.DONE, out
    code, out = run(app, capsys, "--json")
    items = json.loads(out)["items"]
    assert {item["check"] for item in items} == CHECKS
    assert {item["severity"] for item in items} == {"ok"}


def test_a_problem_is_printed_with_its_reason_and_its_remedy(
    server: EmbeddedPostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = run(server.dsn(), capsys)
    assert code == Exit.WARNINGS
    lines = out.splitlines()
    [at] = [at for at, line in enumerate(lines) if line.startswith("warning  login")]
    assert "superuser" in lines[at]
    assert lines[at + 1].strip().startswith("why: ")
    assert lines[at + 2].strip().startswith("fix: ")
    assert "1 warning" in lines[-1]


@pytest.mark.parametrize("hosts", [r"\1", r"127.0.0.1:1,\1", r"\1,127.0.0.1:1"], ids=["one", "the last", "the first"])
def test_a_login_that_is_refused(server: EmbeddedPostgres, hosts: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where another server of the address cannot be reached at all."""
    dsn = re.sub(r"@([^/]+)", f"@{hosts}", as_user(server.dsn(), "nobody", "Wr0ng"))
    one = problem(dsn, "login")
    assert one.found.startswith("the login is refused: ")
    assert 'failed for user "nobody"' in one.found
    assert len(PostgresState(dsn).diagnose()) == 1
    code, out = run(dsn, capsys)
    assert code == Exit.FAILED
    assert "ALTER ROLE" in out
    assert "Wr0ng" not in out


def test_a_role_that_may_not_log_in(server: EmbeddedPostgres) -> None:
    with admin(server) as connection:
        connection.execute(sql.SQL("CREATE ROLE closed NOLOGIN PASSWORD {}").format(password_of(server.dsn())))
    assert "not permitted to log in" in problem(as_user(server.dsn(), "closed"), "login").found


def test_a_server_out_of_reach_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", "postgresql://nobody@127.0.0.1:1/none"]) == Exit.UNAVAILABLE
    assert "check the address" in capsys.readouterr().err


# --- the schema -------------------------------------------------------------------------------------------------------


def test_a_schema_without_tables(bare_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "migrate up" in problem(bare_dsn, "schema").remedy
    assert run(bare_dsn, capsys)[0] == Exit.FAILED


def test_an_older_schema(bare_dsn: str) -> None:
    migrations.upgrade(bare_dsn, revision="0008")
    one = problem(bare_dsn, "schema")
    assert one.severity is Severity.ERROR
    assert "0008" in one.found


def test_a_schema_of_a_newer_version(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE queuert.alembic_version SET version_num = '9999'")
    assert "upgrade queuert" in problem(dsn, "schema").remedy


def test_a_database_that_was_moved(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE queuert.event_log SET system = '17'")
    assert "migrate adopt" in problem(dsn, "cluster").remedy


def test_roles_that_lack_grants(server: EmbeddedPostgres, app: str) -> None:
    with admin(server) as connection:
        connection.execute("REVOKE UPDATE ON queuert.job FROM queuert_worker")
        try:
            one = problem(app, "roles")
            assert "queuert_worker lacks 1 grants, the first: UPDATE on" in one.found
            assert "migrate roles --apply" in one.remedy
            connection.execute("REVOKE DELETE ON queuert.job FROM queuert_operator")
            lacking = [one.found.split()[0] for one in found(app, "roles")]
            assert sorted(lacking) == ["queuert_operator", "queuert_worker"]
        finally:
            connection.execute("GRANT UPDATE ON queuert.job TO queuert_worker")
            connection.execute("GRANT DELETE ON queuert.job TO queuert_operator")


def test_a_login_that_has_no_role(server: EmbeddedPostgres) -> None:
    with admin(server) as connection:
        connection.execute(sql.SQL("CREATE ROLE stranger LOGIN PASSWORD {}").format(password_of(server.dsn())))
    stranger = as_user(server.dsn(), "stranger")
    one = problem(stranger, "schema")
    assert (one.found, one.reason) == ("its revision cannot be read", "permission denied for schema queuert")
    assert "GRANT queuert_worker TO stranger (or another role)" in one.remedy
    assert "upgrade" not in one.remedy
    with admin(server) as connection:
        connection.execute("GRANT USAGE ON SCHEMA queuert TO stranger")
        connection.execute("GRANT SELECT ON queuert.alembic_version TO stranger")
    one = problem(stranger, "login")
    assert one.severity is Severity.ERROR
    assert re.fullmatch(r"stranger lacks \d+ rights of queuert_\w+, the first: SELECT on .+", one.found)
    assert "GRANT queuert_worker TO stranger" in one.remedy
    [sessions] = found(stranger, "transactions")
    assert sessions.severity is Severity.SKIPPED
    assert "pg_read_all_stats" in sessions.remedy


def test_the_grants_are_read_from_the_script() -> None:
    grants = expected_grants("queuert")
    assert {grant.role for grant in grants} == {f"queuert_{role}" for role in Role}
    assert {grant.kind for grant in grants} >= {"table", "schema", "sequence"}
    assert any(grant.column == "closed" and grant.privilege == "UPDATE" for grant in grants)
    assert any(grant.column is None and grant.privilege == "INSERT" for grant in grants)


def test_days_of_the_event_log(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for (name,) in connection.execute(
            "SELECT relname FROM pg_class WHERE relname ~ '^job_event_[0-9]{8}$'"
        ).fetchall():
            connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier("queuert", name)))
        connection.execute(
            "CREATE TABLE queuert.job_event_20200101 PARTITION OF queuert.job_event"
            " FOR VALUES FROM ('2020-01-01 00:00:00+00') TO ('2020-01-02 00:00:00+00')"
        )
    with Client(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        client.start_chain(number, 1)
    texts = [one.found for one in found(dsn, "event_log")]
    assert len(texts) == 3
    for text in ("no partition for", "the default partition has events", "too old are kept: 2020-01-01"):
        assert any(text in one for one in texts)


def test_autovacuum_off_and_dead_rows(dsn: str) -> None:
    """The shared server has autovacuum off."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE queuert.worker SET (autovacuum_enabled = off)")
        connection.execute("INSERT INTO queuert.limit_start SELECT now(), 'a', 'b' FROM generate_series(1, 200)")
        connection.execute("DELETE FROM queuert.limit_start")
        connection.execute("SELECT pg_stat_force_next_flush()" if connection.info.server_version >= 150000 else "")
    texts = [one.found for one in found(dsn, "vacuum", replace(DEFAULT_THRESHOLDS, dead_rows=100))]
    for text in ("autovacuum is off", "autovacuum is off for table worker", "200 of 200 rows of table limit_start"):
        assert any(text in one for one in texts), texts


# --- the server -------------------------------------------------------------------------------------------------------


def test_what_takes_the_disk(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "INSERT INTO queuert.paused_type (type, reason) SELECT 'type' || n,"
            " (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 1000 + 0 * n))"
            " FROM generate_series(1, 200) AS n"
        )
    [finding] = found(dsn, "size")
    assert re.search(r"^the tables take \d+ MiB: paused_type \d+, ", finding.found)


def test_a_standby(server: EmbeddedPostgres, private_postgres: StartPostgres) -> None:
    """A server in recovery, as a standby is."""
    standby = private_postgres(durable=False)
    dsn = standby.dsn()
    migrations.upgrade(dsn)
    standby.stop()
    (standby.data_dir / "standby.signal").touch()
    standby.start()
    one = problem(dsn, "server")
    assert "standby" in one.found
    assert one.severity is Severity.ERROR


@pytest.mark.parametrize(
    ("setting", "value", "severity"),
    [
        ("synchronous_commit", "off", Severity.ERROR),
        ("idle_session_timeout", "1min", Severity.WARNING),
        ("statement_timeout", "5s", Severity.WARNING),
        ("lock_timeout", "5s", Severity.WARNING),
        ("idle_in_transaction_session_timeout", "5s", Severity.WARNING),
    ],
)
def test_settings_at_risk(server: EmbeddedPostgres, app: str, setting: str, value: str, severity: Severity) -> None:
    given = make_conninfo(app, options=f"-c {setting}={value}")
    one = problem(given, "settings")
    assert one.found.startswith(setting)
    assert setting in one.remedy
    assert one.severity is severity


def test_a_server_that_flushes_nothing(dsn: str) -> None:
    """The shared server does not."""
    texts = [one.found for one in found(dsn, "settings")]
    assert "fsync is off" in texts
    assert "full_page_writes is off" in texts


def test_what_the_command_line_sets_is_mended_there(private_postgres: StartPostgres) -> None:
    """ALTER SYSTEM would change nothing: embedded servers have their settings on the command line."""
    off: dict[str, str | int] = {"autovacuum": "off", "fsync": "off", "full_page_writes": "off"}
    dsn = private_postgres(durable=False, settings=off).dsn()
    migrations.upgrade(dsn)
    remedies = [one.remedy for check in ("settings", "vacuum") for one in found(dsn, check)]
    for name in off:
        text = f"{name} is set on the server's command line, which ALTER SYSTEM does not override: remove it there"
        assert any(one.startswith(text) for one in remedies), remedies


@pytest.mark.parametrize("setting", ["synchronous_commit = off", "lock_timeout = '5s'"])
@pytest.mark.parametrize("place", ["DATABASE postgres", "ROLE app", "ROLE app IN DATABASE postgres"])
def test_the_remedy_reaches_what_is_set(server: EmbeddedPostgres, app: str, setting: str, place: str) -> None:
    """Each place wins over those that are named before it, and over ALTER SYSTEM."""
    name = setting.partition(" ")[0]
    place = place.replace("postgres", f'"{conninfo_to_dict(app)["dbname"]}"')
    with admin(server) as connection:
        connection.execute(f"ALTER {place} SET {setting}".encode())
        try:
            for statement in problem(app, "settings").remedy.split("; "):
                connection.execute(statement.encode())
            assert [one.severity for one in found(app, "settings")] == [Severity.OK]
        finally:
            for one in (place, "ROLE app"):
                connection.execute(f"ALTER {one} RESET {name}".encode())


def test_connections_in_use(server: EmbeddedPostgres, app: str) -> None:
    one = problem(app, "connections", replace(DEFAULT_THRESHOLDS, used_share=0.001))
    assert "of 57 in use" in one.found
    with admin(server) as connection:
        connection.execute("ALTER ROLE app CONNECTION LIMIT 3")
        try:
            [mine] = found(app, "connections", replace(DEFAULT_THRESHOLDS, used_share=0.3))
            assert "of 3 in use (the connection limit of role app)" in mine.found
        finally:
            connection.execute("ALTER ROLE app CONNECTION LIMIT -1")


def test_workers_that_may_open_more_connections_than_there_are(server: EmbeddedPostgres, app: str) -> None:
    store = PostgresState(app).sync_store()
    store.open()
    with closing(store):
        for name in ("one", "two", "three"):
            store.record_heartbeat(worker(name, concurrency=100), 60.0)
        try:
            assert "3 live workers may open 78 connections, and there are 57" in problem(app, "pools").found
        finally:
            for name in ("one", "two", "three"):
                store.remove_worker(name)


def worker(name: str, *, concurrency: int = 1) -> WorkerHeartbeat:
    return WorkerHeartbeat(
        id=name,
        name=name,
        host="here",
        pid=1,
        version="1",
        job_types=("other",),
        concurrency=concurrency,
        running=0,
        uptime=0.0,
    )


def test_an_old_transaction(server: EmbeddedPostgres, app: str) -> None:
    with psycopg.connect(server.dsn(), application_name="backup") as other:
        other.execute("SELECT 1 FROM queuert.job")
        one = problem(app, "transactions", replace(DEFAULT_THRESHOLDS, transaction_seconds=0.0))
        assert "backup, idle in transaction" in one.found
        command = f"SELECT pg_terminate_backend({other.info.backend_pid})"
        assert one.remedy.startswith(f"{command}, which undoes all that it has written")
        [young] = found(app, "transactions")
        assert "the oldest of all sessions, of " in young.found
        assert "(backup, idle in transaction), is " in young.found


def test_an_old_prepared_transaction(server: EmbeddedPostgres, app: str) -> None:
    with admin(server) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute("PREPARE TRANSACTION 'forgotten'")
        try:
            one = problem(app, "transactions", replace(DEFAULT_THRESHOLDS, transaction_seconds=0.0))
            assert one.remedy.startswith("ROLLBACK PREPARED 'forgotten', which undoes all that it has written")
        finally:
            connection.execute("ROLLBACK PREPARED 'forgotten'")


def test_a_slot_that_nobody_uses(server: EmbeddedPostgres, app: str) -> None:
    with admin(server) as connection:
        connection.execute("SELECT pg_create_physical_replication_slot('left_behind', true)")
        try:
            assert "pg_drop_replication_slot('left_behind')" in problem(app, "replication_slots").remedy
        finally:
            connection.execute("SELECT pg_drop_replication_slot('left_behind')")


def test_clocks_that_differ(app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from queuert.state import diagnosis

    class Clock:
        """This machine's, an hour late."""

        time = staticmethod(lambda: __import__("time").time() - 3600.0)

    monkeypatch.setattr(diagnosis, "time", Clock)
    one = problem(app, "clock")
    assert "3,600.0 seconds ahead of" in one.found


def test_a_pooler_in_transaction_mode(server: EmbeddedPostgres) -> None:
    with pgbouncer_before(server.dsn(), sessions=4) as pooler:
        address = pooler.address_in(server.dsn())
        thresholds = replace(DEFAULT_THRESHOLDS, answer_seconds=0.5)
        options = {"prepare_threshold": None}
        one = problem(address, "listener", thresholds, **options)
        assert "listen_dsn" in one.remedy
        [pooled] = found(address, "pooler", thresholds, **options)
        assert "through a pooler" in pooled.found
        [direct] = found(address, "listener", thresholds, listen_dsn=server.dsn(), **options)
        assert direct.severity is Severity.OK
        assert [one.severity for one in found(address, "settings", thresholds, **options)] == [Severity.OK]
        pooler.let_go(server.dsn())


@pytest.mark.parametrize(
    "listen_dsn", [{"user": "nobody_of_that_name"}, {"host": "127.0.0.1", "port": "1"}], ids=["login", "server"]
)
def test_listeners_that_cannot_connect(app: str, listen_dsn: dict[str, str]) -> None:
    one = problem(app, "listener", listen_dsn=make_conninfo(app, **listen_dsn))
    assert one.severity is Severity.WARNING
    assert "poll" in one.reason
    assert one.remedy == "correct listen_dsn"
    assert found(app, "schema")


def test_a_login_without_a_connection_for_its_listener(server: EmbeddedPostgres) -> None:
    # A login of its own, and one examination: the server counts a session for a moment after it was closed.
    with admin(server) as connection:
        connection.execute(
            sql.SQL("CREATE ROLE alone LOGIN IN ROLE queuert_worker CONNECTION LIMIT 1 PASSWORD {}").format(
                password_of(server.dsn())
            )
        )
        try:
            findings = PostgresState(as_user(server.dsn(), "alone")).diagnose(DEFAULT_THRESHOLDS)
        finally:
            connection.execute("DROP ROLE alone")
    [one] = [each for each in findings if each.check == "listener"]
    [schema] = [each for each in findings if each.check == "schema"]
    assert one.severity in (Severity.WARNING, Severity.ERROR)
    assert "too many connections" in one.found
    assert "poll" in one.reason
    assert (schema.severity, schema.remedy) == (Severity.SKIPPED, one.remedy)
    assert one.remedy == "let the login have a connection more for each process"


def test_what_a_pooler_keeps_as_it_is(server: EmbeddedPostgres) -> None:
    """Our own sessions set it for themselves."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("ALTER ROLE CURRENT_USER SET default_transaction_isolation = 'serializable'")
        try:
            assert [one.severity for one in found(server.dsn(), "settings", DEFAULT_THRESHOLDS)] == [Severity.OK]
            with pgbouncer_before(server.dsn(), sessions=4) as pooler:
                address = pooler.address_in(server.dsn())
                one = problem(address, "settings", DEFAULT_THRESHOLDS, prepare_threshold=None)
                pooler.let_go(server.dsn())
        finally:
            connection.execute("ALTER ROLE CURRENT_USER RESET default_transaction_isolation")
    assert one.found == "default_transaction_isolation is serializable"
    assert one.remedy.endswith(" SET default_transaction_isolation = 'read committed'")


# --- what is in it ----------------------------------------------------------------------------------------------------


def test_due_jobs_that_nobody_takes(dsn: str) -> None:
    with Client(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        client.start_chain(number, 1)
        thresholds = replace(DEFAULT_THRESHOLDS, waiting_seconds=0.0)
        assert "no live worker" in problem(dsn, "workers", thresholds).reason
        client.pause_job_types([number])
        assert problem(dsn, "workers", thresholds).remedy == "queuert job-types resume number"


def test_closed_chains_that_are_kept(dsn: str) -> None:
    with Client(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        chain = client.start_chain(number, 1)
        assert found(dsn, "retention")[0].severity is Severity.OK
        client.cancel_chain(chain.id, reason="a test")
    one = problem(dsn, "retention", replace(DEFAULT_THRESHOLDS, kept_days=0.0))
    assert "the oldest is of type number" in one.found
