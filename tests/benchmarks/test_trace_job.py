"""How much of the library one job passes through: it can be followed by a reader only while that is little."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.trace_job import trace_jobs

MAX_FILES = 45
MAX_FUNCTIONS = 205
MAX_CALLS = 470
"""Of a job for whose result the client waits and is woken (40, 204, 455), with a function, five files and fifteen
calls to spare. A client that comes late finds the result at once: five functions fewer, now and then. Who makes the
path shorter lowers the bounds, but not that of files, so that none is crammed into another for this number."""


@pytest.mark.quick
def test_one_job_touches_no_more_files_functions_and_calls_than_before(dsn: str) -> None:
    with ThreadPoolExecutor(1) as thread:  # The function of sys.setprofile is a thread's: a debugger's here stays.
        enough = (MAX_FILES, MAX_FUNCTIONS, MAX_CALLS)
        trace = thread.submit(asyncio.run, trace_jobs(dsn, jobs=50, enough=enough)).result()
    files, functions, calls = trace.size
    assert files <= MAX_FILES, str(trace)
    assert functions <= MAX_FUNCTIONS, str(trace)
    assert calls <= MAX_CALLS, str(trace)
