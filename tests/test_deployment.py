"""The deployment files agree with the command line, and with what they promise."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from queuert.cli import build_parser
from queuert.worker.health import STALE_AFTER, WRITE_INTERVAL

ROOT = Path(__file__).resolve().parent.parent
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "Dockerfile"

SERVICES = ("postgres", "redis", "migrate", "worker", "spark-master", "spark-worker")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services of the compose file, as it is written."""
    services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    return services


def seconds(text: str) -> float:
    """The seconds in ``45s`` or ``1m``."""
    number, unit = re.fullmatch(r"(\d+)([sm])", text).groups()  # type: ignore[union-attr]
    return int(number) * (60 if unit == "m" else 1)


def worker_arguments(services: dict[str, Any]) -> Any:
    """What our parser makes of the worker's command."""
    return build_parser().parse_args([str(word) for word in services["worker"]["command"]])


def test_all_services_are_there(services: dict[str, Any]) -> None:
    assert tuple(services) == SERVICES


def test_every_command_of_ours_parses(services: dict[str, Any]) -> None:
    ours = [service["command"] for service in services.values() if service.get("build") == "."]
    assert len(ours) == 2
    for command in ours:
        build_parser().parse_args([str(word) for word in command])


def test_the_container_outlives_the_grace(services: dict[str, Any]) -> None:
    after_the_grace = 2 * 2.0  # handlers that were cancelled have two seconds, and giving their jobs back has two
    shutdown_timeout = worker_arguments(services).shutdown_timeout
    assert shutdown_timeout is not None
    assert seconds(services["worker"]["stop_grace_period"]) > shutdown_timeout + after_the_grace


def test_the_health_check_reads_the_file_that_the_worker_writes(services: dict[str, Any]) -> None:
    kind, program, *arguments = services["worker"]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "queuert")
    health = build_parser().parse_args(arguments)
    assert health.command == "health"
    assert health.file == worker_arguments(services).health_file
    assert WRITE_INTERVAL < health.stale_after <= STALE_AFTER


def test_the_health_file_can_be_written_in_a_read_only_container(services: dict[str, Any]) -> None:
    worker = services["worker"]
    writable = {Path(entry.partition(":")[0]) for entry in worker["tmpfs"]}
    assert worker["read_only"] is True
    assert worker_arguments(services).health_file.parent in writable


def test_workers_start_when_the_schema_is_there(services: dict[str, Any]) -> None:
    assert services["worker"]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert services["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert services["migrate"]["command"] == ["migrate", "up"]


def test_there_are_two_workers(services: dict[str, Any]) -> None:
    assert services["worker"]["deploy"]["replicas"] == 2
    assert "container_name" not in services["worker"]


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "migrate"])
def test_what_runs_on_comes_back_and_is_limited(name: str, services: dict[str, Any]) -> None:
    assert services[name]["restart"] == "unless-stopped"
    limits = services[name]["deploy"]["resources"]["limits"]
    assert float(limits["cpus"]) > 0
    assert re.fullmatch(r"\d+[mg]", limits["memory"])


def test_redis_keeps_what_it_is_given(services: dict[str, Any]) -> None:
    command = services["redis"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"


def test_no_secret_is_in_the_file(services: dict[str, Any]) -> None:
    for service in services.values():
        for name, value in service.get("environment", {}).items():
            if "PASSWORD" in name:
                assert value.startswith("${POSTGRES_PASSWORD:?")
    addresses = [service["environment"]["QUEUERT_URL"] for service in (services["worker"], services["migrate"])]
    assert all("password" not in address and "@" not in address for address in addresses)


def test_spark_is_of_the_drivers_version(services: dict[str, Any]) -> None:
    pinned = re.search(r"^pyspark==(\S+)", (ROOT / "requirements" / "demo.txt").read_text("utf-8"), re.MULTILINE)
    assert pinned is not None
    for name in ("spark-master", "spark-worker"):
        assert f":-{pinned[1]}-" in services[name]["image"]


def test_compose_accepts_it() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker compose is not installed")
    given = {**os.environ, "POSTGRES_PASSWORD": "p@ss:word/%", "QUEUERT_APP": "app.jobs:processors"}
    command = [docker, "compose", "--file", str(COMPOSE), "config", "--quiet"]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    missing = {name: value for name, value in given.items() if name != "POSTGRES_PASSWORD"}
    assert subprocess.run(command, env=missing, capture_output=True, check=False).returncode != 0


# --- Dockerfile -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, with their continuation lines."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(line[0], line[1]) for line in lines]


def final_stage(instructions: list[tuple[str, str]]) -> dict[str, str]:
    """The last of each instruction after the last FROM."""
    start = max(place for place, (name, _) in enumerate(instructions) if name == "FROM")
    return dict(instructions[start:])


def test_signals_reach_the_worker(instructions: list[tuple[str, str]]) -> None:
    assert final_stage(instructions)["ENTRYPOINT"] == '["queuert"]'


def test_it_does_not_run_as_root(instructions: list[tuple[str, str]]) -> None:
    assert int(final_stage(instructions)["USER"]) > 0


def test_what_is_installed_is_checked_by_its_hash(instructions: list[tuple[str, str]]) -> None:
    steps = [step.strip() for name, text in instructions if name == "RUN" for step in text.split("&&")]
    installs = [step for step in steps if re.search(r"pip (install|wheel)", step)]
    assert len(installs) == 4
    assert all("--require-hashes" in step or "--no-deps" in step for step in installs)


def copied(instructions: list[tuple[str, str]]) -> list[str]:
    """What is copied into the image from the tree."""
    groups = [text.split()[:-1] for name, text in instructions if name == "COPY" and "--from" not in text]
    return [source for group in groups for source in group]


def test_everything_that_is_copied_exists_and_is_not_ignored(instructions: list[tuple[str, str]]) -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    sources = copied(instructions)
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert source.partition("/")[0] in allowed


def test_what_is_copied_makes_a_wheel(instructions: list[tuple[str, str]], tmp_path: Path) -> None:
    """No more than that is there when the image is built, so that a file that the metadata names may be missing."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for source in copied(instructions):
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, tree / source, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, tree)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {"pytest_queuert.py", "pyspark_queuert.py", "queuert/_migrations/env.py"} <= set(archive.namelist())


def test_every_pinned_requirement_of_the_worker_has_a_hash() -> None:
    text = (ROOT / "requirements" / "worker.txt").read_text("utf-8").replace("\\\n", " ")
    pins = [line for line in text.splitlines() if "==" in line and not line.lstrip().startswith("#")]
    assert {"alembic", "psycopg-binary", "pydantic", "redis"} <= {pin.partition("==")[0] for pin in pins}
    assert all("--hash=sha256:" in pin for pin in pins)
