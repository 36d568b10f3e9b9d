"""What a history remembers of itself, as small JSON files that are written once and never changed.

A run, or a rollup, has a file for each step that it has done; the last of them says where it stands. So there is no
moment at which a record is half written, or the one before it is gone, also where a rename is no atomic thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import IntEnum
from typing import Annotated, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer, ValidationError

from queuert.spark.history.errors import HistoryOutputError
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
    """Whose history an output holds."""

    system: str
    """The identifier of the cluster."""
    database: str
    schema_name: str


class Watermark(_Record):
    """How far the log is rolled up."""

    tx: int
    """All transactions below it are in."""
    timeline: int | None = None
    """Which history of the cluster these are transactions of; None for a watermark of an earlier version."""
    closed_to: Moment
    """All hours before this moment are in."""
    dates: tuple[str, ...] = ()
    """The days that this rollup wrote."""
    rows: int = 0
    """How many rows they have."""
    lost: bool = False
    """Whether retention had taken events before they were read."""


class Step(IntEnum):
    """How far a run of the archive has come."""

    PLANNED = 1
    """What is to be archived is settled."""
    WRITTEN = 2
    """It is in the archive, and has been counted there."""
    DELETED = 3
    """It is no longer in the database, but for what has to stay."""
    STAGED = 4
    """What is to be in the archive without that is written beside it, and has been counted."""
    REPLACED = 5
    """It is in the archive, in the place of what was written there at first."""
    DONE = 6
    """The archive has what the database no longer has, and nothing else."""


class Counts(_Record):
    """How many rows the tables have."""

    chains: int = 0
    jobs: int = 0
    events: int = 0
    dates: Mapping[str, int] = Field(default_factory=dict)
    """Chains, by the day on which they closed."""


class Manifest(_Record):
    """A run of the archive."""

    run: Annotated[str, Field(pattern=r"^[0-9A-Za-z-]+$")]
    step: Step
    to_tx: int
    """Only chains that were closed by transactions below it."""
    cut: Moment
    """Only chains that closed before it."""
    types: tuple[str, ...] | None = None
    """Only chains of these types."""
    with_events: bool = True
    batch: int = 1_000
    begun_at: Moment
    done_at: Moment | None = None
    written: Counts = Counts()
    """What was written at first."""
    torn: tuple[str, ...] = ()
    """Chains that changed while they were read."""
    kept: Mapping[str, str] = Field(default_factory=dict)
    """Chains that stay in the database, and why."""
    archived: Counts = Counts()
    """What is in the archive in the end."""

    @property
    def excluded(self) -> list[str]:
        """The chains that were written, and are not to be in the archive."""
        return sorted({*self.torn, *self.kept})


def check_identity(files: Files, identity: Identity) -> None:
    """Claim an output for this database, or refuse it.

    Raises:
        HistoryOutputError: it belongs to another one.
    """
    found = _load(files, IDENTITY, Identity)
    if found is None:
        files.write(IDENTITY, identity.model_dump_json(indent=2))
    elif found != identity:
        raise HistoryOutputError(
            f"{files.root} holds the history of schema {found.schema_name!r} in database {found.database!r} of cluster "
            f"{found.system}; this is {identity.schema_name!r} in {identity.database!r} of {identity.system}. "
            "After a database was moved choose a new output: the old one keeps what was archived before"
        )


def last_watermark(files: Files) -> Watermark | None:
    """How far the log is rolled up; None if it never was."""
    names = _numbered(files, WATERMARKS)
    return _load(files, f"{WATERMARKS}/{names[-1]}", Watermark) if names else None


def add_watermark(files: Files, watermark: Watermark) -> None:
    """Note how far the log is rolled up, and forget what was noted long ago."""
    names = _numbered(files, WATERMARKS)
    number = int(names[-1].partition(".")[0]) + 1 if names else 1
    files.write(f"{WATERMARKS}/{number:08}.json", watermark.model_dump_json(indent=2))
    for name in names[: -_KEPT_WATERMARKS + 1]:
        files.remove(f"{WATERMARKS}/{name}")


def save_manifest(files: Files, manifest: Manifest) -> None:
    """Note that a run has done a step."""
    name = f"{manifest.step:02}-{manifest.step.name.lower()}.json"
    files.write(f"{RUNS}/{manifest.run}/{name}", manifest.model_dump_json(indent=2))


def manifests(files: Files) -> list[Manifest]:
    """All runs as they stand, the oldest first."""
    found = []
    for run in files.names(RUNS):
        steps = _numbered(files, f"{RUNS}/{run}")
        manifest = _load(files, f"{RUNS}/{run}/{steps[-1]}", Manifest) if steps else None
        if manifest is not None:
            found.append(manifest)
    return sorted(found, key=lambda one: (one.begun_at, one.run))


def unfinished(files: Files) -> list[Manifest]:
    """The runs that ended before they were done, the oldest first."""
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
    """The name of a run: when it began, and something that no other has."""
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{suffix}"
