"""``queuert version``."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata

from queuert.cli.options import Commands, add_command
from queuert.cli.output import print_json


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "version",
        run,
        help="show the version",
        description="Show the versions of Queuert and of Python.",
        parents=[debug],
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def text() -> str:
    """The version in one line."""
    return f"queuert {_number() or '(not installed: running from its sources)'} (Python {platform.python_version()})"


def _number() -> str | None:
    """The version of the installed package, if it is installed."""
    try:
        return metadata.version("queuert")
    except metadata.PackageNotFoundError:
        return None


def run(args: argparse.Namespace) -> int:
    """Print the version."""
    if args.json:
        print_json({"queuert": _number(), "python": platform.python_version()})
    else:
        print(text())
    return 0
