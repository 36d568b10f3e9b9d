"""The tables of settings are complete, and have the defaults of the code.

Where a table stands below a heading that names a class or function, its rows are the parameters that have a default.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest

from queuert import (
    AsyncClient,
    Client,
    Deduplicate,
    InProcessWorker,
    JobType,
    JobTypes,
    Limits,
    PostgresState,
    Processors,
    RecurringSchedule,
    RetryPolicy,
)
from queuert.cli import build_parser
from queuert.client import async_waiting
from queuert.codecs import PayloadFormat, ZlibCodec
from queuert.embedded import EmbeddedPostgres, EmbeddedRedis
from queuert.integrations.sentry import SentryMiddleware
from queuert.integrations.structlog import StructlogObservability
from queuert.limits import Rate
from queuert.notify.postgres import ListenerTimeouts, PostgresNotify
from queuert.notify.redis import RedisNotify
from queuert.notify.sqlite import SQLiteNotify
from queuert.observability import LogObservability
from queuert.observability.gauges import StoreGauges
from queuert.observability.otel import OTelObservability
from queuert.observability.otel_tracing import OTelMiddleware
from queuert.observability.prometheus import PrometheusMetrics
from queuert.payloads import PayloadLimits
from queuert.policies import Backoff, Keep, LeasePolicy, Retention
from queuert.state.redis import RedisState
from queuert.state.sqlite import SQLiteState
from queuert.web import WebApp
from queuert.webhooks import TargetPolicy
from queuert.worker import bulk_runner, claimer, health, heartbeat, maintenance
from queuert.worker.endpoints import worker_endpoints
from queuert.worker.webhooks import WebhookSettings
from scripts.check_docs import ROOT

TEXT = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")

TABLES: dict[str, Callable[..., Any]] = {
    "JobType": JobType,
    "JobTypes": JobTypes,
    "PayloadLimits": PayloadLimits,
    "PayloadFormat": PayloadFormat,
    "ZlibCodec": ZlibCodec,
    "client.start_chain": Client.start_chain,
    "client.start_and_wait": Client.start_and_wait,
    "client.continue_chain": Client.continue_chain,
    "client.start_bulk_operation": Client.start_bulk_operation,
    "Deduplicate": Deduplicate,
    "Processors": Processors,
    "processors.handles": Processors.handles,
    "processors.handles_batch": Processors.handles_batch,
    "RetryPolicy": RetryPolicy,
    "LeasePolicy": LeasePolicy,
    "Limits": Limits,
    "Rate": Rate,
    "Retention": Retention,
    "Keep": Keep,
    "RecurringSchedule": RecurringSchedule,
    "InProcessWorker": InProcessWorker,
    "Client": Client,
    "client.list_chains": Client.list_chains,
    "client.get_activity": Client.get_activity,
    "PostgresState": PostgresState,
    "RedisState": RedisState,
    "SQLiteState": SQLiteState,
    "PostgresNotify": PostgresNotify,
    "RedisNotify": RedisNotify,
    "SQLiteNotify": SQLiteNotify,
    "ListenerTimeouts": ListenerTimeouts,
    "Backoff": Backoff,
    "LogObservability": LogObservability,
    "OTelObservability": OTelObservability,
    "PrometheusMetrics": PrometheusMetrics,
    "StoreGauges": StoreGauges,
    "worker_endpoints": worker_endpoints,
    "OTelMiddleware": OTelMiddleware,
    "SentryMiddleware": SentryMiddleware,
    "StructlogObservability": StructlogObservability,
    "WebApp": WebApp,
    "client.create_webhook": Client.create_webhook,
    "WebhookSettings": WebhookSettings,
    "client.callback_url": Client.callback_url,
    "TargetPolicy": TargetPolicy,
    "EmbeddedPostgres": EmbeddedPostgres,
    "EmbeddedRedis": EmbeddedRedis,
}

INTERVALS = {
    "poll for due jobs": claimer.POLL_WITH_NOTIFY,
    "poll for due jobs, without notifications": claimer.POLL_WITHOUT_NOTIFY,
    "poll for awaited chains": async_waiting.POLL_WITH_NOTIFY,
    "poll for awaited chains, without notifications": async_waiting.POLL_WITHOUT_NOTIFY,
    "heartbeat of a worker": heartbeat.INTERVAL,
    "health file": health.WRITE_INTERVAL,
    "maintenance": maintenance.INTERVAL,
    "poll for bulk operations": bulk_runner.INTERVAL,
    "poll for bulk operations, while another process does a batch": bulk_runner.ACTIVE_INTERVAL,
    "cleaning of staging": maintenance.STAGING_INTERVAL,
}

COMMON = ("--url", "--schema", "--json", "--debug")
OF_WORKER = ("concurrency", "shutdown_timeout", "poll_interval", "claim_bytes", "name")
"""What the command line leaves to the worker when it is not given."""


def shown(value: object) -> str:
    """A default as the tables have it."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, str):
        return f'"{value}"' if " " not in value or value == "cancelled by an operator" else value
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    if isinstance(value, Keep):
        return f"Keep(age={shown(value.age)})"
    made: Callable[[], Any] = type(value)
    if dataclasses.is_dataclass(value) and value == made():
        return f"{type(value).__name__}()"
    return repr(value)


def defaults(target: Any) -> dict[str, str]:
    """The parameters of a class or function that have a default."""
    fields = dataclasses.fields(target) if hasattr(target, "__dataclass_fields__") else ()
    factories: dict[str, Any] = {field.name: field.default_factory for field in fields}
    found = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            factory = factories.get(name, dataclasses.MISSING)
            value = parameter.default if factory is dataclasses.MISSING else factory()
            # What marks that nothing was given is no value that anybody can give.
            private = type(value).__name__.startswith("_")
            found[name] = "-" if private else shown(value)
    return found


def rows(heading: str) -> list[list[str]]:
    """The cells of the tables below a heading."""
    section = re.search(rf"^#+ `?{re.escape(heading)}`?$(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert section, f"no heading {heading!r}"
    lines = [line for line in section[1].splitlines() if line.startswith("| ")][1:]
    return [[cell.strip().replace("\0", "|") for cell in line.replace(r"\|", "\0").split("|")[1:-1]] for line in lines]


def table(heading: str) -> dict[str, str]:
    """The names and defaults of a table."""
    return {name.strip("`"): default.strip("`") for name, default, _ in rows(heading)}


@pytest.mark.parametrize("heading", TABLES)
def test_table_has_all_parameters_with_their_defaults(heading: str) -> None:
    assert table(heading) == defaults(TABLES[heading])


def test_intervals_are_those_of_the_code() -> None:
    assert table("Intervals") == {name: shown(value) for name, value in INTERVALS.items()}


def test_sync_and_async_clients_have_the_same_settings() -> None:
    assert defaults(AsyncClient) == defaults(Client)
    assert defaults(AsyncClient.start_chain) == defaults(Client.start_chain)


def commands(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, list[Any]]]:
    """Each command with the options of its own."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in inner:
        for word, other in action.choices.items():
            yield from commands(other, (*words, word))
    if not inner:
        options = [action for action in parser._actions if action.option_strings and action.dest != "help"]
        yield " ".join(words), options


def default_of(command: str, action: argparse.Action) -> str:
    if command == "worker" and action.dest in OF_WORKER:
        return shown(inspect.signature(InProcessWorker).parameters[action.dest].default)
    if isinstance(action, argparse._StoreTrueAction):
        return "off"
    return shown(action.default) if action.default != [] else "None"


def test_options_of_the_command_line_are_complete() -> None:
    real = {
        (action.option_strings[-1], default_of(command, action), command)
        for command, actions in commands(build_parser())
        for action in actions
        if action.option_strings[-1] not in COMMON
    }
    written = {
        (option.strip("`"), default.strip("`"), command)
        for option, default, whose, _ in rows("Options of single commands")
        for command in re.findall(r"`([^`]+)`", whose)
    }
    heading = 'docs/settings.md, "Options of single commands"'
    assert written == real, f"{heading}: add {sorted(real - written)}, remove {sorted(written - real)}"


def test_options_of_many_commands_are_those_of_the_code() -> None:
    assert tuple(cells[0].strip("`") for cells in rows("Options of many commands")) == COMMON
    options = {action.option_strings[-1] for _, actions in commands(build_parser()) for action in actions}
    assert set(COMMON) <= options


def test_environment_variables_are_complete() -> None:
    sources = [*(ROOT / "queuert").rglob("*.py"), ROOT / "pytest_queuert.py", ROOT / "tests" / "conftest.py"]
    sources += [ROOT / "docker-compose.yml", ROOT / "tests" / "browser" / "conftest.py"]
    read = {name for path in sources for name in re.findall(r"\bQUEUERT_[A-Z_]+\b", path.read_text(encoding="utf-8"))}
    assert {name.strip("`") for name, _, _ in rows("Environment variables")} == read
