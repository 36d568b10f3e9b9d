"""Sessions: their settings, and the Java that they find."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from queuert.spark.java import find_java
from queuert.spark.session import LOCAL_SETTINGS, SETTINGS, configure, prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = find_java()
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "/nowhere")
    prepare_environment()
    assert Path(os.environ["JAVA_HOME"], "bin", "java").exists()
    assert os.environ["PYSPARK_PYTHON"] == "/nowhere"
    assert find_java().major == found.major


@pytest.mark.spark
def test_a_local_session_on_the_java_that_is_found(spark: SparkSession) -> None:
    """That of all these tests; ``test_programs.py`` has one on the Java that pip installs."""
    jvm: Any = spark._jvm
    assert int(jvm.java.lang.System.getProperty("java.version").split(".")[0]) == find_java().major
    assert {name: spark.sparkContext.getConf().get(name) for name in SETTINGS} == {**SETTINGS}
