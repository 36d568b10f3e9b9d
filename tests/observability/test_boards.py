"""Alerts and boards: tested by Prometheus's own tool, and explained by Postgres."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo

from queuert import Client, JobType, JobTypes, PostgresState
from queuert.cli import main
from queuert.cli.boards import shipped
from queuert.observability.metrics import METRICS, Kind
from queuert.run_at import after
from queuert.schedules import RecurringSchedule
from queuert.state.postgres.roles import Role, grant_roles, role_names
from scripts.check_docs import ROOT, anchors

ALERTS: list[dict[str, Any]] = yaml.safe_load(shipped("alerts.yaml"))["groups"][0]["rules"]
CASES = Path(__file__).with_name("alerts_test.yaml")
BOARDS = {name: json.loads(shipped(f"{name}.json")) for name in ("prometheus", "postgres")}


@pytest.fixture
def promtool() -> str:
    """Prometheus's own tool."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return found


def panels(board: str) -> list[dict[str, Any]]:
    return [panel for panel in BOARDS[board]["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """All of PromQL, by the name of its alert or panel."""
    for alert in ALERTS:
        yield alert["alert"], alert["expr"]
    for panel in panels("prometheus"):
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m").replace("$type", ".*")


EXPRESSIONS = list(expressions())
SHOWN = {
    f"{metric.prometheus_name}{suffix}": metric
    for metric in METRICS
    for suffix in (("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",))
}


# --- alerts -----------------------------------------------------------------------------------------------------------


def test_alerts_fire_and_stay_silent(promtool: str, tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text(shipped("alerts.yaml"), encoding="utf-8")
    shutil.copy(CASES, tmp_path)
    done = subprocess.run(
        [promtool, "test", "rules", CASES.name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_case_that_does_not_hold_fails(promtool: str, tmp_path: Path) -> None:
    changed = shipped("alerts.yaml").replace("> 300", "> 300000")
    (tmp_path / "alerts.yaml").write_text(changed, encoding="utf-8")
    shutil.copy(CASES, tmp_path)
    done = subprocess.run([promtool, "test", "rules", CASES.name], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode != 0


def test_each_alert_has_a_case_that_fires_and_one_that_is_silent() -> None:
    cases = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test["alert_rule_test"]]
    names = {alert["alert"] for alert in ALERTS}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == names
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == names


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_each_alert_names_its_paragraph(alert: dict[str, Any]) -> None:
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    assert anchor == alert["alert"].lower()
    assert anchor in anchors((ROOT / page).read_text(encoding="utf-8"))
    assert alert["labels"]["severity"] in ("warning", "critical")
    assert alert["annotations"]["summary"]


# --- PromQL -----------------------------------------------------------------------------------------------------------


def test_every_expression_is_parsed(promtool: str, tmp_path: Path) -> None:
    rules = [{"record": f"expression:{number}", "expr": expr} for number, (_, expr) in enumerate(EXPRESSIONS)]
    path = tmp_path / "expressions.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}), encoding="utf-8")
    done = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(EXPRESSIONS)} rules found" in done.stdout


@pytest.mark.parametrize(("name", "expr"), EXPRESSIONS)
def test_every_expression_is_of_metrics_and_attributes_that_exist(name: str, expr: str) -> None:
    code = re.sub(r'"[^"]*"', '""', expr)
    labels = {attribute.replace(".", "_") for metric in METRICS for attribute in metric.attributes}
    words = set(re.findall(r"\bqueuert_\w+", code))
    used = words & SHOWN.keys()
    assert used, name
    assert words - used <= labels
    of_used = {attribute.replace(".", "_") for word in used for attribute in SHOWN[word].attributes}
    assert words - used <= of_used, name


# --- boards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOARDS)
def test_the_panels_of_a_board_do_not_overlap(name: str) -> None:
    board = BOARDS[name]
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert set(re.findall(r"\$\{(\w+)\}", json.dumps(board))) <= variables


def test_boards_and_alerts_are_exported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "export"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["groups"][0]["rules"] == ALERTS
    assert main(["grafana", "export"]) == 0
    assert json.loads(capsys.readouterr().out) == BOARDS["prometheus"]
    assert main(["grafana", "export", "--datasource", "postgres", "--schema", "billing"]) == 0
    exported = capsys.readouterr().out
    assert "FROM billing.metric_jobs" in exported
    assert "FROM queuert." not in exported
    assert main(["grafana", "export", "--schema", "no; DROP"]) == 2
    assert "schema must be" in capsys.readouterr().err


# --- SQL --------------------------------------------------------------------------------------------------------------


def statement(text: str) -> str:
    """A panel's statement with the macros of Grafana filled in."""
    text = re.sub(r"\$__timeFilter\((\w+)\)", r"\1 BETWEEN now() - interval '1 hour' AND now()", text)
    return re.sub(r"\$__timeGroupAlias\((\w+), '1m'\)", r"date_trunc('minute', \1) AS time", text)


@pytest.fixture
def observer(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection with the rights of the observer role, and no others."""
    names = role_names()
    grant_roles(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'SET ROLE "{names[Role.OBSERVER]}"'.encode())
        yield connection


work = JobType("work", input=int, output=int)
other = JobType("other", input=int, output=int)


def test_every_statement_runs_as_the_observer(dsn: str, observer: psycopg.Connection[Any]) -> None:
    with Client(PostgresState(dsn), JobTypes(work)) as client:
        client.start_chain(work, 1)
    statements = [statement(target["rawSql"]) for panel in panels("postgres") for target in panel["targets"]]
    assert len(statements) == len(panels("postgres")) > 5
    for text in statements:
        assert "$" not in text
        observer.execute(f"EXPLAIN {text}".encode())
        observer.execute(text.encode())


def test_the_views_show_what_the_client_counts(dsn: str, observer: psycopg.Connection[Any]) -> None:
    with Client(PostgresState(dsn), JobTypes(work, other)) as client:
        first = client.start_chain(work, 1)
        client.start_chain(work, 2, run_at=after(hours=1))
        client.start_chain(work, 3, blockers=[first])
        client.cancel_chains([client.start_chain(other, 4)])
        client.put_schedules([RecurringSchedule("often", other, 1, every=3600)])
        counted = {(one.type, one.status.value): one.count for one in client.count_jobs()}
    found = observer.execute("SELECT type, status, jobs FROM queuert.metric_jobs").fetchall()
    assert {(type, status): jobs for type, status, jobs in found} == counted
    assert counted["work", "ready"] == counted["work", "scheduled"] == counted["work", "blocked"] == 1
    assert observer.execute("SELECT name, delay_seconds FROM queuert.metric_schedules").fetchall() == [("often", 0.0)]
    assert observer.execute("SELECT lag_seconds FROM queuert.metric_event_log").fetchall() == [(0.0,)]
    assert observer.execute("SELECT count(*) FROM queuert.metric_workers").fetchall() == [(0,)]


def test_the_gauges_of_the_database_are_the_observers(dsn: str, observer: psycopg.Connection[Any]) -> None:
    login = "board_reader"
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'secret' IN ROLE \"{role_names()[Role.OBSERVER]}\"".encode())
        try:
            address = make_conninfo(dsn, user=login, password="secret")
            assert main(["metrics", "--url", address]) == 0
        finally:
            owner.execute(f"DROP ROLE {login}".encode())
