"""The driver process: it reads the files into a DataFrame, and starts a chain for each with the synchronous client.

Run as ``python -m queuert.demo.driver``, with the database in ``QUEUERT_URL``. It imports no handler, and Spark's
executors hold no client: the rows come to the driver, which is the producer.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from queuert.client import Chain, Client, NewChain
from queuert.demo import tables
from queuert.demo.database import Database
from queuert.demo.files import FoundFile, library, list_files, module_name
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
    root = library()
    with list_files(root, limit=args.files, spark=not args.no_spark) as listing:
        if listing.total == 0:
            sys.exit(f"there are no source files in {root}")
        with Database(url) as database:
            database.execute(tables.ADD_PLAN, (listing.total, listing.reader))
        to_chain = _chain_maker(root, pause_for(listing.total, args.slots))
        with Client(PostgresState(url, schema=SCHEMA, application_name="queuert demo driver"), job_types) as client:
            chains = start_all(client, map(to_chain, listing.files))
            client.start_chain(report, ReportOrder(path=args.report), blockers=chains)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--report", required=True)
    return parser


def pause_for(files: int, slots: int) -> float:
    """The pause of each job: a good many milliseconds when files are few, hardly any when they are many."""
    return min(max(_PAUSES_TOGETHER * slots / files, _SHORTEST_PAUSE), _LONGEST_PAUSE)


def _chain_maker(root: Path, pause: float) -> Callable[[FoundFile], NewChain[Indexed]]:
    def make(file: FoundFile) -> NewChain[Indexed]:
        name = module_name(Path(file.path), root)
        return NewChain(
            measure, SourceFile(path=file.path, module=name, size=file.size, digest=file.digest, pause=pause)
        )

    return make


def start_all(client: Client, new_chains: Iterator[NewChain[Indexed]]) -> list[Chain[Indexed]]:
    """Start the chains, a batch in a statement."""
    started: list[Chain[Indexed]] = []
    while batch := list(islice(new_chains, _BATCH)):
        started += client.start_chains(batch)
    return started


if __name__ == "__main__":
    raise SystemExit(main())
