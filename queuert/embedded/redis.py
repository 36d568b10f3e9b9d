"""A Redis (or Valkey) server of this process's own."""

import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from queuert.embedded.binaries import find_redis
from queuert.embedded.ports import HOST
from queuert.embedded.server import EmbeddedServer
from queuert.embedded.spawn import spawn

_SECRET = {"requirepass", "masterauth"}


class EmbeddedRedis(EmbeddedServer):
    """A Redis or Valkey server on 127.0.0.1 that ends with this process, and asks everybody for a password.

    The password is random, and stands in `url()`: other users of the machine can reach the port.
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
            options: the server's options by their names in `redis.conf`; they win over our own. With `requirepass` they
                choose the password.
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
        self.password = self.options.setdefault("requirepass", secrets.token_hex(16))

    def url(self, database: int = 0, *, user: str = "", password: str | None = None) -> str:
        """The address of a numbered database of this server, for its default user or another one.

        It holds the password: print it nowhere.
        """
        word = self.password if password is None else password
        return f"redis://{quote(user, safe='')}:{quote(word, safe='')}@{HOST}:{self.port}/{database}"

    def _prepare(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [str(find_redis()), str(self._write_secrets()), "--port", str(self.port), "--dir", str(self.data_dir)]
        for name, value in self.options.items():
            command += [] if name in _SECRET else [f"--{name}", value]
        return spawn(command, log=self.log_file, death_signal=self.stop_signal)

    def _write_secrets(self) -> Path:
        """A file that we alone read, with the options that must be no arguments: everybody on the machine sees them."""
        path = self.data_dir / "queuert.conf"
        path.unlink(missing_ok=True)
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.writelines(f"{name} {_quoted(self.options[name])}\n" for name in _SECRET & self.options.keys())
        return path

    def _is_ready(self, pid: int) -> bool:
        """Whether it is this server that answers on the port, and it has read the data that it had."""
        try:
            with socket.create_connection((HOST, self.port), timeout=2) as connection:
                word = self.password.encode()
                connection.sendall(b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n" % (len(word), word))
                connection.sendall(b"PING\r\nINFO server\r\nQUIT\r\n")
                answer = connection.makefile("rb").read()
        except OSError:
            return False
        return answer.startswith(b"+OK\r\n+PONG") and b"process_id:%d\r\n" % pid in answer


def _quoted(value: str) -> str:
    """A value as the file of options has it."""
    texts = [chr(byte) if byte < 128 and chr(byte).isalnum() else f"\\x{byte:02x}" for byte in value.encode()]
    return f'"{"".join(texts)}"'
