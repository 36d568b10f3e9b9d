"""The check of words refuses what the glossary has retired, and nothing else."""

from pathlib import Path

import pytest

from scripts import check_words


@pytest.mark.parametrize(
    ("name", "line", "word"),
    [
        ("m.py", "def read_hints(): ...", "read_hints"),
        ("m.py", "class LeaseKeeper: ...", "LeaseKeeper"),
        ("m.py", "value = _asked", "_asked"),
        ("m.sql", "SELECT ending FROM job", "ending"),
        ("m.lua", "local told = 1", "told"),
    ],
)
def test_a_retired_identifier_is_refused(name: str, line: str, word: str) -> None:
    [problem] = check_words.problems_of(name, f"\n{line}\n")
    assert problem.startswith(f"{name}:2: {word}: instead of ")


@pytest.mark.parametrize(
    ("name", "line", "phrase"),
    [
        ("m.py", "# The worker gives back the job.", "gives back"),
        ("m.py", '"""Two colours of the same."""', "colours"),
        ("m.py", 'raise ValueError(f"{1} jobs put off")', "put off"),
        ("m.sql", "-- A hint for workers.", "hint"),
        ("m.lua", "-- The sweeper deletes these.", "sweeper"),
        ("m.md", "Chains are retired by their type.", "retired"),
    ],
)
def test_a_retired_phrase_is_refused(name: str, line: str, phrase: str) -> None:
    [problem] = check_words.problems_of(name, f"\n{line}\n")
    assert problem.startswith(f"{name}:2: instead of {phrase!r} write ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.py", 'def prune(jobs):\n    """Deletes the chains beyond retention."""  # in pages\n'),
        ("m.py", "from typing import get_type_hints\n"),
        ("m.py", '"""Reads `hints`, and ``job.ending`` of older versions."""\n'),
        ("m.sql", "SELECT id FROM job -- the column `told` is gone\n"),
        ("m.md", "The worker releases the job.\n\nOlder versions have `give back` and ``hints``.\n"),
        ("m.md", "```python\nhints = 1  # a hint\n```\n"),
    ],
)
def test_a_clean_text_passes(name: str, text: str) -> None:
    assert check_words.problems_of(name, text) == []


def test_problems_are_reported_and_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.md").write_text("A notification.\n")
    (tmp_path / "bad.md").write_text("A hint.\n")
    monkeypatch.setattr(check_words, "ROOT", tmp_path)
    monkeypatch.setattr(check_words, "files", lambda: ["good.md", "bad.md"])
    monkeypatch.setattr("sys.argv", ["check_words.py"])
    assert check_words.main() == 1
    assert capsys.readouterr().err == "check_words: bad.md:1: instead of 'hint' write notification\n"
    monkeypatch.setattr("sys.argv", ["check_words.py", "good"])
    assert check_words.main() == 0
