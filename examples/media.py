"""The definitions that the other examples share: job types and models, without handlers."""

from __future__ import annotations

from pydantic import BaseModel

from queuert import JobType, JobTypes


class Resize(BaseModel):
    url: str
    width: int


class Thumbnail(BaseModel):
    key: str


class Published(BaseModel):
    address: str


publish = JobType("publish", input=Thumbnail, output=Published)
resize = JobType("resize", input=Resize, continues_with=publish)  # inferred: JobType[Resize, Published]
job_types = JobTypes(resize, publish)
