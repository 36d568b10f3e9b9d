"""How much of the library one job passes through: it can be followed by a reader only while that is little."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from benchmarks.trace_job import trace_jobs

MAX_FILES = 40
MAX_FUNCTIONS = 200
MAX_CALLS = 470
"""As measured, with a few calls to spare. Who makes the path shorter lowers them."""


def test_one_job_touches_no_more_files_functions_and_calls_than_before(dsn: str) -> None:
    with ThreadPoolExecutor(1) as thread:  # The function of sys.setprofile is a thread's: a debugger's here stays.
        enough = (MAX_FILES, MAX_FUNCTIONS, MAX_CALLS)
        trace = thread.submit(asyncio.run, trace_jobs(dsn, jobs=50, enough=enough)).result()
    files, functions, calls = trace.size
    assert files <= MAX_FILES, sorted(trace.files)
    assert functions <= MAX_FUNCTIONS
    assert calls <= MAX_CALLS
