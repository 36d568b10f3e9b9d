"""The records of a history, as small JSON files that are written once and never changed.

A run or a rollup writes a file for each step that it has done; the last file is its state. So no record is ever half
written or missing, also on storage without an atomic rename.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import IntEnum
from typing import Annotated, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer, ValidationError

from queuert.spark.errors import HistoryOutputError
from queuert.spark.history.files import Files

IDENTITY = "_history.json"
RUNS = "archive/_runs"
WATERMARKS = "rollups/_watermarks"
_KEPT_WATERMARKS = 10

Moment = Annotated[AwareDatetime, PlainSerializer(lambda moment: moment.astimezone(UTC).isoformat(), when_used="json")]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1


R = TypeVar("R", bound=_Record)


class Identity(_Record):
    """The database whose history an output contains."""

    system: str
    """The identifier of the Postgres cluster."""
    database: str
    schema_name: str


class Watermark(_Record):
    """The position up to which the log is rolled up."""

    tx: int
    """All transactions below it are included."""
    timeline: int | None = None
    """The timeline of the cluster; None for a watermark of an earlier version."""
    closed_to: Moment
    """All hours before this time are included."""
    dates: tuple[str, ...] = ()
    """The days that this rollup wrote."""
    rows: int = 0
    """The number of their rows."""
    lost: bool = False
    """Whether retention had dropped events before they were read."""


class Step(IntEnum):
    """The steps of a run of the archive."""

    PLANNED = 1
    """The selection of chains is recorded."""
    WRITTEN = 2
    """The chains are in the archive, and have been counted there."""
    DELETED = 3
    """They are deleted from the database, except for those that must stay."""
    STAGED = 4
    """The final contents of the archive are written next to it, and have been counted."""
    REPLACED = 5
    """They have replaced what was written to the archive at first."""
    DONE = 6
    """The archive contains what the database no longer has, and nothing else."""


class Counts(_Record):
    """The numbers of rows of the tables."""

    chains: int = 0
    jobs: int = 0
    events: int = 0
    dates: Mapping[str, int] = Field(default_factory=dict)
    """Chains, by the day on which they closed."""


class Manifest(_Record):
    """The state of a run of the archive."""

    run: Annotated[str, Field(pattern=r"^[0-9A-Za-z-]+$")]
    step: Step
    to_tx: int
    """Only chains that were closed by transactions below it are archived."""
    cut: Moment
    """Only chains that closed before it are archived."""
    types: tuple[str, ...] | None = None
    """Only chains of these types are archived."""
    with_events: bool = True
    batch: int = 1_000
    begun_at: Moment
    done_at: Moment | None = None
    written: Counts = Counts()
    """The counts of what was written at first."""
    torn: tuple[str, ...] = ()
    """Chains that changed while they were read."""
    kept: Mapping[str, str] = Field(default_factory=dict)
    """Chains that stay in the database, and the reasons."""
    archived: Counts = Counts()
    """The counts of what is in the archive in the end."""

    @property
    def excluded(self) -> list[str]:
        """The chains that were written, and must not stay in the archive."""
        return sorted({*self.torn, *self.kept})


def check_identity(files: Files, identity: Identity) -> None:
    """Claim an output for this database, or check that it belongs to it.

    Raises:
        HistoryOutputError: it belongs to another database.
    """
    found = _load(files, IDENTITY, Identity)
    if found is None:
        files.write(IDENTITY, identity.model_dump_json(indent=2))
    elif found != identity:
        raise HistoryOutputError(
            f"output must be a directory of this database, schema {identity.schema_name!r} in {identity.database!r} of "
            f"{identity.system}, got {files.root} with the history of {found.schema_name!r} in {found.database!r} of "
            f"{found.system}: choose a new one. After a move the old one keeps what was archived before"
        )


def last_watermark(files: Files) -> Watermark | None:
    """Return the position up to which the log is rolled up; None if it never was."""
    names = _numbered(files, WATERMARKS)
    return _load(files, f"{WATERMARKS}/{names[-1]}", Watermark) if names else None


def add_watermark(files: Files, watermark: Watermark) -> None:
    """Write the new position, and delete old ones."""
    names = _numbered(files, WATERMARKS)
    number = int(names[-1].partition(".")[0]) + 1 if names else 1
    files.write(f"{WATERMARKS}/{number:08}.json", watermark.model_dump_json(indent=2))
    for name in names[: -_KEPT_WATERMARKS + 1]:
        files.remove(f"{WATERMARKS}/{name}")


def save_manifest(files: Files, manifest: Manifest) -> None:
    """Record that a run has done a step."""
    name = f"{manifest.step:02}-{manifest.step.name.lower()}.json"
    files.write(f"{RUNS}/{manifest.run}/{name}", manifest.model_dump_json(indent=2))


def manifests(files: Files) -> list[Manifest]:
    """Return the states of all runs, the oldest first."""
    found = []
    for run in files.names(RUNS):
        steps = _numbered(files, f"{RUNS}/{run}")
        manifest = _load(files, f"{RUNS}/{run}/{steps[-1]}", Manifest) if steps else None
        if manifest is not None:
            found.append(manifest)
    return sorted(found, key=lambda one: (one.begun_at, one.run))


def unfinished(files: Files) -> list[Manifest]:
    """Return the runs that did not reach their end, the oldest first."""
    done = f"{Step.DONE:02}-done.json"
    pending = {run for run in files.names(RUNS) if done not in files.names(f"{RUNS}/{run}")}
    return [one for one in manifests(files) if one.run in pending] if pending else []


def _numbered(files: Files, folder: str) -> list[str]:
    return [name for name in files.names(folder) if name.endswith(".json") and name[0].isdigit()]


def _load(files: Files, path: str, kind: type[R]) -> R | None:
    text = files.read(path)
    if text is None:
        return None
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise HistoryOutputError(
            f"{files.root}/{path} is damaged, or of a later version: {error.errors()[0]['msg']}"
        ) from None


def new_run(now: datetime, suffix: str) -> str:
    """Return the name of a run: the time of its beginning, and a unique suffix."""
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{suffix}"
