"""A contestant that answers, and ways of not answering."""

from __future__ import annotations

import sys
import threading

import psycopg

from benchmarks.child import Meter, Request, ready, serve

_LOOK = """
select (select count(*) from pg_stat_activity
        where datname = current_database() and state = 'idle in transaction' and backend_xmin is not null),
    (select count(*) from look)
"""


def count(request: Request) -> dict[str, float]:
    """Does nothing, as many times as it is told."""
    with Meter(request.jobs) as meter:
        for _ in range(request.jobs):
            pass
    return {**meter.answer(), "jobs": request.jobs, "seen": request.option("seen", 0)}


def talk(request: Request) -> dict[str, float]:
    """Answers among other output."""
    print("hello")
    sys.stdout.write("no newline at the end")
    return {"rate": 1.0}


def fail(request: Request) -> None:
    """Raises."""
    raise RuntimeError("this contestant is broken")


def hang(request: Request) -> None:
    """Never ends."""
    threading.Event().wait()


def await_jobs(request: Request) -> dict[str, float]:
    """Says that it is ready, and answers."""
    ready()
    return {"p50_ms": 1.5, "p99_ms": 2.5}


def share(request: Request) -> dict[str, float]:
    """Its part of what several do at once, which is timed from when all are ready."""
    with Meter(request.jobs) as meter:
        pass
    return {**meter.answer(), "cpu_us": 2.0, "rss_mib": 3.0}


def await_rate(request: Request) -> dict[str, float]:
    """What it was offered."""
    ready()
    return {"p50_ms": request.jobs, "p99_ms": request.option("rate")}


def drain(request: Request) -> dict[str, float]:
    """A hundred jobs a second."""
    return {"rate": 100.0}


def look(request: Request) -> dict[str, float]:
    """How many snapshots are held here, and how many have looked before."""
    with psycopg.connect(request.server, autocommit=True) as connection:
        connection.execute("create table if not exists look (at timestamptz default now())")
        row = connection.execute(_LOOK).fetchone()
        connection.execute("insert into look default values")
    assert row is not None
    return {"rate": 1.0, "snapshots": row[0], "looks": row[1]}


def nothing(request: Request) -> None:
    """No answer but that it is done."""


if __name__ == "__main__":
    serve(
        {
            "count": count,
            "talk": talk,
            "fail": fail,
            "hang": hang,
            "await_jobs": await_jobs,
            "share": share,
            "await_rate": await_rate,
            "drain": drain,
            "look": look,
            "prepare": nothing,
            "load": nothing,
            "pace": nothing,
        }
    )
