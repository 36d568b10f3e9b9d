"""What is installed is pinned by hashes; what bandit finds is argued; what cannot be audited is said."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_everything_is_pinned_with_hashes(path: Path) -> None:
    pins = re.split(r"\n(?=\S)", path.read_text(encoding="utf-8").strip())
    loose = [pin.splitlines()[0] for pin in pins if not pin.startswith(("#", " ")) and not _is_pinned(pin)]
    assert loose == []


def _is_pinned(pin: str) -> bool:
    return re.match(r"[\w.-]+(\[[\w,.-]+\])?==\S+", pin) is not None and "--hash=sha256:" in pin


def test_bandit_is_requested_in_make_check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A finding that nobody has argued is an error, and so is a reason without its finding."""
    from scripts import check_security

    found = {"test_id": "B307", "filename": "queuert/x.py", "line_number": 3, "issue_text": "eval"}
    done = subprocess.CompletedProcess([], 1, json.dumps({"errors": [], "results": [found]}), "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert check_security.main() == 1
    reported = capsys.readouterr().out
    assert "queuert/x.py:3: B307 eval" in reported
    assert "queuert/embedded/workspace.py: B108 is argued" in reported
    assert "check_security.py" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_what_could_not_be_audited_is_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here pip-audit is not even installed: the script says that nothing was learnt."""
    from scripts import audit

    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "x.txt").write_text("one==1 \\\n    --hash=sha256:00\n    # via two\ntwo==2\n")
    monkeypatch.setattr(audit, "ROOT", tmp_path)
    reported, requested, unknown = audit.audit(tmp_path / "requirements" / "x.txt")
    assert (reported, requested, unknown) == ([], 0, 2)
    assert audit.main() == audit.UNKNOWN
