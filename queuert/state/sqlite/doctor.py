"""The checks of ``queuert doctor`` on SQLite. Until the file is known to be sound it is opened to be read only."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from queuert.errors import StateError, StateUnavailableError
from queuert.state.diagnosis import Finding, Severity, Thresholds, error, ok, skipped, store_findings, warning
from queuert.state.sqlite.connection import MEMORY
from queuert.state.sqlite.errors import mapped_errors
from queuert.state.sqlite.schema import SCHEMA_VERSION, missing_parts, stored_version

if TYPE_CHECKING:
    from queuert.state.sqlite.adapter import SQLiteState

_READ_WHOLE = 256 * 2**20
"""Bytes of a file up to which it is read whole, to look for damage: a second or so."""

_LARGE_LOG = 64 * 2**20
"""Bytes of a write-ahead log above which something seems to keep it from being emptied."""

_LEAST_FREE = 100 * 2**20
"""Bytes that must be free for the file to grow."""

NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "fuse.sshfs"})

MOUNTS = Path("/proc/mounts")


def diagnose(state: SQLiteState, path: str, synchronous: str, thresholds: Thresholds) -> list[Finding]:
    """Make all checks.

    Raises:
        StateUnavailableError: others write for longer than the store waits.
    """
    if path == MEMORY:
        return [ok("file", "the jobs are in the memory of this process, and end with it")]
    file = Path(path)
    if not file.exists():
        remedy = "check the address; the first client or worker that opens it creates the file"
        return [error("file", f"no file at {path}", "there are no jobs", remedy)]
    findings = list(_file(file))
    if all(finding.severity is not Severity.ERROR for finding in findings):
        findings += [*_synchronous(synchronous), *_log_size(file)]
        findings += _on_store(state, thresholds)
    return [*findings, *_disk(file, thresholds), *_file_system(file)]


def _on_store(state: SQLiteState, thresholds: Thresholds) -> Iterator[Finding]:
    store = state.sync_store()
    try:
        store.open()
    except StateUnavailableError:
        raise
    except StateError as failure:
        yield _refused(failure)
        return
    try:
        yield from store_findings(store, thresholds)
    finally:
        store.close()


def _refused(failure: StateError) -> Finding:
    found = str(failure) if failure.remedy is None else str(failure).removesuffix(f": {failure.remedy}")
    remedy = failure.remedy or "restore the file from a backup"
    return error("schema", found, "clients and workers cannot open the file", remedy)


def _file(file: Path) -> Iterator[Finding]:
    """The tables, the journal mode, and whether the file is damaged."""
    try:
        with (
            mapped_errors(),
            contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=10.0)) as connection,
        ):
            yield from _schema(connection)
            yield from _journal(connection, file)
            yield from _damage(connection, file)
    except StateError as failure:
        yield error("file", str(failure), "the file cannot be read", "restore it from a backup")


def _schema(connection: sqlite3.Connection) -> Iterator[Finding]:
    try:
        version = stored_version(connection)
    except StateError as failure:
        yield _refused(failure)
        return
    if not version:
        yield warning("schema", "the file has no tables of Queuert", "there are no jobs", "open it with a client once")
        return
    if version > SCHEMA_VERSION:
        reason = f"this program knows version {SCHEMA_VERSION} and refuses to open it"
        yield error("schema", f"version {version}", reason, "upgrade queuert")
    elif version < SCHEMA_VERSION:
        remedy = "open it with a client or worker of this version"
        yield warning("schema", f"version {version} of {SCHEMA_VERSION}", "the next open upgrades it", remedy)
    elif missing := missing_parts(connection):
        found = f"version {version}, without {', '.join(missing[:5])}{' and others' if missing[5:] else ''}"
        yield error("schema", found, "what needs them fails", "restore the file from a backup")
    else:
        yield ok("schema", f"version {version}, the newest")


def _journal(connection: sqlite3.Connection, file: Path) -> Iterator[Finding]:
    [(mode,)] = connection.execute("PRAGMA journal_mode").fetchall()
    if mode == "wal":
        yield ok("journal", "write-ahead log")
        return
    reason = "readers wait for writers, and writers for readers, until a client or worker opens the file"
    remedy = f"sqlite3 {file} 'PRAGMA journal_mode = wal'"
    yield warning("journal", f"journal_mode is {mode}", reason, remedy)


def _damage(connection: sqlite3.Connection, file: Path) -> Iterator[Finding]:
    size = file.stat().st_size
    if size > _READ_WHOLE:
        reason = f"the file has {size / 2**20:,.0f} MiB, and would be read whole"
        yield skipped("integrity", reason, f"sqlite3 {file} 'PRAGMA quick_check'")
        return
    [(first,), *_] = connection.execute("PRAGMA quick_check(1)").fetchall()
    if first == "ok":
        yield ok("integrity", f"no damage in {size / 2**20:,.1f} MiB")
    else:
        remedy = f"restore a backup, or sqlite3 {file} .recover"
        yield error("integrity", f"the file is damaged: {first}", "jobs are lost or cannot be read", remedy)


def _synchronous(synchronous: str) -> Iterator[Finding]:
    if synchronous == "full":
        yield ok("synchronous", "each commit is flushed")
        return
    reason = "a loss of power may lose the last commits, which were acknowledged"
    yield warning("synchronous", f"synchronous is {synchronous}", reason, "SQLiteState(path, synchronous='full')")


def _log_size(file: Path) -> Iterator[Finding]:
    log = file.with_name(f"{file.name}-wal")
    size = log.stat().st_size if log.exists() else 0
    if size <= _LARGE_LOG:
        yield ok("write_ahead_log", f"{size / 2**20:,.1f} MiB")
        return
    reason = "a connection that reads for long keeps it from being emptied; reads slow down and the disk fills"
    remedy = f"end long reads, then sqlite3 {file} 'PRAGMA wal_checkpoint(TRUNCATE)'"
    yield warning("write_ahead_log", f"{size / 2**20:,.0f} MiB", reason, remedy)


def _disk(file: Path, thresholds: Thresholds) -> Iterator[Finding]:
    disk = shutil.disk_usage(file.parent)
    found = f"{disk.free / 2**20:,.0f} of {disk.total / 2**20:,.0f} MiB are free"
    reason = "on a full disk starts, claims and finishes are refused"
    remedy = f"free space on the disk of {file.parent}, or give job types a retention"
    if disk.free < _LEAST_FREE:
        yield error("disk", found, reason, remedy)
    elif disk.total - disk.free > disk.total * thresholds.used_share:
        yield warning("disk", found, reason, remedy)
    else:
        yield ok("disk", found)


def _file_system(file: Path) -> Iterator[Finding]:
    """Linux says what is mounted where; other systems are not asked."""
    if not MOUNTS.exists():
        yield skipped(
            "file_system", "this system does not list its mounts in /proc", "make sure that it is a local disk"
        )
        return
    kind = _kind_of(file)
    if kind in NETWORK_FILE_SYSTEMS:
        reason = "locks of network file systems do not hold, so two workers may write at once and damage the file"
        remedy = "move the file to a local disk, or use Postgres"
        yield error("file_system", f"the file is on {kind}", reason, remedy)
    else:
        yield ok("file_system", kind or "unknown")


def _kind_of(file: Path) -> str | None:
    """The file system of the deepest mount above a file; of two mounts on one directory, the later."""
    deepest = 0
    found: str | None = None
    for line in MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines():
        _, point, kind, *_ = line.split()
        directory = Path(point.encode().decode("unicode_escape"))
        if file.is_relative_to(directory) and len(directory.parts) >= deepest:
            deepest, found = len(directory.parts), kind
    return found
