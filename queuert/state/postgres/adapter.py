"""The state adapter for Postgres."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from queuert.passwords import Password
from queuert.schema_names import split_schema
from queuert.state.adapter import Capability
from queuert.state.diagnosis import DEFAULT_THRESHOLDS, Finding, Thresholds
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.state.postgres.settings import PostgresSettings
from queuert.state.postgres.statements import Statements
from queuert.state.postgres.sync_store import PostgresStore

if TYPE_CHECKING:
    from queuert.notify.adapter import NotifyAdapter


class PostgresState:
    """Jobs in a schema of a Postgres database (14 or newer), shared by clients and workers.

    Args:
        dsn: libpq connection string or URI. It may point at PgBouncer in transaction mode: no statement relies on
            session state; set ``prepare_threshold=None`` for versions before 1.21, and give the direct address as
            ``listen_dsn``.
        schema: the schema in which ``queuert migrate`` created the tables; by default the option ``schema`` of the URI,
            as in ``postgresql://app@db/app?schema=billing``, or ``queuert``.
        listen_dsn: the direct address of the server, for LISTEN and NOTIFY, if ``dsn`` is a pooler.
        prepare_threshold: the number of executions after which a connection prepares a statement; None for never.
        connect_timeout: seconds of one attempt to connect, at least 2. Others follow while a call waits.
        answer_timeout: seconds to wait for any one answer; after that the connection is closed and replaced. In an
            outage a call waits so long for a connection, then it raises a StateUnavailableError. The server ends a
            transaction of the store that is idle for a third of it.
        application_name: shown in ``pg_stat_activity``.
        password: a function that returns the current password, for one that expires, such as a token of AWS or Azure.
            It is called before each connection is made, in any thread, and may block; what it raises is the reason of a
            StateUnavailableError. For ``executor="process"`` it must be picklable: a function of a module.

    Raises:
        ConfigurationError: the connection string or a setting is not valid.

    It connects when a client or worker opens it.

    Example::

        state = PostgresState("postgresql://app@db.internal/app", schema="queuert", application_name="shop")
        print(state)
    """

    capabilities = frozenset(Capability)

    def __init__(
        self,
        dsn: str,
        *,
        schema: str | None = None,
        listen_dsn: str | None = None,
        prepare_threshold: int | None = 1,
        connect_timeout: float = 10.0,
        answer_timeout: float = 30.0,
        application_name: str = "queuert",
        password: Password | None = None,
    ) -> None:
        dsn, schema = split_schema(dsn, schema)
        self._settings = PostgresSettings(
            dsn, schema, prepare_threshold, connect_timeout, answer_timeout, application_name, password
        )
        self._statements = Statements(schema)
        self._listen_dsn = listen_dsn or dsn

    @property
    def schema(self) -> str:
        """The schema of the tables."""
        return self._settings.schema

    def __repr__(self) -> str:
        return f"PostgresState(schema={self.schema!r})"

    def sync_store(self, *, max_connections: int = 4, answer_timeout: float | None = None) -> PostgresStore:
        """Return a new, unopened sync store."""
        longest = self._settings.answer_timeout
        timeout = min(longest, answer_timeout or longest)
        # libpq waits at least two seconds for a connection.
        connect = min(self._settings.connect_timeout, max(2.0, timeout))
        settings = replace(self._settings, answer_timeout=timeout, connect_timeout=connect)
        return PostgresStore(settings, self._statements, max_connections)

    def async_store(self, *, max_connections: int = 4) -> AsyncPostgresStore:
        """Return a new, unopened async store."""
        return AsyncPostgresStore(self._settings, self._statements, max_connections)

    def diagnose(self, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> list[Finding]:
        """Check the server, the schema and what is in it, as ``queuert doctor`` does. It changes nothing.

        Raises:
            StateUnavailableError: the server cannot be reached.
        """
        from queuert.state.postgres.doctor import diagnose

        return diagnose(self._settings, self._statements, self._listen_dsn, thresholds)

    def default_notify(self) -> NotifyAdapter:
        """Return an adapter that uses LISTEN and NOTIFY on the same database."""
        from queuert.notify.postgres import PostgresNotify

        return PostgresNotify(self._listen_dsn, schema=self.schema, password=self._settings.password)
