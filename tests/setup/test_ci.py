"""What a build server runs: both parts though one fails, and all that the tests need as far as it can be installed."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / ".ci" / "run"

MAKEFILE = """
check:
\t@echo checked; exit $(CHECK)
test:
\t@echo tested; exit $(TEST)
"""

TOOLS = ("bash", "make", "sh", "dirname", "env", "cat", "echo", "printf")
PROGRAMS = ("pgbouncer", "redis-server", "openssl", "promtool")


class Machine:
    """A directory with a Makefile of its own, and a PATH with nothing but the basic tools and what a test adds."""

    def __init__(self, path: Path) -> None:
        self.root, self.bin = path / "root", path / "bin"
        (self.root / ".ci").mkdir(parents=True)
        self.bin.mkdir()
        self.log = path / "log"
        shutil.copy(RUN, self.root / ".ci" / "run")
        (self.root / "Makefile").write_text(MAKEFILE)
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            (self.bin / tool).symlink_to(found)
        self.add("id", "echo 0")

    def add(self, program: str, script: str) -> None:
        """A program that writes its arguments down."""
        path = self.bin / program
        path.write_text(f'#!{shutil.which("sh")}\necho "{program} $*" >>{self.log}\n{script}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, check: int = 0, test: int = 0) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.bin), "CHECK": str(check), "TEST": str(test), "SBIN": str(self.bin)}
        environment |= {name: os.environ[name] for name in ("TMPDIR",) if name in os.environ}
        command = [str(self.bin / "bash"), str(self.root / ".ci" / "run")]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    def calls(self, program: str) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(program)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(("check", "test"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_both_parts_run_and_either_fails_the_run(machine: Machine, check: int, test: int) -> None:
    for program in PROGRAMS:
        machine.add(program, "exit 0")
    done = machine.run(check, test)
    assert done.stdout.index("checked") < done.stdout.index("tested")
    assert (done.returncode != 0) == bool(check or test)
    assert ("ci: failed: make check" in done.stderr, "ci: failed: make test" in done.stderr) == (check == 1, test == 1)


def test_what_is_missing_is_installed(machine: Machine) -> None:
    machine.add("openssl", "exit 0")
    machine.add("apt-get", "exit 0")
    assert machine.run().returncode == 0
    called = " ".join(machine.calls("apt-get"))
    assert "update" in called
    assert "pgbouncer" in called
    assert "redis-server" in called
    assert "openssl" not in called


@pytest.mark.parametrize("how", ["no apt-get", "apt-get fails", "no root and no sudo", "sudo wants a password"])
def test_the_run_goes_on_without_what_cannot_be_installed(machine: Machine, how: str) -> None:
    if how != "no apt-get":
        machine.add("apt-get", "exit 100")
    if "root" in how or "sudo" in how:
        machine.add("id", "echo 1000")
    if how == "sudo wants a password":
        machine.add("sudo", "exit 1")
    done = machine.run()
    assert done.returncode == 0
    assert "tested" in done.stdout
    assert "ci: not installed" in done.stdout or "ci: apt-get could not install" in done.stdout
