"""Parses and validates the options of the data source; an unknown option is an error.

Spark passes options as text, with names in any case. A field here is the option of the same name in camel case:
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
from queuert.job_types import checked_type_name
from queuert.schema_names import check_schema_name
from queuert.spark.errors import SparkOptionError
from queuert.texts import check_text
from queuert.urls import postgres_from_url

URL_VARIABLE = "QUEUERT_URL"

_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark or a writer adds by itself."""

O = TypeVar("O", bound="ConnectionOptions")  # noqa: E741

Seconds = Annotated[float, Field(ge=0, le=2_147_483)]
"""Seconds of a timeout of the server, which counts milliseconds in 32 bits."""

MOST_SECONDS = 86_400 * 36_500
"""The most seconds that the server subtracts from now: a hundred years."""


@dataclass(frozen=True, slots=True)
class Fence:
    """An attempt that must still have its lease when a write is committed."""

    job_id: str
    attempt: int
    token: str

    @classmethod
    def parse(cls, text: str) -> Fence:
        """Parse ``job_id:attempt/token``.

        Raises:
            SparkOptionError: the text is not of that form.
        """
        head, slash, token = text.rpartition("/")
        job_id, colon, attempt = head.rpartition(":")
        try:
            if job_id and colon and slash and attempt.isdecimal():
                return cls(job_id, int(attempt), str(uuid.UUID(token)))
        except ValueError:
            pass
        raise SparkOptionError("option fence must be job_id:attempt/token, as str(fence) writes it")

    def __str__(self) -> str:
        return f"{self.job_id}:{self.attempt}/{self.token}"


class ConnectionOptions(BaseModel):
    """Options of both reading and writing: the URL of the database, and timeouts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: SecretStr | None = None
    """The URL of a Postgres. Prefer the environment or a service file, as plans and DDL show options."""
    url_env: str | None = None
    """The environment variable with the URL, on the driver and every executor; by default ``QUEUERT_URL``."""
    service: str | None = None
    """A service of libpq's ``pg_service.conf``, on the driver and on every executor."""
    schema_: Annotated[str, AfterValidator(check_schema_name)] | None = None
    """The schema of the tables; by default that of the URL."""
    statement_timeout: Seconds = 0.0
    """Seconds that a statement may take; 0 for no limit."""
    lock_timeout: Seconds = 10.0
    """Seconds to wait for a lock; 0 for no limit."""
    connection_check_interval: Seconds = 1.0
    """Seconds after which the server notices that a task was cancelled; 0 for never. Needs a server on Linux or BSD."""

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        given = [name for name in ("url", "url_env", "service") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"only one of {', '.join(map(option_name, given))} may be set")
        return self

    def address(self) -> tuple[str, str]:
        """Return the connection string and the schema, by the environment of the calling process.

        Raises:
            SparkOptionError: no URL is set, or it is not valid.
        """
        if self.service is not None:
            return f"service={_quoted(self.service)}", self.schema_ or "queuert"
        url = self._url()
        if url.startswith("embedded:"):
            raise SparkOptionError("url must not be embedded:, which executors cannot share: start a Postgres server")
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
                "the URL of the database is missing: set the option url, urlEnv or service, or the environment variable"
                f" {name} here and on the executors"
            )
        return url


def _quoted(value: str) -> str:
    return "'" + re.sub(r"([\\'])", r"\\\1", value) + "'"


def _identifier(what: str) -> AfterValidator:
    return AfterValidator(lambda value: check_text(value, what=what, max_chars=256))


class WriteOptions(ConnectionOptions):
    """Options of ``df.write`` and ``df.writeStream``."""

    job_type: Annotated[str, AfterValidator(checked_type_name)]
    """The job type of the new chains' first jobs."""
    job_types: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    """``module:attribute`` of the JobTypes (or JobType) that declares it: its model then validates the rows."""
    write_id: Annotated[str, _identifier("writeId")] | None = None
    """The idempotency key of the whole write; a new UUID by default."""
    on_conflict: Literal["error", "nothing"] = "error"
    """What happens if a job with the id of a row exists already: an error, or nothing."""
    deduplication_scope: DeduplicationScope = DeduplicationScope.OPEN
    """Which chains with a row's deduplication_key make the row a duplicate: ``open`` or ``any``."""
    deduplication_window: Annotated[float, Field(gt=0, le=MOST_SECONDS)] | None = None
    """Only chains that were started within so many seconds make a row a duplicate."""
    fence: str | None = None
    """``job_id:attempt/token``: commit only while that attempt has its lease."""
    rejects: str = "fail"
    """``fail``, or a directory or URL (of pyarrow) to which rows that are not valid jobs are written as Parquet."""
    notify: bool = True
    """Whether to wake workers when the rows are written."""
    trace_context: Annotated[str, Field(pattern=r"^[ -~]{1,2048}$")] | None = None
    """The trace context of the jobs: a ``traceparent``, or what ``current_trace_context()`` returns."""
    sink_id: Annotated[str, _identifier("sinkId")] | None = None
    """Streams only: the permanent name of this sink; by default the query's id."""
    staging_ttl: Annotated[float, Field(ge=60, le=MOST_SECONDS)] = 86_400.0
    """Seconds after which unused staged rows are taken for those of a dead driver and removed."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.fence is not None:
            Fence.parse(self.fence)
        if not self.rejects:
            raise ValueError("rejects must be 'fail' or a path, got an empty text")
        return self

    @property
    def parsed_fence(self) -> Fence | None:
        """The fence, if there is one."""
        return None if self.fence is None else Fence.parse(self.fence)


def parse_options(kind: type[O], given: Mapping[str, str]) -> O:
    """Return the options as a model, whatever the case of their names.

    Raises:
        SparkOptionError: an option is unknown, missing or not valid. The message does not repeat its value, which may
            be a URL with a password.
    """
    fields = {option_name(name).lower(): name for name in kind.model_fields}
    named: dict[str, str] = {}
    for name, value in given.items():
        _refuse_another(named.setdefault(name.lower(), value), value, name)
    if "path" in named:
        raise SparkOptionError("option path must not be set: call save(), start() or load() without a path")
    unknown = sorted(set(named) - set(fields) - _SPARKS_OWN)
    if unknown:
        known = ", ".join(map(option_name, kind.model_fields))
        raise SparkOptionError(f"unknown option {', '.join(map(repr, unknown))}; the data source queuert has {known}")
    values: dict[str, Any] = {fields[name]: value for name, value in named.items() if name in fields}
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise SparkOptionError(_reported(error)) from None


def option_texts(given: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Return options as Spark takes them: names in camel case, values as text. None is left out.

    Raises:
        SparkOptionError: an option has two values, perhaps in two spellings of its name.
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
        raise SparkOptionError(f"option {name} must have one value, got two: remove one of them")


def option_name(field: str) -> str:
    """Return the option of a field: ``writeId`` for ``write_id``."""
    first, *rest = field.strip("_").split("_")
    return first + "".join(map(str.capitalize, rest))


def _reported(error: ValidationError) -> str:
    problems = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        name = option_name(str(problem["loc"][0])) if problem["loc"] else ""
        reason = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "missing":
            problems.append(f"option {name} is missing")
        elif name:
            problems.append(f"{name} {reason}" if reason.startswith("must ") else f"{name}: {reason}")
        else:
            problems.append(reason)
    return "; ".join(problems)
