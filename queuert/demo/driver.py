"""The driver process: it reads the files, and starts a chain for each.

Run as ``python -m queuert.demo.driver``, with the database in ``QUEUERT_URL``. It imports no handler. With Spark, the
rows of a DataFrame become chains (``spark_driver``); without it, the synchronous client starts them in batches.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from queuert.client import Chain, Client, NewChain
from queuert.demo import spark_driver, tables
from queuert.demo.database import Database
from queuert.demo.files import FoundFile, library, list_files
from queuert.demo.job_types import Indexed, ReportOrder, SourceFile, job_types, measure, report
from queuert.demo.settings import SCHEMA
from queuert.state.postgres import PostgresState

_BATCH = 100
_PAUSES_TOGETHER = 3.0
"""Seconds that the pauses of all files last together, when all slots are busy: time to kill somebody in."""
_SHORTEST_PAUSE = 0.01
_LONGEST_PAUSE = 0.25


def main(argv: Sequence[str] | None = None) -> int:
    """Start all chains, and the report that waits for them; the number of files is in the table ``plan``."""
    args = _parser().parse_args(argv)
    url = os.environ["QUEUERT_URL"]
    if args.no_spark:
        files = _without_spark(url, args.files, args.report, args.slots)
    else:
        pause = partial(pause_for, slots=args.slots)
        files = spark_driver.run(url, args.files, args.report, Path(args.history), pause)
    if not files:
        sys.exit(f"no source files in {library()}")
    return 0


def _without_spark(url: str, limit: int | None, report_path: str, slots: int) -> int:
    with list_files(library(), limit=limit, spark=False) as listing:
        if listing.total == 0:
            return 0
        with Database(url) as database:
            database.execute(tables.ADD_PLAN, (listing.total, listing.reader))
        pause = pause_for(listing.total, slots)
        with Client(PostgresState(url, schema=SCHEMA, application_name="queuert demo driver"), job_types) as client:
            chains = start_all(client, (_chain(file, pause) for file in listing.files))
            client.start_chain(report, ReportOrder(path=report_path), blockers=chains)
        return listing.total


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--report", required=True)
    parser.add_argument("--history", required=True)
    return parser


def pause_for(files: int, slots: int) -> float:
    """The pause of each job: a good many milliseconds when files are few, hardly any when they are many."""
    return min(max(_PAUSES_TOGETHER * slots / files, _SHORTEST_PAUSE), _LONGEST_PAUSE)


def _chain(file: FoundFile, pause: float) -> NewChain[Indexed]:
    return NewChain(
        measure, SourceFile(path=file.path, module=file.module, size=file.size, digest=file.digest, pause=pause)
    )


def start_all(client: Client, new_chains: Iterator[NewChain[Indexed]]) -> list[Chain[Indexed]]:
    """Start the chains, a batch in a statement."""
    started: list[Chain[Indexed]] = []
    while batch := list(islice(new_chains, _BATCH)):
        started += client.start_chains(batch)
    return started


if __name__ == "__main__":
    raise SystemExit(main())
