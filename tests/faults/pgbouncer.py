"""PgBouncer in transaction mode before a test's database: the real program, if it is installed.

No Python package contains it, so these tests are skipped if it is not installed, even if servers are required.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from queuert.embedded.ports import HOST, ReservedPort
from queuert.embedded.server import wait_until
from queuert.embedded.spawn import Identity, spawn, wrap

BINARY = "QUEUERT_PGBOUNCER_BIN"
"""The environment variable with the path of the program."""

WHERE = f"no PgBouncer: install it with the system's package manager, or name its program in {BINARY}"
_TIMEOUT = 20.0
_IDENTITIES: tuple[Identity, ...] = ("namespace", "nobody")

_SETTINGS = """
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
admin_users = postgres
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 500
; Each transaction on another connection than the one before, as far as there are several.
server_round_robin = 1
"""


def find_pgbouncer() -> str | None:
    """Return the path of the program: that of the environment variable, else the one on the PATH."""
    return os.environ.get(BINARY) or shutil.which("pgbouncer")


def _identity(binary: str) -> Identity:
    """Return the user that runs it: it refuses to run as root."""
    if os.geteuid() != 0:
        return "self"
    for identity in _IDENTITIES:
        command = wrap([binary, "--version"], identity=identity)
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return identity
    pytest.skip("PgBouncer refuses to run as root, and root cannot run it as anybody else here")


class PgBouncer:
    """PgBouncer in transaction mode, with so many sessions on each database of a server."""

    def __init__(self, binary: str, server: str, *, sessions: int) -> None:
        # This skips the test if the program is missing: nothing needs to be cleaned up yet.
        self._runs_as: Identity = _identity(binary)
        target = urlsplit(server)
        self._reserved = ReservedPort()
        self.port = self._reserved.number
        self._sessions = sessions
        self._server = (target.hostname, target.port)
        self._password = target.password or ""
        self._binary = binary
        self._place = tempfile.TemporaryDirectory(prefix="queuert-pgbouncer-")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program, and wait until it answers."""
        place = Path(self._place.name)
        place.chmod(0o755)
        command, log = [self._binary, str(self._configure(place))], place / "log"
        self._process = spawn(command, log=log, death_signal=signal.SIGTERM, identity=self._runs_as)
        assert wait_until(self._answers, _TIMEOUT), f"PgBouncer does not answer: {log.read_text()}"

    def kill(self) -> None:
        """Kill the program as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Kill the program, and start it again on the same port."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._reserved.close()
        self._place.cleanup()

    def _configure(self, place: Path) -> Path:
        users, settings = place / "users", place / "settings.ini"
        users.write_text(f'"postgres" "{self._password}"\n')
        host, port = self._server
        settings.write_text(
            _SETTINGS.format(host=host, port=port, own_port=self.port, users=users, sessions=self._sessions)
        )
        return settings

    def _answers(self) -> bool:
        try:
            self._admin().close()
        except psycopg.OperationalError:
            return False
        return True

    def _admin(self) -> psycopg.Connection[tuple[object, ...]]:
        """Connect to its console, which supports only simple queries."""
        return psycopg.connect(
            host=HOST,
            port=self.port,
            user="postgres",
            password=self._password,
            dbname="pgbouncer",
            autocommit=True,
            connect_timeout=5,
        )

    def address_in(self, dsn: str) -> str:
        """Return a database's address through PgBouncer."""
        parts = urlsplit(dsn)
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}{HOST}:{self.port}").geturl()

    def let_go(self, dsn: str) -> None:
        """Close all connections to a database that is about to be dropped."""
        name = urlsplit(dsn).path.removeprefix("/")
        with contextlib.closing(self._admin()) as admin, contextlib.suppress(psycopg.DatabaseError):
            admin.execute(sql.SQL("KILL {}").format(sql.Identifier(name)), prepare=False)  # Unknown if never used.


@contextlib.contextmanager
def pgbouncer_before(server: str, *, sessions: int) -> Iterator[PgBouncer]:
    """Yield PgBouncer before a server; skip the test if the program is missing."""
    binary = find_pgbouncer()
    if binary is None:
        pytest.skip(WHERE)
    with PgBouncer(binary, server, sessions=sessions) as pooler:
        yield pooler
