"""What the commands share: the parser, the options of the database, and checked values."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from queuert.cli.exit_codes import MEANINGS, Exit, UsageError, exit_code_text
from queuert.errors import SchemaMissingError
from queuert.schema_names import DEFAULT_SCHEMA
from queuert.state.adapter import StateAdapter
from queuert.state.sqlite import SQLiteState
from queuert.state.sqlite.connection import MEMORY
from queuert.urls import postgres_from_url, state_from_url

URL_VARIABLE = "QUEUERT_URL"

_NESTED = re.compile(r"^ {4}([a-z-]+)(?: {2,}|\n +)(\S.*)$", re.MULTILINE)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")

POSTGRES_FORMS = "postgresql://USER@HOST:PORT/DATABASE or 'host=... dbname=...'"

ADDRESS_FORMS = f"{POSTGRES_FORMS}, redis://HOST:PORT/0, sqlite:///FILE or embedded:///DIRECTORY"


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, like all other errors."""

    def parsed(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Parse, and name the help of the command that was given arguments that it does not have."""
        found, unknown = self.parse_known_args(arguments)
        if unknown:
            self._exit(f"unrecognized arguments: {' '.join(unknown)}", getattr(found, "called", self.prog))
        return found

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with the code for wrong arguments."""
        self._exit(message, self.prog)

    def _exit(self, message: str, prog: str) -> NoReturn:
        self.exit(Exit.USAGE, f"queuert: {message} (see {prog} --help)\n")

    def format_help(self) -> str:
        """The help, with the names and the texts of nested commands in two columns.

        argparse does not count the indentation of nested commands, and puts the text of a long name on the next line.
        """
        text = super().format_help()
        width = max((len(nested[1]) for nested in _NESTED.finditer(text)), default=0)
        return _NESTED.sub(lambda nested: f"    {nested[1]:<{width}}  {nested[2]}", text)


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


def add_command(
    commands: Commands,
    name: str,
    run: Run,
    *,
    help: str,
    description: str,
    parents: Sequence[argparse.ArgumentParser],
    exit_codes: Mapping[int, str] | None = None,
) -> argparse.ArgumentParser:
    """Add a command whose help ends with its exit codes.

    Args:
        commands: where to add it.
        name: the word on the command line.
        run: runs the command and returns its exit code.
        help: one line, for the list of commands.
        description: the beginning of its own help, wrapped for 80 columns.
        parents: parsers whose options it has.
        exit_codes: what its codes mean where that differs from the usual.
    """
    parser = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=exit_code_text({**MEANINGS, **(exit_codes or {})}),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=list(parents),
    )
    parser.set_defaults(run=run, called=parser.prog)
    return parser


def debug_option() -> argparse.ArgumentParser:
    """The parent of every command."""
    parent = argparse.ArgumentParser(add_help=False)
    # No default: that of a subcommand would undo what was given before it.
    parent.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback if the command fails"
    )
    return parent


def database_options() -> argparse.ArgumentParser:
    """The parent of the commands that use a database."""
    parent = argparse.ArgumentParser(add_help=False)
    parent.add_argument(
        "--url",
        metavar="ADDRESS",
        help=f"the database: {ADDRESS_FORMS}; default: ${URL_VARIABLE}, which hides a password from ps",
    )
    parent.add_argument(
        "--schema", metavar="NAME", help=f"the Postgres schema of the tables (default: {DEFAULT_SCHEMA})"
    )
    return parent


def store(args: argparse.Namespace, *, application_name: str = "queuert") -> StateAdapter:
    """The store that an option or the environment names.

    Raises:
        UsageError: there is none.
        ConfigurationError: the address is not valid, or is of a store that has no schema where one was named.
    """
    return state_from_url(_address(args), application_name=application_name, **_schema(args))


def existing_store(args: argparse.Namespace, *, application_name: str = "queuert") -> StateAdapter:
    """The store that an option or the environment names, for commands that look at it or change what is in it.

    Raises:
        SchemaMissingError: it is a file of SQLite that does not exist, which opening it would create.

    It also raises the errors of :func:`store`.
    """
    state = store(args, application_name=application_name)
    if isinstance(state, SQLiteState) and state.path != MEMORY and not Path(state.path).exists():
        raise SchemaMissingError(
            f"the file {state.path!r} does not exist: check the address; workers and clients create the file"
        )
    return state


def postgres(args: argparse.Namespace) -> tuple[str, str]:
    """The connection string of the Postgres server, and the schema.

    Raises:
        UsageError: there is none.
        ConfigurationError: the address is not valid, or is of another store.
    """
    return postgres_from_url(_address(args), **_schema(args))


def _address(args: argparse.Namespace) -> str:
    given = args.url or os.environ.get(URL_VARIABLE)
    if not given:
        raise UsageError(f"no database given: set {URL_VARIABLE} in the environment, or pass --url ({ADDRESS_FORMS})")
    return str(given)


def _schema(args: argparse.Namespace) -> dict[str, str]:
    return {} if args.schema is None else {"schema": str(args.schema)}


def schema_name(args: argparse.Namespace) -> str:
    """The schema that --schema names, or the default."""
    return DEFAULT_SCHEMA if args.schema is None else str(args.schema)


def positive_int(text: str) -> int:
    """An integer of 1 or more."""
    return integer(text, minimum=1)


def integer(text: str, *, minimum: int, maximum: int | None = None) -> int:
    """An integer within bounds, both included."""
    value = int(text) if _INTEGER.fullmatch(text.strip()) else None
    if value is None or value < minimum or (maximum is not None and value > maximum):
        bounds = f"of {minimum} or more" if maximum is None else f"from {minimum} to {maximum}"
        raise argparse.ArgumentTypeError(f"must be an integer {bounds}, got {text}")
    return value


def seconds(text: str) -> float:
    """A finite number of seconds, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 or more, got {text}")
    return value


def positive_seconds(text: str) -> float:
    """A finite number of seconds above 0."""
    value = seconds(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text}")
    return value


def port(text: str) -> int:
    """A port of TCP; 0 lets the system choose one."""
    return integer(text, minimum=0, maximum=65_535)


def current_directory_is_importable() -> None:
    """Make modules in the current directory importable, as ``python -m`` does."""
    here = os.getcwd()  # noqa: PTH109  (sys.path holds strings)
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
