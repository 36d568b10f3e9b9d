"""``queuert version``."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata

from queuert.cli.options import Commands, add_command


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    add_command(
        commands,
        "version",
        run,
        help="show the version",
        description="Show the versions of Queuert and of Python.",
        parents=[debug],
    )


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
