"""The processes of a run: workers and clients, by role."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def run(role: str, settings: dict[str, Any]) -> int:
    """Run as a worker or a client until it is finished; return the exit code."""
    from queuert.testing.chaos import client, stacks, steady_client, worker

    stacks.tell_on_signals()
    roles = {"worker": worker.main, "client": client.main, "steady client": steady_client.main}
    return roles[role](settings)


def preload() -> None:
    """Import the modules of both roles, so that forks have them."""
    importlib.import_module("queuert.testing.chaos.client")
    importlib.import_module("queuert.testing.chaos.steady_client")
    importlib.import_module("queuert.testing.chaos.worker")
    importlib.import_module("queuert.testing.chaos.stacks")


def main() -> int:
    """Run the role that the arguments name, with its settings as JSON."""
    return run(sys.argv[1], json.loads(sys.argv[2]))
