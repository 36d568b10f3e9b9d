"""What a run needs before the first process starts, made in order, and undone in the opposite order."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from queuert.cli.exit_codes import PrerequisiteError
from queuert.cli.options import URL_VARIABLE
from queuert.demo.database import Database
from queuert.demo.settings import LEASE_VARIABLE, SCHEMA, DemoSettings
from queuert.embedded import EmbeddedPostgres
from queuert.embedded.workspace import Workspace
from queuert.spark.java import JavaHome, JavaMissingError, find_java


@dataclass(frozen=True, slots=True)
class Stage:
    """The directory for logs and reports, the database, and the environment of the children."""

    workspace: Path
    database: Database
    environment: dict[str, str]
    how_to_look: str
    """What to do with what ``--keep`` left."""


def find_prerequisites(settings: DemoSettings) -> JavaHome | None:
    """See that Spark can run, before anything is started; None without Spark.

    Raises:
        PrerequisiteError: pyspark is not installed, or there is no Java that it runs on.
    """
    if not settings.spark:
        return None
    if find_spec("pyspark") is None:
        raise PrerequisiteError("Spark is not installed: pip install 'queuert[spark]', or add --no-spark")
    try:
        return find_java()
    except JavaMissingError as error:
        raise PrerequisiteError(f"{error}; or add --no-spark") from error


def set_up(settings: DemoSettings, java: JavaHome | None, stack: ExitStack) -> Stage:
    """Make the directory, the database and its tables; ``stack`` undoes it."""
    workspace = _workspace(settings, stack)
    url = settings.url or _own_postgres(settings, workspace, stack)
    database = stack.enter_context(Database(url))
    database.require_absent()
    if not settings.keep:
        stack.callback(database.drop)
    database.create()
    look = _on_given_database() if settings.url else _on_own_postgres(workspace)
    return Stage(workspace, database, _environment(settings, url, java, workspace), look)


def _workspace(settings: DemoSettings, stack: ExitStack) -> Path:
    if settings.keep:
        path = Path(tempfile.mkdtemp(prefix="queuert-demo-"))
        # Postgres may have to run as somebody else, who must get through.
        path.chmod(0o711)
        return path
    workspace = Workspace(in_memory=False)
    stack.callback(workspace.remove)
    return workspace.path


def _own_postgres(settings: DemoSettings, workspace: Path, stack: ExitStack) -> str:
    data_dir = workspace / "postgres" if settings.keep else None
    return stack.enter_context(EmbeddedPostgres(data_dir)).dsn()


def _environment(settings: DemoSettings, url: str, java: JavaHome | None, workspace: Path) -> dict[str, str]:
    temporary = workspace / "tmp"
    temporary.mkdir()
    return {
        **os.environ,
        URL_VARIABLE: url,
        LEASE_VARIABLE: str(settings.lease),
        # Old sources are full of what newer parsers warn of.
        "PYTHONWARNINGS": "ignore",
        # What Spark leaves behind goes with the workspace, even when it is killed.
        "TMPDIR": str(temporary),
        "SPARK_LOCAL_DIRS": str(temporary),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        **({} if java is None else {"JAVA_HOME": str(java.path)}),
    }


def remove_temporary(stage: Stage) -> None:
    """Remove what only the processes needed, where the rest is kept."""
    shutil.rmtree(stage.workspace / "tmp", ignore_errors=True)


def _on_given_database() -> str:
    return (
        f"kept: schema {SCHEMA} in your database (tables job, effect, source_file, symbol, imported)\n"
        f"  remove it with: DROP SCHEMA {SCHEMA} CASCADE"
    )


def _on_own_postgres(workspace: Path) -> str:
    code = (
        "from queuert.embedded import EmbeddedPostgres as P; "
        f's = P({str(workspace / "postgres")!r}).start(); input(s.dsn() + "  (Enter stops it) "); s.close()'
    )
    return (
        f"kept: {workspace} (the server's data, the logs, the report)\n"
        f"  start the server with: {shlex.quote(sys.executable)} -c {shlex.quote(code)}\n"
        f"  and look at the schema {SCHEMA} with psql (tables job, effect, source_file, symbol, imported)"
    )
