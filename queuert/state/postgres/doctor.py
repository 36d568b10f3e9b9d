"""The checks of ``queuert doctor`` on Postgres. One that the login may not make does not stop the others."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import psycopg
from psycopg import sql as sql_text

from queuert import migrations
from queuert.errors import MigrationError, QueuertError, RightMissingError, StateUnavailableError
from queuert.state.diagnosis import (
    Finding,
    Severity,
    Thresholds,
    clock_finding,
    connection_findings,
    error,
    ok,
    skipped,
    store_findings,
    warning,
)
from queuert.state.postgres.errors import BROKEN, mapped
from queuert.state.postgres.event_log import moved_text
from queuert.state.postgres.roles import Role, role_names, roles_sql
from queuert.state.postgres.settings import REQUIRED_REVISION, PostgresSettings, connection_warnings
from queuert.state.postgres.statements import Statements
from queuert.state.postgres.sync_statements import fetch
from queuert.state.postgres.sync_store import PostgresStore
from queuert.store_addresses import refuses_login

OLDEST_SERVER = 140_000

_SEE_ALL = "run it as a member of pg_read_all_stats: GRANT pg_read_all_stats TO {role}"
_GRANT_AGAIN = "as the schema's owner: queuert migrate roles --apply"


class ServerFacts(NamedTuple):
    """The row of ``doctor_server``. Limits of -1 are none."""

    version: int
    standby: bool
    role: str
    superuser: bool
    sees_all: bool
    usable: int
    """Connections that a login may have, of all of the server."""
    used: int
    of_role: int
    """How many connections the role may have."""
    used_by_role: int
    of_database: int
    """How many connections the database may have."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What the checks look at.

    Attributes:
        connection: in autocommit, with the settings of the login and none of ours.
        thresholds: what is too much.
        listen_dsn: where notifications are listened to.
        server: what the server says of itself and of who is logged in.
    """

    connection: psycopg.Connection[Any]
    statements: Statements
    settings: PostgresSettings
    thresholds: Thresholds
    listen_dsn: str
    server: ServerFacts

    def rows(self, statement: bytes, values: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        return fetch(self.connection, statement, values)


Check = Callable[[Examination], Iterable[Finding]]

_A_CONNECTION_MORE = "let the login have a connection more for each process"


def diagnose(
    settings: PostgresSettings, statements: Statements, listen_dsn: str, thresholds: Thresholds
) -> list[Finding]:
    """Make all checks; none but that of the login if the server refuses it.

    Raises:
        StateUnavailableError: the server cannot be reached.
    """
    try:
        opened = psycopg.connect(settings.current_dsn(), **settings.connection_arguments())
    except BROKEN as failure:
        unavailable = mapped(failure, settings.schema)
        refusals = [line for line in str(failure).splitlines() if refuses_login(line)]
        if not refusals:
            raise unavailable from failure
        return [_refused(refusals[0])]
    try:
        with opened as connection:
            [row] = fetch(connection, statements.doctor_server)
            one = Examination(connection, statements, settings, thresholds, listen_dsn, ServerFacts(*row))
            findings = list(_made(one, SERVER_CHECKS))
            try:
                schema = list(_schema_revision(one))
                findings += schema
                if all(finding.severity is not Severity.ERROR for finding in schema):
                    findings += _made(one, SCHEMA_CHECKS)
                    findings += _on_store(one)
            except StateUnavailableError as failure:
                connection.execute("SELECT 1")  # The server is there, and takes no more connections.
                findings.append(skipped("schema", str(failure), _A_CONNECTION_MORE))
            return findings
    except BROKEN as failure:
        raise mapped(failure, settings.schema) from failure


def _refused(answer: str) -> Finding:
    reason = "no job runs, since the server refuses what workers and clients do"
    remedy = "correct the user and the password in the address, or ALTER ROLE name LOGIN PASSWORD 'password'"
    return error("login", f"the login is refused: {answer.strip()}", reason, remedy)


def _made(one: Examination, checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    for name, check in checks:
        try:
            yield from check(one)
        except BROKEN:
            raise
        except psycopg.Error as failure:
            yield skipped(
                name, str(mapped(failure, one.settings.schema)), f"run it as a login that may: {_GRANT_AGAIN}"
            )


def _on_store(one: Examination) -> Iterator[Finding]:
    store = PostgresStore(one.settings, one.statements, 1)
    try:
        store.open()
        yield from store_findings(store, one.thresholds)
    except StateUnavailableError:
        raise
    except QueuertError as failure:
        yield skipped("workers", str(failure), f"run it as a login that may: {_GRANT_AGAIN}")
    finally:
        store.close()


# --- the server -------------------------------------------------------------------------------------------------------


def _server(one: Examination) -> Iterator[Finding]:
    version = one.server.version
    found = f"Postgres {version // 10_000}.{version % 10_000}"
    if version < OLDEST_SERVER:
        yield error("server", found, "Queuert needs Postgres 14 or newer", "upgrade the server")
    elif one.server.standby:
        remedy = "use the primary's address: name all servers and target_session_attrs=read-write"
        yield error("server", f"{found}, a standby", "a standby takes no writes, so no job runs", remedy)
    else:
        yield ok("server", found)


def _connection(one: Examination) -> Iterator[Finding]:
    risks = connection_warnings(one.connection.pgconn)
    yield from connection_findings(risks, secure="local, or encrypted with a verified server")


def _is_pooled(one: Examination) -> bool:
    [(pid,)] = one.connection.execute("SELECT pg_backend_pid()").fetchall()
    return bool(pid != one.connection.info.backend_pid)


def _pooler(one: Examination) -> Iterator[Finding]:
    """A pooler gives out a number of its own in place of the session's."""
    if not _is_pooled(one):
        yield ok("pooler", "connected to Postgres itself")
        return
    yield ok("pooler", "connected through a pooler; for PgBouncer before 1.21 set prepare_threshold=none")


_POLLED = "workers and waiting clients poll, and begin later"


def _listener(one: Examination) -> Iterator[Finding]:
    """Whether a notification that the store sends comes to who listens."""
    channel, text = f"{one.settings.schema}_doctor", secrets.token_hex(8)
    arguments = one.settings.connection_arguments()
    try:
        opened = psycopg.connect(one.settings.current_dsn(one.listen_dsn), **arguments)
    except BROKEN as failure:
        same = one.listen_dsn == one.settings.dsn
        remedy = _A_CONNECTION_MORE if same else "correct listen_dsn"
        yield warning("listener", str(mapped(failure, one.settings.schema)), _POLLED, remedy)
        return
    with opened as listening:
        listening.execute(sql_text.SQL("LISTEN {}").format(sql_text.Identifier(channel)))
        one.connection.execute("SELECT pg_notify(%s, %s)", [channel, text])
        # To its end: while it is suspended it holds the connection.
        found = list(listening.notifies(timeout=one.thresholds.answer_seconds, stop_after=1))
        arrived = any(notification.payload == text for notification in found)
        # Behind a pooler in transaction mode this may reach another session, and one then listens to what nobody sends.
        listening.execute("UNLISTEN *")
    if arrived:
        yield ok("listener", "a notification arrived")
        return
    yield warning(
        "listener",
        f"a notification did not arrive within {one.thresholds.answer_seconds:g} seconds",
        f"a pooler in transaction mode does not pass LISTEN on: {_POLLED}",
        "PostgresState(dsn, listen_dsn='the address of Postgres itself'), or pool_mode=session for listeners",
    )


def _clock(one: Examination) -> Iterator[Finding]:
    yield clock_finding(lambda: float(one.rows(one.statements.doctor_clock)[0][0]), one.thresholds)


_SET_IN_OUR_SESSIONS = {"default_transaction_isolation": "read committed", "array_nulls": "on"}
"""What our connections set for themselves, except in the sessions of a pooler, which others use as well."""

_NAMES = (
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "track_counts",
    "autovacuum",
    "statement_timeout",
    "idle_session_timeout",
    "transaction_timeout",
    "idle_in_transaction_session_timeout",
    "lock_timeout",
    *_SET_IN_OUR_SESSIONS,
)

_MUST_BE_ON = {
    "fsync": "a crash of the machine may lose or corrupt everything",
    "full_page_writes": "a crash of the machine may corrupt pages that were being written",
}


class Setting(NamedTuple):
    """A setting as this login has it, and where it is set, in the words of ``pg_settings.source``."""

    name: str
    value: str
    source: str


def _read_settings(one: Examination, names: Sequence[str]) -> dict[str, Setting]:
    rows = one.rows(one.statements.doctor_settings, {"names": list(names)})
    return {setting.name: setting for setting in map(Setting._make, rows)}


def _settings(one: Examination) -> Iterator[Finding]:
    found = _read_settings(one, _NAMES)
    findings = [*_durability(one, found), *_timeouts(one, found), *_sessions(one, found)]
    yield from findings or [ok("settings", "commits are flushed, and no timeout ends what workers need")]


def _durability(one: Examination, found: dict[str, Setting]) -> Iterator[Finding]:
    for name, reason in _MUST_BE_ON.items():
        if found[name].value == "off":
            yield error("settings", f"{name} is off", reason, _turn_on(one, found[name]))
    if found["synchronous_commit"].value == "off":
        reason = "a crash of the server loses jobs that were acknowledged within the last moments"
        yield error("settings", "synchronous_commit is off", reason, _turn_on(one, found["synchronous_commit"]))


def _timeouts(one: Examination, found: dict[str, Setting]) -> Iterator[Finding]:
    idle = found["idle_session_timeout"]
    if idle.value != "0":
        yield warning(
            "settings",
            f"idle_session_timeout is {int(idle.value):,} ms",
            "the server ends idle connections of pools and listeners, which then connect again and look at everything",
            _set_for_role(one, idle, "0"),
        )
    longest = round(one.settings.answer_timeout * 1000)
    for name in ("statement_timeout", "transaction_timeout", "idle_in_transaction_session_timeout", "lock_timeout"):
        # Servers before 17 have no transaction_timeout.
        setting = found.get(name)
        if setting is not None and 0 < int(setting.value) < longest:
            yield warning(
                "settings",
                f"{name} is {int(setting.value):,} ms, less than answer_timeout ({longest:,} ms)",
                "the server ends statements or transactions of handlers and workers that Queuert would still wait for",
                _set_for_role(one, setting, f"'{one.settings.answer_timeout:g}s'"),
            )


def _sessions(one: Examination, found: dict[str, Setting]) -> Iterator[Finding]:
    wrong = [found[name] for name, value in _SET_IN_OUR_SESSIONS.items() if found[name].value != value]
    if wrong and _is_pooled(one):
        for setting in wrong:
            yield warning(
                "settings",
                f"{setting.name} is {setting.value}",
                "calls fail and are repeated: Queuert sets it in sessions of its own, but not in those of a pooler",
                _set_for_role(one, setting, f"'{_SET_IN_OUR_SESSIONS[setting.name]}'"),
            )


def _turn_on(one: Examination, setting: Setting) -> str:
    """What switches a setting on for all: where it is set now may win over ALTER SYSTEM."""
    places = _places(one, setting.name)
    return places.get(setting.source, f"ALTER SYSTEM SET {setting.name} = on; SELECT pg_reload_conf()")


def _set_for_role(one: Examination, setting: Setting, value: str) -> str:
    """What gives the role of this login another value: where it is set now may win over ALTER ROLE."""
    if setting.source in ("database user", "client"):
        return _places(one, setting.name)[setting.source]
    return f"ALTER ROLE {_quoted(one, one.server.role)} SET {setting.name} = {value}"


def _places(one: Examination, name: str) -> dict[str, str]:
    """How to take a setting away from each of the places that win over ALTER SYSTEM, in their order."""
    role, database = _quoted(one, one.server.role), _quoted(one, one.connection.info.dbname)
    return {
        "command line": f"{name} is set on the server's command line, which ALTER SYSTEM does not override: remove it "
        "there, and restart the server",
        "global": f"ALTER ROLE ALL RESET {name}",
        "database": f"ALTER DATABASE {database} RESET {name}",
        "user": f"ALTER ROLE {role} RESET {name}",
        "database user": f"ALTER ROLE {role} IN DATABASE {database} RESET {name}",
        "client": f"{name} is set by the options of the address, or by PGOPTIONS, which win over the server: remove it "
        "there",
    }


def _quoted(one: Examination, name: str) -> str:
    return sql_text.Identifier(name).as_string(one.connection)


def _connections(one: Examination) -> Iterator[Finding]:
    server = one.server
    findings = []
    for limit, number, what in (
        (server.usable, server.used, "max_connections of the server"),
        (server.of_role, server.used_by_role, f"the connection limit of role {server.role}"),
        (server.of_database, server.used, "the connection limit of the database"),
    ):
        if 0 <= limit < number / one.thresholds.used_share:
            reason = "a worker or client that needs one more connection is refused"
            remedy = "lower the concurrency of workers, put a pooler in between, or raise the limit"
            findings.append(warning("connections", f"{number} of {limit} in use ({what})", reason, remedy))
    yield from findings or [ok("connections", f"{server.used} of {server.usable} in use")]


def _transactions(one: Examination) -> Iterator[Finding]:
    role = one.server.role
    if not one.server.sees_all:
        yield skipped("transactions", f"role {role} sees only its own sessions", _SEE_ALL.format(role=role))
        return
    none = (None, None, None, None, None, 0.0)
    [(kind, name, user, application, state, age)] = one.rows(one.statements.doctor_transactions) or [none]
    if kind is None:
        yield ok("transactions", "no other session has one open, and none is prepared")
        return
    described = f"of {user} ({application or 'no application name'}, {state})"
    if age < one.thresholds.transaction_seconds:
        yield ok("transactions", f"the oldest of all sessions, {described}, is {max(0.0, age):,.0f} seconds old")
        return
    reason = "vacuum keeps all rows that were changed since, claims slow down, and readers of the event log wait"
    command = f"SELECT pg_terminate_backend({name})" if kind == "session" else f"ROLLBACK PREPARED '{name}'"
    remedy = f"{command}, which undoes all that it has written: see first that it is no backup that somebody waits for"
    yield warning("transactions", f"one {described} is {age:,.0f} seconds old", reason, remedy)


def _slots(one: Examination) -> Iterator[Finding]:
    names = [name for (name,) in one.rows(one.statements.doctor_slots)]
    if not names:
        yield ok("replication_slots", "none is unused")
    for name in names:
        yield warning(
            "replication_slots",
            f"nobody uses slot {name}",
            "it keeps the write-ahead log, until the disk is full, and may keep dead rows from vacuum",
            f"start its consumer, or SELECT pg_drop_replication_slot('{name}')",
        )


# --- the schema -------------------------------------------------------------------------------------------------------


def _schema_revision(one: Examination) -> Iterator[Finding]:
    schema = one.settings.schema
    upgrade = f"queuert migrate up --schema {schema}"
    try:
        status = migrations.status(one.settings.current_dsn(), schema=schema)
    except StateUnavailableError:
        raise
    except RightMissingError as failure:
        yield error("schema", "its revision cannot be read", failure.reason, _grant_a_role(one))
        return
    except (MigrationError, psycopg.Error) as failure:
        yield error("schema", "its revision cannot be read", str(failure), "upgrade queuert")
        return
    if status.current is None:
        reason = f"schema {schema} has no tables of Queuert, so no job can be stored"
        yield error("schema", "no tables", reason, upgrade)
    elif status.current < REQUIRED_REVISION:
        reason = f"this version needs revision {REQUIRED_REVISION} or newer, and refuses to open the schema"
        yield error("schema", f"revision {status.current}", reason, upgrade)
    elif status.pending:
        reason = f"these revisions are pending: {', '.join(status.pending)}"
        yield warning("schema", f"revision {status.current}", reason, upgrade)
    else:
        yield ok("schema", f"revision {status.current}, the newest")


def _moved(one: Examination) -> Iterator[Finding]:
    for owner, system in one.rows(one.statements.log_owner):
        if owner == system:
            yield ok("cluster", "the transaction numbers in the event log are those of this cluster")
        else:
            reason = moved_text(owner, system).partition(": ")[0]
            remedy = "stop the workers, then queuert migrate adopt"
            yield error("cluster", "the database was moved here from another cluster", reason, remedy)


_GRANT = re.compile(r"GRANT\s+(.+?)\s+ON\s+(?:(SCHEMA|SEQUENCE|FUNCTION)\s+)?(.+?)\s+TO\s+(.+?);", re.DOTALL)
_PRIVILEGE = re.compile(r"([A-Z]+)\s*(?:\(([^)]*)\))?")


@dataclass(frozen=True, slots=True)
class Grant:
    """One privilege that a role should have: on a table, or on one of its columns, or on something else."""

    role: str
    kind: str
    object: str
    privilege: str
    column: str | None

    def __str__(self) -> str:
        column = "" if self.column is None else f" ({self.column})"
        return f"{self.privilege}{column} on {self.object}"


def expected_grants(schema: str) -> list[Grant]:
    """What ``roles.sql`` grants, with the roles' usual names."""
    text = re.sub(r"--.*", "", roles_sql(schema))
    found = []
    for privileges, kind, objects, roles in _GRANT.findall(text):
        # Commas inside the parentheses of a function separate types.
        for object in re.split(r",\s*(?![^(]*\))", objects):
            for privilege, columns in _PRIVILEGE.findall(privileges):
                for column in columns.split(",") if columns else [None]:
                    name = None if column is None else column.strip()
                    found += [
                        Grant(role.strip().strip('"'), (kind or "table").lower(), object.strip(), privilege, name)
                        for role in roles.split(",")
                    ]
    return found


def missing_grants(one: Examination, wanted: Sequence[Grant]) -> list[Grant]:
    """Those of the grants that the database does not have; roles that do not exist are left out."""
    values = {
        "roles": [grant.role for grant in wanted],
        "kinds": [grant.kind for grant in wanted],
        "objects": [grant.object for grant in wanted],
        "privileges": [grant.privilege for grant in wanted],
        "fields": [grant.column for grant in wanted],
    }
    return [Grant(*row) for row in one.rows(one.statements.doctor_missing_grants, values)]


def _login(one: Examination) -> Iterator[Finding]:
    """What the login may: all that one of the roles may, and no more than it must."""
    role = one.server.role
    if one.server.superuser:
        reason = "what a handler or a stolen password can do, it can do to the whole server"
        remedy = (
            f"use a login that is no superuser, and grant it what it needs: GRANT {one.settings.schema}_worker TO ..."
        )
        yield warning("login", f"{role} is a superuser", reason, remedy)
        return
    schema, names = one.settings.schema, role_names(one.settings.schema)
    expected = expected_grants(schema)
    wanted = {kind: [replace(grant, role=role) for grant in expected if grant.role == names[kind]] for kind in Role}
    lacking = {kind: missing_grants(one, grants) for kind, grants in wanted.items()}
    fits = [kind for kind, missing in lacking.items() if not missing]
    if fits:
        yield ok("login", f"{role} may do what these roles may: {', '.join(fits)}")
        return
    # Producers have so few rights that everybody would be near to them.
    nearest = min(set(Role) - {Role.PRODUCER}, key=lambda kind: (len(lacking[kind]) / len(wanted[kind]), kind))
    found = f"{role} lacks {len(lacking[nearest])} rights of {names[nearest]}, the first: {lacking[nearest][0]}"
    reason = f"it lacks rights of each of the roles {', '.join(Role)}"
    yield error("login", found, reason, _grant_a_role(one))


def _grant_a_role(one: Examination) -> str:
    """What a login needs that lacks rights, which usually has no role yet."""
    granted = f"GRANT {one.settings.schema}_worker TO {one.server.role} (or another role)"
    return f"as the schema's owner: {granted}; if it has one, or the roles do not exist: queuert migrate roles --apply"


def _roles(one: Examination) -> Iterator[Finding]:
    schema = one.settings.schema
    known = [name for (name,) in one.rows(one.statements.doctor_roles, {"roles": list(role_names(schema).values())})]
    if not known:
        yield ok("roles", f"no role has one of the usual names ({schema}_worker and so on)")
        return
    missing = missing_grants(one, expected_grants(schema))
    if not missing:
        yield ok("roles", f"{', '.join(known)} have all grants of this version")
    for role in dict.fromkeys(grant.role for grant in missing):
        first = next(grant for grant in missing if grant.role == role)
        number = sum(grant.role == role for grant in missing)
        found = f"{role} lacks {number} grants, the first: {first}"
        yield error("roles", found, "logins with this role get errors when they need it", _GRANT_AGAIN)


def _pools(one: Examination) -> Iterator[Finding]:
    [(workers, wanted)] = one.rows(one.statements.doctor_pools)
    server = one.server
    usable = min(limit for limit in (server.usable, server.of_role, server.of_database) if limit >= 0)
    if wanted <= usable:
        yield ok("pools", f"{workers} live workers may open {wanted} of {usable} connections")
        return
    yield warning(
        "pools",
        f"{workers} live workers may open {wanted} connections, and there are {usable}",
        "under load, workers and clients are refused connections; plain handlers may open more",
        "lower the concurrency of workers, put a pooler in between, or raise max_connections",
    )


def _event_log(one: Examination) -> Iterator[Finding]:
    rows = one.rows(one.statements.list_partitions)
    parts = [(name, day, filled, old) for name, day, _, filled, old, missing in rows if not missing]
    findings = []
    remedy = "queuert events maintain, daily, as the owner of the tables"
    if rows and any(missing for *_, missing in rows):
        days = ", ".join(str(day) for _, day, *_, missing in rows if missing)
        reason = "events of a day without a partition go to the default partition, which is slower to read and to empty"
        findings.append(warning("event_log", f"no partition for {days}", reason, remedy))
    if any(day is None and filled for _, day, filled, _ in parts):
        reason = "its events are deleted row by row, when they are old"
        findings.append(warning("event_log", "the default partition has events", reason, remedy))
    old = [str(day) for _, day, _, is_old in parts if is_old]
    if old:
        reason = "retention of the event log is not applied, and the log grows"
        findings.append(warning("event_log", f"days that are too old are kept: {', '.join(old)}", reason, remedy))
    yield from findings or [ok("event_log", f"it has partitions for {len(parts) - 1} days, the next ones among them")]


def _vacuum(one: Examination) -> Iterator[Finding]:
    settings = _read_settings(one, ["autovacuum", "track_counts"])
    reason = "dead rows stay, tables and indexes grow, and claims slow down"
    findings = [
        error("vacuum", f"{name} is off", reason, _turn_on(one, setting))
        for name, setting in sorted(settings.items())
        if setting.value == "off"
    ]
    schema = one.settings.schema
    for table, live, dead, off in one.rows(one.statements.doctor_tables, {"schema": schema}):
        if off:
            remedy = f"ALTER TABLE {schema}.{table} RESET (autovacuum_enabled)"
            findings.append(warning("vacuum", f"autovacuum is off for table {table}", reason, remedy))
        if dead > one.thresholds.dead_rows and dead > (live + dead) / 5:
            found = f"{dead:,} of {live + dead:,} rows of table {table} are dead"
            remedy = f"look at the oldest transaction, then VACUUM (VERBOSE) {schema}.{table}"
            findings.append(warning("vacuum", found, reason, remedy))
    yield from findings or [ok("vacuum", "autovacuum is on, and tables have few dead rows")]


def _size(one: Examination) -> Iterator[Finding]:
    rows = one.rows(one.statements.doctor_sizes, {"schema": one.settings.schema})
    largest = ", ".join(f"{table} {size / 2**20:,.0f}" for table, size in rows[:3])
    yield ok("size", f"the tables take {sum(size for _, size in rows) / 2**20:,.0f} MiB: {largest}")


SERVER_CHECKS: tuple[tuple[str, Check], ...] = (
    ("server", _server),
    ("connection", _connection),
    ("pooler", _pooler),
    ("clock", _clock),
    ("settings", _settings),
    ("connections", _connections),
    ("transactions", _transactions),
    ("replication_slots", _slots),
    ("listener", _listener),
)

SCHEMA_CHECKS: tuple[tuple[str, Check], ...] = (
    ("cluster", _moved),
    ("login", _login),
    ("roles", _roles),
    ("pools", _pools),
    ("event_log", _event_log),
    ("vacuum", _vacuum),
    ("size", _size),
)
