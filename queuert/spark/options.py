"""The options of the data source: one validated parse, for which an unknown option is an error.

Spark hands options on as text, with names in any case. Each field here is the option of its name without underscores:
``write_id`` is ``writeId``.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from queuert.deduplication import DeduplicationScope
from queuert.errors import ConfigurationError
from queuert.migrations import check_schema_name
from queuert.payloads import check_text
from queuert.spark.errors import SparkOptionError
from queuert.type_names import checked_type_name
from queuert.urls import postgres_from_url

URL_VARIABLE = "QUEUERT_URL"

_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark or a writer adds by itself."""

O = TypeVar("O", bound="ConnectionOptions")  # noqa: E741

Seconds = Annotated[float, Field(ge=0, le=2_147_483)]
"""Of a limit that the server keeps: it counts milliseconds, in 32 bits."""

MOST_SECONDS = 86_400 * 36_500
"""Of a time that the server subtracts from now: a hundred years."""


@dataclass(frozen=True, slots=True)
class Fence:
    """An attempt that must still hold its job when a write is committed."""

    job_id: str
    attempt: int
    token: str

    @classmethod
    def parse(cls, text: str) -> Fence:
        """Read ``job_id:attempt/token``.

        Raises:
            SparkOptionError: it is something else.
        """
        head, slash, token = text.rpartition("/")
        job_id, colon, attempt = head.rpartition(":")
        try:
            if job_id and colon and slash and attempt.isdecimal():
                return cls(job_id, int(attempt), str(uuid.UUID(token)))
        except ValueError:
            pass
        raise SparkOptionError("the option fence is not job_id:attempt/token")

    def __str__(self) -> str:
        return f"{self.job_id}:{self.attempt}/{self.token}"


class ConnectionOptions(BaseModel):
    """What reading and writing have in common: where the database is, and how long to wait for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: SecretStr | None = None
    """The address of a Postgres. Better in the environment, or in a service file: plans and DDL show options."""
    url_env: str | None = None
    """The environment variable that holds it, on the driver and on every executor; ``QUEUERT_URL`` by default."""
    service: str | None = None
    """A service of libpq's ``pg_service.conf``, on the driver and on every executor."""
    schema_: Annotated[str, AfterValidator(check_schema_name)] | None = None
    """The schema of the tables; that of the address by default."""
    statement_timeout: Seconds = 0.0
    """Seconds that a statement may take; 0 for no limit."""
    lock_timeout: Seconds = 10.0
    """Seconds to wait for a lock; 0 for no limit."""
    connection_check_interval: Seconds = 1.0
    """Seconds after which the server notices that a cancelled task is gone; 0 for never. Only Linux and BSD can."""

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        given = [name for name in ("url", "url_env", "service") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(map(option_name, given))} are given: one of them")
        return self

    def address(self) -> tuple[str, str]:
        """The connection string and the schema. Resolved where it is called: environments may differ.

        Raises:
            SparkOptionError: there is none, or it makes no sense.
        """
        if self.service is not None:
            return f"service={_quoted(self.service)}", self.schema_ or "queuert"
        url = self._url()
        if url.startswith("embedded:"):
            raise SparkOptionError("executors cannot share an embedded Postgres: start one, and give its address")
        try:
            dsn, schema = postgres_from_url(url, **({"schema": self.schema_} if self.schema_ else {}))
        except ConfigurationError as error:
            raise SparkOptionError(str(error)) from None
        return dsn, schema

    def _url(self) -> str:
        if self.url is not None:
            return self.url.get_secret_value()
        name = self.url_env or URL_VARIABLE
        url = os.environ.get(name)
        if not url:
            raise SparkOptionError(
                f"no address of a database: give the option url, urlEnv or service, or set {name} here and on executors"
            )
        return url


def _quoted(value: str) -> str:
    return "'" + re.sub(r"([\\'])", r"\\\1", value) + "'"


def _identifier(what: str) -> AfterValidator:
    return AfterValidator(lambda value: check_text(value, what=what, max_chars=256))


class WriteOptions(ConnectionOptions):
    """Options of ``df.write`` and ``df.writeStream``."""

    job_type: Annotated[str, AfterValidator(checked_type_name)]
    """The type of the first jobs of the new chains."""
    job_types: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    """``module:attribute`` of the JobTypes (or JobType) that declares it: rows are then checked against its model."""
    write_id: Annotated[str, _identifier("writeId")] | None = None
    """The idempotency key of the whole write; a new UUID by default."""
    on_conflict: Literal["error", "nothing"] = "error"
    """What is done where a job of a given id exists already."""
    deduplication_scope: DeduplicationScope = DeduplicationScope.OPEN
    """Which chains of a row's deduplication_key are duplicates of it: ``open`` or ``any``."""
    deduplication_window: Annotated[float, Field(gt=0, le=MOST_SECONDS)] | None = None
    """Seconds: only chains that were started within them are duplicates of a row."""
    fence: str | None = None
    """``job_id:attempt/token``: commit only while that attempt holds its job."""
    rejects: str = "fail"
    """``fail``, or a directory or URL (as pyarrow knows them) where rows go, as Parquet, that are no valid jobs."""
    notify: bool = True
    """Wake workers when the rows are there."""
    trace_context: Annotated[str, Field(pattern=r"^[ -~]{1,4096}$")] | None = None
    """The trace that the jobs belong to, as ``traceparent`` says it."""
    sink_id: Annotated[str, _identifier("sinkId")] | None = None
    """Streams only: the name of this sink, for good; the query's id by default."""
    staging_ttl: Annotated[float, Field(ge=60, le=MOST_SECONDS)] = 86_400.0
    """Seconds after which staged rows that nobody touches are those of a dead driver, and are swept."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.fence is not None:
            Fence.parse(self.fence)
        if not self.rejects:
            raise ValueError("rejects is 'fail' or a path")
        return self

    @property
    def parsed_fence(self) -> Fence | None:
        """The fence, if there is one."""
        return None if self.fence is None else Fence.parse(self.fence)


def parse_options(kind: type[O], given: Mapping[str, str]) -> O:
    """The options as a model, whatever the case of their names.

    Raises:
        SparkOptionError: one is unknown or makes no sense; its value is not repeated, since it may be an address.
    """
    fields = {option_name(name).lower(): name for name in kind.model_fields}
    named: dict[str, str] = {}
    for name, value in given.items():
        _refuse_another(named.setdefault(name.lower(), value), value, name)
    if "path" in named:
        raise SparkOptionError("path: a queue is at no path: call save(), start() or load() without one")
    unknown = sorted(set(named) - set(fields) - _SPARKS_OWN)
    if unknown:
        known = ", ".join(map(option_name, kind.model_fields))
        raise SparkOptionError(f"unknown option {', '.join(map(repr, unknown))}: the data source queuert has {known}")
    values: dict[str, Any] = {fields[name]: value for name, value in named.items() if name in fields}
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise SparkOptionError(_reported(error)) from None


def option_texts(given: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Options as Spark takes them: its spelling of their names, and text. Those that are None are left out.

    Raises:
        SparkOptionError: one is given twice, perhaps in two spellings, and not the same.
    """
    texts: dict[str, str] = {}
    spelt: dict[str, str] = {}
    for field, value in given:
        if value is None:
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        name = spelt.setdefault(option_name(field).lower(), option_name(field))
        _refuse_another(texts.setdefault(name, text), text, field)
    return texts


def _refuse_another(value: str, other: str, name: str) -> None:
    if other != value:
        raise SparkOptionError(f"the option {name} is given twice, with two values: leave out one of them")


def option_name(field: str) -> str:
    """The option of a field: ``writeId`` of ``write_id``."""
    first, *rest = field.strip("_").split("_")
    return first + "".join(map(str.capitalize, rest))


def _reported(error: ValidationError) -> str:
    reported = []
    for one in error.errors(include_url=False, include_context=False, include_input=False):
        name = option_name(str(one["loc"][0])) if one["loc"] else ""
        reason = one["msg"].removeprefix("Value error, ")
        if one["type"] == "missing":
            reported.append(f"the option {name} is missing")
        else:
            reported.append(f"{name}: {reason}" if name else reason)
    return "; ".join(reported)
