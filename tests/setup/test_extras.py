"""Without the packages of an extra, what needs them says how to get them, and all else works."""

from __future__ import annotations

import subprocess
import sys

import pytest

from queuert.optional_packages import needing_extras

PROGRAM = """
import sys

class Hidden:
    def find_spec(self, name, path, target=None):
        if name == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
import queuert, queuert.spark, queuert.urls
try:
    {use}
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("package", "use", "extra"),
    [
        ("redis", "from queuert.state.redis import RedisState", "redis"),
        ("redis", "from queuert.notify.redis import RedisNotify", "redis"),
        ("pyspark", "from queuert.spark import register", "spark"),
        ("prometheus_client", "from queuert.observability.prometheus import PrometheusMetrics", "prometheus"),
        # The extra "otel" installs a part of these as well.
        ("opentelemetry.exporter", "from queuert.observability.prometheus import PrometheusMetrics", "prometheus"),
        (
            "opentelemetry.sdk",
            "with queuert.optional_packages.needing_extras(): import opentelemetry.sdk.trace",
            "otel",
        ),
    ],
)
def test_what_is_missing_is_named(package: str, use: str, extra: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(package=package, use=use)], capture_output=True, text=True, check=True
    )
    message = f"the package {package!r} is not installed: pip install 'queuert[{extra}]'"
    assert found.stdout == f"ModuleNotFoundError {message}\n"


def test_what_no_extra_brings_is_left_as_it_is() -> None:
    missing = ModuleNotFoundError("No module named 'cronsim'", name="cronsim")
    with pytest.raises(ModuleNotFoundError) as raised, needing_extras():
        raise missing
    assert raised.value is missing


NO_LIBPQ = "ImportError('no pq wrapper available.\\nAttempts made:\\n- libpq library not found')"


@pytest.mark.parametrize("command", [["stats"], ["migrate", "status"], ["chains", "list"]])
@pytest.mark.parametrize(
    ("package", "failure"),
    [
        ("psycopg", "ModuleNotFoundError('No module named psycopg', name='psycopg')"),
        ("psycopg_pool", "ModuleNotFoundError('No module named psycopg_pool', name='psycopg_pool')"),
        ("psycopg.pq", NO_LIBPQ),
    ],
)
def test_a_command_that_needs_postgres_says_what_to_install(command: list[str], package: str, failure: str) -> None:
    program = f"""
import sys

class Hidden:
    def find_spec(self, name, path, target=None):
        if name == {package!r}:
            raise {failure}

sys.meta_path.insert(0, Hidden())
from queuert.cli import main
sys.exit(main({[*command, "--url", "postgresql://127.0.0.1:1/x"]!r}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    remedy = "Postgres needs psycopg with its pool and a libpq: pip install 'psycopg[binary,pool]'"
    assert done.stderr == f"queuert: {remedy}\n"
    assert done.returncode == 3
