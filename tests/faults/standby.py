"""A primary and its streaming standby, and the failover from the one to the other."""

from __future__ import annotations

import os
import subprocess

import psycopg

from queuert.embedded import EmbeddedPostgres
from queuert.embedded.binaries import find_postgres
from queuert.embedded.identity import choose_identity
from queuert.embedded.ports import HOST
from queuert.embedded.server import wait_until
from queuert.embedded.spawn import wrap
from queuert.testing.fault_proxy import FaultProxy

_TIMEOUT = 20.0


class Standby(EmbeddedPostgres):
    """A hot standby, copied from another server, which it follows."""

    def __init__(self, host: str, port: int, password: str) -> None:
        super().__init__(settings={"fsync": "off"})
        self._primary = (host, port, password)

    def _make_data_directory(self) -> None:
        identity, binaries = choose_identity(find_postgres())
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if identity == "nobody":
            self._give_to_nobody()
        host, port, password = self._primary
        command = [str(binaries.bindir / "pg_basebackup"), "-h", host, "-p", str(port), "-U", "postgres"]
        command += ["-D", str(self.data_dir), "-R", "-X", "stream", "-c", "fast", "--no-sync"]
        wrapped, environment = wrap(command, identity=identity), {**os.environ, "PGPASSWORD": password}
        done = subprocess.run(wrapped, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        self._password = password  # The copied files contain it.


class Pair:
    """A primary, and a standby that follows it through a proxy. Clients use one address for both."""

    def __init__(self) -> None:
        self.primary = EmbeddedPostgres(settings={"fsync": "off", "wal_sender_timeout": 0})
        self.proxy = FaultProxy(HOST, self.primary.port)
        self.standby = Standby(HOST, 0, "")
        self.gate = FaultProxy(HOST, self.standby.port)

    def start(self) -> None:
        """Start both; the standby follows when this returns."""
        self.primary.start()
        self.proxy = FaultProxy(HOST, self.primary.port).start()
        self.standby = Standby(HOST, self.proxy.port, self.primary.password)
        self.standby.start()
        self.gate = FaultProxy(HOST, self.standby.port).start()
        self.caught_up()

    def close(self) -> None:
        """End both."""
        self.proxy.close()
        self.gate.close()
        self.standby.close()
        self.primary.close()

    @property
    def address(self) -> str:
        """Return the address of both servers, for the one that accepts writes."""
        return self._address(self.standby.port)

    @property
    def address_by_gate(self) -> str:
        """Return the same, with the standby behind a proxy."""
        return self._address(self.gate.port)

    def _address(self, port: int) -> str:
        hosts = f"{HOST}:{self.primary.port},{HOST}:{port}"
        return f"postgresql://postgres:{self.primary.password}@{hosts}/postgres?target_session_attrs=read-write"

    def caught_up(self) -> None:
        """Wait until the standby has received all that the primary has written so far."""
        with psycopg.connect(self.primary.dsn(), autocommit=True) as primary:
            [position] = primary.execute("select pg_current_wal_lsn()::text").fetchone() or [None]
        with psycopg.connect(self.standby.dsn(), autocommit=True) as standby:

            def has_it() -> bool:
                row = standby.execute("select pg_last_wal_replay_lsn() >= %s::pg_lsn", [position]).fetchone()
                return row is not None and bool(row[0])

            assert wait_until(has_it, _TIMEOUT), "the standby does not follow"

    def wait_for_standby(self) -> None:
        """From now on the primary acknowledges only writes that the standby has flushed."""
        with psycopg.connect(self.primary.dsn(), autocommit=True) as primary:
            primary.execute("alter system set synchronous_standby_names = '*'")
            primary.execute("select pg_reload_conf()")

            def is_synchronous() -> bool:
                row = primary.execute("select count(*) from pg_stat_replication where sync_state = 'sync'").fetchone()
                return row is not None and row[0] == 1

            assert wait_until(is_synchronous, _TIMEOUT), "the standby is not synchronous"

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby with what it has received."""
        self.primary.kill()
        self.proxy.close()
        with psycopg.connect(self.standby.dsn(), autocommit=True) as standby:
            standby.execute("select pg_promote()")
