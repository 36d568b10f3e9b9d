"""A port for a server that is killed and started again, and must not lose it in between."""

import os
import socket
import sys
import weakref

HOST = "127.0.0.1"


class ReservedPort:
    """A free TCP port of 127.0.0.1.

    Until `close` nobody else is given it, neither for listening nor for a connection to somewhere, while a server that
    reuses addresses, as Postgres, Redis and PgBouncer do, can listen on it. Only Linux shares a port so: elsewhere it
    is free at this moment, and no more.
    """

    number: int

    def __init__(self) -> None:
        with socket.socket() as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((HOST, 0))
            self.number = bound.getsockname()[1]
            # Who only asked for a port, and dropped it, has nothing to close.
            self._end = weakref.finalize(self, os.close, bound.detach())
        if sys.platform != "linux":
            self.close()

    def close(self) -> None:
        """Give it up. Idempotent."""
        self._end()
