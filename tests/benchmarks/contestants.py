"""A contestant that answers, and ways of not answering."""

from __future__ import annotations

import sys
import threading

from benchmarks.child import Meter, Request, ready, serve


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
            "prepare": nothing,
            "load": nothing,
            "pace": nothing,
        }
    )
