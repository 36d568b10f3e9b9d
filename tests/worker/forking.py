"""A program that forks while a client is open: run by a test, with a connection string."""

from __future__ import annotations

import os
import sys

from queuert import Client, PostgresState
from tests.support.job_types import JOB_TYPES, number


def backends(client: Client) -> set[int]:
    """The server's processes behind a client's connections that it has used.

    When it opens, a client makes one more to hear what may be wrong, and closes it: the server may still list that one.
    """
    import psycopg

    with psycopg.connect(os.environ["QUEUERT_URL"], autocommit=True) as look:
        found = look.execute(
            "select pid from pg_stat_activity"
            " where datname = current_database() and application_name = 'queuert' and query <> ''"
        ).fetchall()
    return {row[0] for row in found}


def in_child(client: Client, parents: set[int]) -> None:
    for value in range(5):
        chain = client.start_chain(number, value)
        assert client.get_chain(chain.id).input == value
    assert backends(client) > parents
    client.close()
    sys.stdout.write("child: well\n")
    sys.stdout.flush()


def main() -> None:
    client = Client(PostgresState(os.environ["QUEUERT_URL"]), JOB_TYPES)
    first = client.start_chain(number, 1)
    parents = backends(client)
    process = os.fork()
    if process == 0:
        status = 1
        try:
            in_child(client, parents)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(process, 0)[1] == 0
    assert client.get_chain(first.id).input == 1
    assert parents <= backends(client)
    client.close()
    sys.stdout.write("parent: well\n")


if __name__ == "__main__":
    main()
