"""``queuert health``."""

from pathlib import Path

import pytest

from queuert.cli import main
from queuert.worker.health import Health, keep_health_file


async def no_pause(seconds: float) -> None:
    """Return at once."""


async def write(path: Path, *failing: str, stopping: bool = False) -> None:
    await keep_health_file(path, lambda: Health("worker-1", 3, stopping, failing), no_pause)


async def test_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "health.json"
    await write(path)
    assert main(["health", "--file", str(path)]) == 0
    assert capsys.readouterr().out == "healthy: worker worker-1, 3 running\n"


async def test_stopping_is_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "health.json"
    await write(path, stopping=True)
    assert main(["health", "--file", str(path)]) == 0
    assert "stopping" in capsys.readouterr().out


async def test_loops_that_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "health.json"
    await write(path, "claimer")
    assert main(["health", "--file", str(path)]) == 1
    assert "claimer" in capsys.readouterr().out


async def test_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "health.json"
    await write(path)
    assert main(["health", "--file", str(path), "--stale-after", "0"]) == 1
    assert "seconds old" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "", "{}", "[1]", '{"worker": 1}'])
def test_no_health_file(content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "health.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert main(["health", "--file", str(path)]) == 1
    assert capsys.readouterr().out.count("\n") == 1
