"""The end of a run: archived chains are deleted from the database, and chains that stay there from the archive.

Before anything is removed from the archive, a copy of what stays in it is written and counted, since the database does
not have it any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Observation
from pyspark.sql import functions as f

from queuert.spark.history.archive import (
    ARCHIVE,
    STAGED,
    TABLES,
    archived_chains,
    check_count,
    count_tables,
    remove_run,
    staged,
    without,
    write_run,
    written,
)
from queuert.spark.history.records import Counts, Manifest, Step, new_run, save_manifest, unfinished
from queuert.spark.history.results import ArchiveResult
from queuert.spark.history.source import Place
from queuert.state.postgres.history import ArchivedChain, delete_archived, kept_chains

_WAIT_BATCH = 100
_SHOWN = 100


def resume_runs(place: Place) -> list[ArchiveResult]:
    """Continue the runs that did not reach their end."""
    results = []
    for run in unfinished(place.files):
        place.step("archive.resumed", f"run {run.run} goes on after step {run.step.name.lower()}")
        results.append(_result(carry_on(place, run), resumed=True))
    return results


def start_run(place: Place, cut: datetime, suffix: str, **settings: Any) -> ArchiveResult:
    """Archive the chains that closed before a time."""
    now = datetime.now(UTC)
    run = Manifest(run=new_run(now, suffix), step=Step.PLANNED, to_tx=place.facts.tx, cut=cut, begun_at=now, **settings)
    save_manifest(place.files, run)
    place.step("archive.planned", f"run {run.run}: chains that closed before {cut:%Y-%m-%d %H:%M:%S}Z")
    return _result(carry_on(place, run))


def carry_on(place: Place, run: Manifest) -> Manifest:
    """Do the remaining steps of a run."""
    if run.step < Step.WRITTEN:
        # A failover may have lost the last transactions of the server on which it was planned.
        run = run.model_copy(update={"to_tx": min(run.to_tx, place.facts.tx)})
        counts, torn = write_run(place, run)
        run = _done(place, run, Step.WRITTEN, written=counts, torn=tuple(torn))
    if run.step < Step.DELETED:
        run = _done(place, run, Step.DELETED, kept=_delete(place, run))
    if run.step < Step.STAGED and run.excluded:
        run = _done(place, run, Step.STAGED, archived=_stage(place, run))
    if run.step == Step.STAGED:
        _replace(place, run)
        run = _done(place, run, Step.REPLACED)
    if run.step < Step.DONE:
        # Removed only now, since a restart needs the staged files until then.
        place.files.remove(f"{STAGED}/{run.run}")
        counts = run.archived if run.excluded else run.written
        run = _done(place, run, Step.DONE, archived=counts, done_at=datetime.now(UTC))
    return run


def _done(place: Place, run: Manifest, step: Step, **values: Any) -> Manifest:
    run = run.model_copy(update={"step": step, **values})
    save_manifest(place.files, run)
    place.step(f"archive.{step.name.lower()}", f"run {run.run}: {step.name.lower()}")
    return run


def _delete(place: Place, run: Manifest) -> dict[str, str]:
    """Delete the archived chains. Returns those that stay in the database, with the reasons."""
    total, done = run.written.chains - len(run.torn), 0
    # Once for all batches, so that a chain that is kept is also reported as kept.
    unread = place.unread_since()
    left: list[ArchivedChain] = []
    for batch in archived_chains(place, run):
        gone = set(delete_archived(place.session, batch, closed_before=unread) or ())
        left += [one for one in batch if one.id not in gone]
        done += len(batch)
        place.step("archive.deleting", f"{done - len(left):,} chains deleted", done, total)
    kept = _kept(place, left, unread)
    # Other transactions may have released their locks or deleted the chains meanwhile, so wait to get the final state.
    held = [one for one in left if kept.get(one.id) == "busy"]
    for few in _batches(held, _WAIT_BATCH):
        delete_archived(place.session, few, closed_before=unread, wait=True)
    return _kept(place, left, unread) if held else kept


def _kept(place: Place, chains: Iterable[ArchivedChain], unread: datetime | None) -> dict[str, str]:
    kept: dict[str, str] = {}
    for few in _batches(list(chains), 1_000):
        kept |= kept_chains(place.session, few, unread)
    return kept


def _batches(chains: list[ArchivedChain], size: int) -> Iterator[list[ArchivedChain]]:
    for start in range(0, len(chains), size):
        yield chains[start : start + size]


def _stage(place: Place, run: Manifest) -> Counts:
    """Write a copy of what stays in the archive next to it, and count it."""
    for table in TABLES:
        path = f"{STAGED}/{run.run}/{table}"
        place.files.remove(path)
        rows = _copy(without(place, written(place, run, table), table, run.excluded), place.path(path))
        check_count(f"staged {table}", rows, staged(place, run, table).count())
    return count_tables(place, run, staged)


def _replace(place: Place, run: Manifest) -> None:
    """Replace what the run wrote at first by what is staged, if all of that exists."""
    for table in TABLES:
        check_count(f"staged {table}", getattr(run.archived, table), staged(place, run, table).count())
    remove_run(place, run)
    place.step("archive.replacing", f"run {run.run}: {len(run.excluded):,} chains leave the archive")
    for table in TABLES:
        rows = _copy(staged(place, run, table), place.path(f"{ARCHIVE}/{table}"))
        check_count(table, rows, written(place, run, table).count())


def _copy(frame: Any, path: str) -> int:
    count = Observation()
    counted = frame.observe(count, f.count(f.lit(1)).alias("rows"))
    writer = counted.write.partitionBy("date", "run").mode("overwrite")
    writer.option("partitionOverwriteMode", "dynamic").parquet(path)
    rows: int = count.get["rows"]
    return rows


def _result(run: Manifest, *, resumed: bool = False) -> ArchiveResult:
    kept = Counter(run.kept.values())
    torn = [id for id in run.torn if id not in run.kept]
    if torn:
        kept["torn"] = len(torn)
    return ArchiveResult(
        run=run.run,
        chains=run.archived.chains,
        jobs=run.archived.jobs,
        events=run.archived.events,
        kept=dict(kept),
        kept_ids=run.excluded[:_SHOWN],
        dates=dict(run.archived.dates),
        resumed=resumed,
    )
