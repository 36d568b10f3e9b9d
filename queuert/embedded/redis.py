"""A Redis (or Valkey) server of this process's own."""

import os
import signal
import socket
import subprocess
from collections.abc import Mapping

from queuert.embedded.binaries import find_redis
from queuert.embedded.ports import HOST
from queuert.embedded.server import EmbeddedServer
from queuert.embedded.spawn import spawn


class EmbeddedRedis(EmbeddedServer):
    """A Redis or Valkey server on 127.0.0.1, without a password, that ends with this process.

    By default it keeps its data in memory alone: pass `options={"appendonly": "yes", "appendfsync": "always"}` to
    have what was acknowledged survive a kill. The program is that of `find_redis`.
    """

    name = "Redis"
    stop_signal = signal.SIGTERM
    quit_signal = signal.SIGKILL

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        options: Mapping[str, str | int] | None = None,
        port: int | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Describe the server; `start` or a `with` block starts it.

        Args:
            data_dir: where snapshots and the append-only file go: made when it is absent, kept afterwards. By default
                a temporary directory.
            options: the server's options by their names in `redis.conf`; they win over our own.
            port: the TCP port; by default a free one.
            timeout: seconds to wait for a start, and for an orderly stop.
        """
        super().__init__(data_dir, port, timeout, in_memory=True)
        self.options: dict[str, str] = {
            "bind": HOST,
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            **{name: str(value) for name, value in (options or {}).items()},
        }

    def url(self, database: int = 0) -> str:
        """The address of a numbered database of this server."""
        return f"redis://{HOST}:{self.port}/{database}"

    def _prepare(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [str(find_redis()), "--port", str(self.port), "--dir", str(self.data_dir)]
        for name, value in self.options.items():
            command += [f"--{name}", value]
        return spawn(command, log=self.log_file, death_signal=self.stop_signal)

    def _is_ready(self, pid: int) -> bool:
        """Whether it is this server that answers on the port, and it has read the data that it had."""
        try:
            with socket.create_connection((HOST, self.port), timeout=2) as connection:
                connection.sendall(b"PING\r\nINFO server\r\nQUIT\r\n")
                answer = connection.makefile("rb").read()
        except OSError:
            return False
        return answer.startswith(b"+PONG") and b"process_id:%d\r\n" % pid in answer
