"""Commands on stores of every kind, by address."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queuert import Client, JobType, JobTypes
from queuert.cli import main

work = JobType("work", input=int, output=int)


def listed(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """The ids of the chains that the command lists."""
    assert main(["chains", "list", "--json", *options]) == 0
    return [chain["id"] for chain in json.loads(capsys.readouterr().out)["items"]]


@pytest.mark.every_case
@pytest.mark.parametrize("kind", ["dsn", "redis_url", "sqlite"])
def test_chains_are_listed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/queue.db" if kind == "sqlite" else request.getfixturevalue(kind)
    with Client.from_url(url, JobTypes(work)) as client:
        chain = client.start_chain(work, 1)
    assert listed(capsys, "--url", url) == [chain.id]


def test_the_environment_may_name_a_store(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{redis_url}?namespace=shop"
    with Client.from_url(url, JobTypes(work)) as client:
        chain = client.start_chain(work, 1)
    monkeypatch.setenv("QUEUERT_URL", url)
    assert listed(capsys) == [chain.id]


def test_a_schema_may_be_named_in_the_address(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "up", "--url", f"{dsn}?schema=mine"]) == 0
    assert "schema mine is at revision" in capsys.readouterr().out
    assert main(["migrate", "status", "--url", dsn, "--schema", "mine"]) == 0
    capsys.readouterr()
    assert listed(capsys, "--url", f"{dsn}?schema=mine", "--schema", "mine") == []


def test_two_schemas_are_one_too_many(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chains", "list", "--url", f"{dsn}?schema=mine", "--schema", "yours"]) == 2
    assert "must have one value" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["redis://localhost", "sqlite://"])
def test_what_only_postgres_has_is_refused_elsewhere(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "up", "--url", url]) == 2
    assert "migrations" in capsys.readouterr().err
    assert main(["chains", "list", "--url", url, "--schema", "s"]) == 2
    assert "schema" in capsys.readouterr().err
