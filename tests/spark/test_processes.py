"""What is done once in each of Spark's processes of Python."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.spark.conftest import ROOT

pytestmark = [pytest.mark.spark]

PROGRAM = """
import gc, os
from tests.spark import read_support

def searched(thing):
    return any(one is thing for one in gc.get_objects())

read_support.read_plainly(os.environ["DSN"])
late = [[]]
read_support.read_plainly(os.environ["DSN"])
print(searched(vars(read_support)), searched(late))
"""


@pytest.mark.parametrize(("reused", "searched"), [("1", "False True"), ("", "True True")])
def test_what_is_loaded_is_not_searched_after_each_task(dsn: str, reused: str, searched: str) -> None:
    """Only in a process that Spark uses again, and once: what comes later is searched."""
    environment = {**os.environ, "DSN": dsn, **({"SPARK_REUSE_WORKER": reused} if reused else {})}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=True)
    assert done.stdout.strip() == searched
