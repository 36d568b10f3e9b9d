"""What a connection to Postgres tells of its own safety. Nothing is asked of the server."""

from __future__ import annotations

from psycopg import ConnectionInfo
from psycopg.pq.abc import PGconn

from queuert.state.tls import tls_warnings
from queuert.state.types import StoreWarning

_VERIFIED = "verify-full"


def connection_warnings(pgconn: PGconn) -> tuple[StoreWarning, ...]:
    """The risks of an open connection, whichever of environment, service file and address say how it was made.

    ``sslmode`` below ``verify-full`` is one: libpq then encrypts at best, and takes any server for the right one.
    """
    info = ConnectionInfo(pgconn)
    mode = info.get_parameters().get("sslmode", "prefer")
    return tls_warnings(
        info.hostaddr or info.host,
        encrypted=bool(pgconn.ssl_in_use),
        verified=mode == _VERIFIED,
        advice=f"sslmode is {mode}; set sslmode={_VERIFIED}, and sslrootcert where the authority is your own",
    )
