"""What several commands have in common: the parser's manners, and the options that say where the database is."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn, Protocol

from queuert.cli.exit_codes import Exit, UsageError
from queuert.migrations import DEFAULT_SCHEMA
from queuert.state.adapter import StateAdapter
from queuert.urls import postgres_from_url, state_from_url

URL_VARIABLE = "QUEUERT_URL"

POSTGRES_FORMS = "postgresql://USER@HOST:PORT/DATABASE or 'host=... dbname=...'"

ADDRESS_FORMS = f"{POSTGRES_FORMS}, redis://HOST:PORT/0, sqlite:///FILE or embedded:///DIRECTORY"


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line, as every other error is said."""

    def error(self, message: str) -> NoReturn:
        """Print the message and end with the code for a wrong command line."""
        self.exit(Exit.USAGE, f"queuert: {message} (see {self.prog} --help)\n")


class Commands(Protocol):
    """Where a command adds its parser."""

    def add_parser(
        self,
        name: str,
        *,
        help: str,
        description: str,
        epilog: str | None = None,
        parents: list[argparse.ArgumentParser] = ...,
        formatter_class: type[argparse.HelpFormatter] = ...,
    ) -> argparse.ArgumentParser:
        """Add a command."""
        ...


Run = Callable[[argparse.Namespace], int]


def debug_option() -> argparse.ArgumentParser:
    """The parent of every command."""
    parent = argparse.ArgumentParser(add_help=False)
    # No default: that of a subcommand would undo what was given before it.
    parent.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
    )
    return parent


def database_options() -> argparse.ArgumentParser:
    """The parent of the commands that use a database."""
    parent = argparse.ArgumentParser(add_help=False)
    parent.add_argument(
        "--url",
        metavar="ADDRESS",
        help=f"where jobs live: {ADDRESS_FORMS}; better in the environment as {URL_VARIABLE}, since ps shows arguments",
    )
    parent.add_argument("--schema", help=f"the schema of the tables, in Postgres (default: {DEFAULT_SCHEMA})")
    return parent


def store(args: argparse.Namespace, *, application_name: str = "queuert") -> StateAdapter:
    """The store that was named, as an option or in the environment.

    Raises:
        UsageError: there is none.
        ConfigurationError: the address makes no sense, or is of a store that has no schema where one was named.
    """
    return state_from_url(_address(args), application_name=application_name, **_schema(args))


def postgres(args: argparse.Namespace) -> tuple[str, str]:
    """The connection string of the Postgres that was named, and the schema.

    Raises:
        UsageError: there is none.
        ConfigurationError: the address makes no sense, or is of another store.
    """
    return postgres_from_url(_address(args), **_schema(args))


def _address(args: argparse.Namespace) -> str:
    given = args.url or os.environ.get(URL_VARIABLE)
    if not given:
        raise UsageError(f"no database is named: set {URL_VARIABLE} in the environment, or use --url ({ADDRESS_FORMS})")
    return str(given)


def _schema(args: argparse.Namespace) -> dict[str, str]:
    return {} if args.schema is None else {"schema": str(args.schema)}


def schema_name(args: argparse.Namespace) -> str:
    """The schema that was asked for, or the usual one."""
    return DEFAULT_SCHEMA if args.schema is None else str(args.schema)


def positive_int(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return value


def seconds(text: str) -> float:
    """A number of seconds, at least 0 and finite."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


# argparse names the function in its message when the text is no number at all.
positive_int.__name__ = "number"
seconds.__name__ = "number of seconds"


def current_directory_is_importable() -> None:
    """Let an application be named that lies in the current directory, as ``python -m`` does."""
    here = os.getcwd()  # noqa: PTH109  (sys.path holds strings)
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
