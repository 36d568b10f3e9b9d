"""``queuert health``."""

import json
import os
import time
from pathlib import Path

import pytest

from queuert.cli import main
from queuert.errors import ConfigurationError
from queuert.worker import health as health_module
from queuert.worker.health import Health, keep_health_file, remove_health_file


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


# --- what others can do to the directory, and to the clock ------------------------------------------------------------


async def test_what_is_written_goes_through_no_symbolic_link(tmp_path: Path) -> None:
    """Not where the file is made before it gets its name: that is easily guessed."""
    path, other = tmp_path / "health.json", tmp_path / "other"
    other.write_text("precious", encoding="utf-8")
    path.with_name(f"{path.name}.{os.getpid()}").symlink_to(other)
    await write(path)
    assert other.read_text(encoding="utf-8") == "precious"
    assert path.is_file()
    assert not path.is_symlink()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["health.json", "other"]


@pytest.mark.parametrize("kind", ["link", "dangling", "directory", "pipe"])
async def test_what_is_no_regular_file_is_neither_replaced_nor_read_nor_removed(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, good = tmp_path / "health.json", tmp_path / "good.json"
    await write(good)
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(good if kind == "link" else tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="regular file"):
        await write(path)
    assert main(["health", "--file", str(path)]) == 1
    assert "unhealthy" in capsys.readouterr().out
    remove_health_file(path)
    assert os.path.lexists(path)
    assert good.exists()


async def test_a_file_of_another_user_is_neither_replaced_nor_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "health.json"
    await write(path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ConfigurationError, match="belong to this user"):
        await write(path)
    assert main(["health", "--file", str(path)]) == 1
    assert "belong to this user" in capsys.readouterr().out


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
async def test_a_clock_that_is_set_makes_no_worker_stale_or_fresh(
    jump: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "health.json"
    await write(path)
    real, monotonic = time.time, time.monotonic
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    assert main(["health", "--file", str(path)]) == 0
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 31.0)
    assert main(["health", "--file", str(path)]) == 1


@pytest.mark.parametrize("change", [{"boot": "another"}, {"monotonic": 1e12}])
async def test_a_file_of_before_the_machine_started_is_stale(
    change: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "health.json"
    await write(path)
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    assert main(["health", "--file", str(path)]) == 1
    assert "before this machine started" in capsys.readouterr().out


async def test_a_file_of_an_older_version_is_judged_by_the_clock(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    await write(path)
    stored = json.loads(path.read_text(encoding="utf-8"))
    del stored["monotonic"], stored["boot"]
    path.write_text(json.dumps(stored), encoding="utf-8")
    assert main(["health", "--file", str(path)]) == 0
    path.write_text(json.dumps({**stored, "written_at": time.time() - 31}), encoding="utf-8")
    assert main(["health", "--file", str(path)]) == 1
    assert health_module.STALE_AFTER == 30
