"""``queuert version``."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata

from queuert.cli.options import Commands


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "version", help="show the version", description="Show the version of Queuert and of Python.", parents=[debug]
    )
    parser.set_defaults(run=run)


def text() -> str:
    """The version in one line."""
    try:
        number = metadata.version("queuert")
    except metadata.PackageNotFoundError:
        number = "(not installed: running from its sources)"
    return f"queuert {number} (Python {platform.python_version()})"


def run(args: argparse.Namespace) -> int:
    """Print the version."""
    print(text())
    return 0
