"""Warnings about the TLS settings of a connection to Postgres. The server is not queried."""

from __future__ import annotations

from psycopg import ConnectionInfo
from psycopg.pq.abc import PGconn

from queuert.state.tls import tls_warnings
from queuert.state.types import StoreWarning

_VERIFIED = "verify-full"


def connection_warnings(pgconn: PGconn) -> tuple[StoreWarning, ...]:
    """Return the warnings for an open connection, wherever its settings came from.

    Any ``sslmode`` below ``verify-full`` is a risk: libpq then may encrypt, but accepts the certificate of any server.
    """
    info = ConnectionInfo(pgconn)
    mode = info.get_parameters().get("sslmode", "prefer")
    return tls_warnings(
        info.hostaddr or info.host,
        encrypted=bool(pgconn.ssl_in_use),
        verified=mode == _VERIFIED,
        advice=f"sslmode is {mode}; set sslmode={_VERIFIED}, and sslrootcert where the authority is your own",
    )
