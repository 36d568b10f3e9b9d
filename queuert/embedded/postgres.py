"""A Postgres server of this process's own."""

import contextlib
import functools
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from queuert.embedded.binaries import PostgresBinaries, find_postgres
from queuert.embedded.identity import choose_identity
from queuert.embedded.ports import HOST
from queuert.embedded.server import EmbeddedServer
from queuert.embedded.spawn import spawn, wrap
from queuert.embedded.workspace import processes_in

_UNSAFE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
_LOCALES = ("C.UTF-8", "C")
_STATUS_LINE = 7
_KEPT_IN = "queuert.password"
_ASKS_FOR_THE_PASSWORD = "".join(
    f"{kind:7} {databases:11} all {address:12} scram-sha-256\n"
    for databases in ("all", "replication")
    for kind, address in (("local", ""), ("host", "127.0.0.1/32"), ("host", "::1/128"))
)
"""A file `pg_hba.conf`, as `initdb` writes it."""

_ITERATIONS_SINCE = 16


class EmbeddedPostgres(EmbeddedServer):
    """A Postgres server on 127.0.0.1 that ends with this process, and asks everybody for a password.

    The password is random, stands in `dsn()`, and is kept in the data directory, which only its owner can read: other
    users of the machine can reach the port, and would be superusers. Works as root (in a user namespace, else as
    nobody) and as an ordinary user. The binaries are those of `find_postgres`.

    Example:
        >>> with EmbeddedPostgres() as server:  # doctest: +SKIP
        ...     connection = psycopg.connect(server.dsn())
    """

    name = "Postgres"
    stop_signal = signal.SIGINT  # "fast": sessions are ended and a checkpoint is written
    quit_signal = signal.SIGQUIT

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        durable: bool = True,
        settings: Mapping[str, str | int] | None = None,
        port: int | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Describe the server; `start` or a `with` block starts it.

        Args:
            data_dir: where the data live: made when it is absent, kept afterwards. By default a temporary directory.
            durable: when false, commits are not flushed to the disk, and a temporary directory is in shared memory
                when 2 GiB are free there: data survive a crash of the server, and not one of the machine.
            settings: parameters of the server, by their names in `postgresql.conf`; they win over our own.
            port: the TCP port; by default a free one.
            timeout: seconds to wait for a start, and for an orderly stop.
        """
        super().__init__(data_dir, port, timeout, in_memory=not durable)
        self._password: str | None = None
        self.settings: dict[str, str] = {
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "max_connections": "200",
            **({} if durable else _UNSAFE),
            **{name: str(value) for name, value in (settings or {}).items()},
        }

    def dsn(self, dbname: str = "postgres") -> str:
        """The connection string of a database of this server, as a URI. It holds the password: print it nowhere."""
        return f"postgresql://postgres:{self.password}@{HOST}:{self.port}/{quote(dbname, safe='')}"

    @property
    def password(self) -> str:
        """The superuser's password: the one of the data directory, or a new one for a directory that is to be made."""
        if self._password is None:
            try:
                self._password = self._password_file.read_text(encoding="ascii").strip()
            except FileNotFoundError:
                self._password = secrets.token_hex(16)
        return self._password

    def close(self) -> None:
        """Stop the server, and remove its data when they were in a temporary directory."""
        super().close()
        self._password = None

    @property
    def _password_file(self) -> Path:
        """It goes where the data go: into a copy of the directory, and away with it."""
        return self.data_dir / _KEPT_IN

    def _prepare(self) -> None:
        if not (self.data_dir / "PG_VERSION").exists():
            self._make_data_directory()
        self._drop_stale_pid_file()
        if not self._password_file.exists():
            self._close_to_others()

    def _make_data_directory(self) -> None:
        identity, binaries = choose_identity(find_postgres())
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if identity == "nobody":
            self._give_to_nobody()
        password = self._write_password()
        try:
            for locale in _LOCALES:
                if self._runs(_initdb(binaries, self.data_dir, locale, password)):
                    password.replace(self._password_file)
                    return
        finally:
            password.unlink(missing_ok=True)
        raise self._error(f"could not create the data directory {self.data_dir}")

    def _write_password(self) -> Path:
        """A file with the password, beside the data directory, that the server's user alone can read."""
        number, name = tempfile.mkstemp(prefix=f"{self.data_dir.name}.", dir=self.data_dir.parent)
        with os.fdopen(number, "w", encoding="ascii") as file:
            file.write(f"{self.password}\n")
        if choose_identity(find_postgres())[0] == "nobody":
            shutil.chown(name, "nobody")
        return Path(name)

    def _close_to_others(self) -> None:
        """Ask for a password in a directory of an older version, which let in everybody who could reach the port."""
        password = self._write_password()
        try:
            _, binaries = choose_identity(find_postgres())
            command = [str(binaries.postgres), "--single", "-D", str(self.data_dir), "postgres"]
            # The statement goes by the standard input: others can see arguments.
            if not self._runs(command, f"ALTER ROLE postgres PASSWORD '{self.password}'\n"):
                raise self._error(f"could not set a password in {self.data_dir}")
            (self.data_dir / "pg_hba.conf").write_text(_ASKS_FOR_THE_PASSWORD, encoding="ascii")
            password.replace(self._password_file)
        finally:
            password.unlink(missing_ok=True)

    def _runs(self, command: list[str], text: str | None = None) -> bool:
        """Run a program of the server's to its end; whether that was a good one."""
        identity, _ = choose_identity(find_postgres())
        with self.log_file.open("ab") as log:
            done = subprocess.run(
                wrap(command, identity=identity),
                input=b"" if text is None else text.encode(),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(),
                cwd="/",
                check=False,
            )
        return done.returncode == 0

    def _give_to_nobody(self) -> None:
        """Nobody must own the directory, and be able to reach it; only a temporary parent is ours to open."""
        shutil.chown(self.data_dir, "nobody")
        if self._workspace is not None:
            self._workspace.path.chmod(0o711)

    def _drop_stale_pid_file(self) -> None:
        """Remove the file of a server that is gone, where Postgres would take its pid for a living server's.

        It asks only whether some process has the pid. That may be a zombie that nobody waits for, as in containers
        whose first process reaps no orphans, or a stranger that got the same pid. Where the pid is free Postgres
        decides for itself, and better: it looks at the shared memory too.
        """
        pid_file = self.data_dir / "postmaster.pid"
        with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
            pid = int(pid_file.read_text(encoding="utf-8", errors="replace").split()[0])
            if Path(f"/proc/{pid}").exists() and not any(processes_in(self.data_dir)):
                pid_file.unlink()

    def _spawn(self) -> subprocess.Popen[bytes]:
        identity, binaries = choose_identity(find_postgres())
        options = [f"{name}={value}" for name, value in self.settings.items()]
        command = [str(binaries.postgres), "-D", str(self.data_dir), "-p", str(self.port)]
        for option in options:
            command += ["-c", option]
        return spawn(
            command,
            log=self.log_file,
            death_signal=self.stop_signal,
            identity=identity,
            environment=_environment(),
        )

    def _is_ready(self, pid: int) -> bool:
        """Whether this server says so in its pid file, as `pg_ctl` waits for; another may answer on the same port."""
        try:
            lines = (self.data_dir / "postmaster.pid").read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > _STATUS_LINE and lines[0] == str(pid) and lines[_STATUS_LINE].strip() == "ready"


def _initdb(binaries: PostgresBinaries, data_dir: Path, locale: str, password: Path) -> list[str]:
    command = [
        str(binaries.initdb),
        *("-D", str(data_dir), "-U", "postgres", "-E", "UTF8", f"--locale={locale}"),
        *("--auth=scram-sha-256", f"--pwfile={password}", "--no-sync", "--no-instructions"),
    ]
    if _major_version(binaries) >= _ITERATIONS_SINCE:
        # Many iterations protect passwords that can be guessed, and cost each connection some milliseconds.
        command += ["-c", "scram_iterations=1"]
    return command


@functools.cache
def _major_version(binaries: PostgresBinaries) -> int:
    """Of these programs; 0 where they do not tell."""
    done = subprocess.run(
        [str(binaries.postgres), "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    found = re.search(r"\) (\d+)", done.stdout)
    return 0 if found is None else int(found[1])


def _environment() -> dict[str, str]:
    """Ours, without the variables that would point Postgres elsewhere, or at a locale that is not installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}
