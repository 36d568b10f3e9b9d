"""The demo's job types: all that its driver needs to know of its jobs."""

from __future__ import annotations

from pydantic import BaseModel

from queuert.job_types import JobType, JobTypes


class SourceFile(BaseModel):
    """A file to be measured.

    ``pause`` is a real delay in the handler, in seconds: without it the jobs are over before anybody can be killed.
    """

    path: str
    module: str
    size: int
    digest: str
    pause: float = 0.0


class Symbol(BaseModel):
    """A class or function."""

    kind: str
    name: str
    line: int


class Import(BaseModel):
    """A name that is imported, with dots; ``at_top`` if that happens when the module is loaded."""

    target: str
    at_top: bool


class Measured(BaseModel):
    """What is in a file."""

    path: str
    module: str
    size: int
    digest: str
    lines: int
    symbols: list[Symbol]
    imports: list[Import]


class Indexed(BaseModel):
    """The result of a file: in the tables, or, with ``error``, not Python that this interpreter reads."""

    module: str
    lines: int
    symbols: int = 0
    imports: int = 0
    error: str | None = None


class ReportOrder(BaseModel):
    """Where the report goes."""

    path: str


class Report(BaseModel):
    """The report's findings in short."""

    path: str
    files: int
    lines: int
    symbols: int
    imports: int
    unreadable: int
    cycles: int
    text: str


index = JobType("index", input=Measured, output=Indexed)
measure = JobType("measure", input=SourceFile, output=Indexed, continues_with=index)
report = JobType("report", input=ReportOrder, output=Report)

job_types = JobTypes(measure, index, report)
