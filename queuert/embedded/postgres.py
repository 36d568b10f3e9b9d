"""A Postgres server of this process's own."""

import contextlib
import os
import shutil
import signal
import subprocess
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


class EmbeddedPostgres(EmbeddedServer):
    """A Postgres server on 127.0.0.1, without passwords, that ends with this process.

    Works as root (in a user namespace, else as nobody) and as an ordinary user. The binaries are those of
    `find_postgres`.

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
        self.settings: dict[str, str] = {
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "max_connections": "200",
            **({} if durable else _UNSAFE),
            **{name: str(value) for name, value in (settings or {}).items()},
        }

    def dsn(self, dbname: str = "postgres") -> str:
        """The connection string of a database of this server, as a URI."""
        return f"postgresql://postgres@{HOST}:{self.port}/{quote(dbname, safe='')}"

    def _prepare(self) -> None:
        if not (self.data_dir / "PG_VERSION").exists():
            self._make_data_directory()
        self._drop_stale_pid_file()

    def _make_data_directory(self) -> None:
        identity, binaries = choose_identity(find_postgres())
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if identity == "nobody":
            self._give_to_nobody()
        for locale in _LOCALES:
            command = _initdb(binaries, self.data_dir, locale)
            with self.log_file.open("ab") as log:
                done = subprocess.run(
                    wrap(command, identity=identity),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=_environment(),
                    cwd="/",
                    check=False,
                )
            if done.returncode == 0:
                return
        raise self._error(f"could not make the data directory {self.data_dir}")

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


def _initdb(binaries: PostgresBinaries, data_dir: Path, locale: str) -> list[str]:
    return [
        str(binaries.initdb),
        *("-D", str(data_dir), "-U", "postgres", "-E", "UTF8", f"--locale={locale}"),
        *("--auth=trust", "--no-sync", "--no-instructions"),
    ]


def _environment() -> dict[str, str]:
    """Ours, without the variables that would point Postgres elsewhere, or at a locale that is not installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}
