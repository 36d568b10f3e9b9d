"""Addresses of test servers for other users than the one that created them."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from psycopg import sql
from psycopg.conninfo import conninfo_to_dict


def as_user(url: str, user: str, password: str | None = None) -> str:
    """Return the URI of the same server and database for another user. Without a password it has the password of the
    address."""
    if not url.startswith(("postgresql://", "postgres://", "redis://")):
        parts = conninfo_to_dict(url)
        secret = f":{quote(str(parts['password']), safe='')}@" if parts.get("password") else "@"
        url = f"postgresql://{secret}{parts['host']}:{parts['port']}/{parts['dbname']}"
    split = urlsplit(url)
    word = split.password if password is None else quote(password, safe="")
    netloc = f"{quote(user, safe='')}{'' if word is None else f':{word}'}@{split.hostname}:{split.port}"
    return split._replace(netloc=netloc).geturl()


def password_of(url: str) -> sql.Literal:
    """Return the password of a Postgres address as SQL, for ``CREATE ROLE ... PASSWORD``: NULL if there is none."""
    return sql.Literal(conninfo_to_dict(url).get("password"))
