"""The example for KEDA has the fields that its postgresql scaler has, and its query runs as an observer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg import sql

from queuert import Client, JobType, JobTypes, PostgresState
from queuert.notify.in_process import InProcessNotify
from queuert.state.postgres.roles import Role, grant_roles
from queuert.testing.databases import TemplateDatabases
from tests.support.addresses import as_user, password_of

FILE = Path(__file__).resolve().parent.parent / "deploy" / "keda.yaml"

# Of KEDA's documentation: the scaler `postgresql`, the specification of a ScaledObject, and TriggerAuthentication.
SCALER_FIELDS = {
    *("connectionFromEnv", "host", "port", "userName", "passwordFromEnv", "dbName", "sslmode"),
    *("query", "targetQueryValue", "activationTargetQueryValue"),
}
SCALER_SECRETS = {"connection", "host", "port", "userName", "password", "dbName", "sslmode"}
TRIGGER_FIELDS = {"type", "name", "useCachedMetrics", "metricType", "metadata", "authenticationRef"}
SCALED_OBJECT_FIELDS = {
    *("scaleTargetRef", "pollingInterval", "cooldownPeriod", "initialCooldownPeriod", "idleReplicaCount"),
    *("minReplicaCount", "maxReplicaCount", "fallback", "advanced", "triggers"),
}

resize = JobType("resize", input=int, output=int)
publish = JobType("publish", input=int, output=int)
other = JobType("other", input=int, output=int)


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    """The objects of the file, by their kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(FILE.read_text(encoding="utf-8"))}


@pytest.fixture
def trigger(objects: dict[str, Any]) -> Any:
    [trigger] = objects["ScaledObject"]["spec"]["triggers"]
    return trigger


def test_the_fields_are_those_of_keda(objects: dict[str, Any], trigger: Any) -> None:
    assert set(objects) == {"Secret", "TriggerAuthentication", "ScaledObject"}
    for kind in ("TriggerAuthentication", "ScaledObject"):
        assert objects[kind]["apiVersion"] == "keda.sh/v1alpha1"
    spec = objects["ScaledObject"]["spec"]
    assert set(spec) <= SCALED_OBJECT_FIELDS
    assert {"apiVersion", "kind", "name"} == set(spec["scaleTargetRef"])
    assert spec["minReplicaCount"] < spec["maxReplicaCount"]
    assert set(trigger) <= TRIGGER_FIELDS
    assert trigger["type"] == "postgresql"
    assert trigger["metricType"] == "AverageValue"
    assert set(trigger["metadata"]) <= SCALER_FIELDS
    # KEDA reads all of these as text.
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    assert float(trigger["metadata"]["targetQueryValue"]) > 0
    assert float(trigger["metadata"]["activationTargetQueryValue"]) == 0


def test_the_names_fit_together(objects: dict[str, Any], trigger: Any) -> None:
    authentication, secret = objects["TriggerAuthentication"], objects["Secret"]
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    [reference] = authentication["spec"]["secretTargetRef"]
    assert reference["parameter"] in SCALER_SECRETS
    assert reference["name"] == secret["metadata"]["name"]
    assert reference["key"] in secret["stringData"]
    assert "REPLACE_PASSWORD" in secret["stringData"]["connection"]


def test_the_query_is_one_number_for_an_observer(trigger: Any, template_databases: TemplateDatabases) -> None:
    with template_databases.database() as dsn:
        names = {role: f"keda_{role}" for role in Role}
        grant_roles(dsn, names=names)
        with psycopg.connect(dsn, autocommit=True) as connection:
            try:
                connection.execute(sql.SQL("CREATE ROLE keda LOGIN PASSWORD {}").format(password_of(dsn)))
                connection.execute("GRANT keda_observer TO keda")
                _check_query(dsn, trigger["metadata"]["query"])
            finally:
                for name in ("keda", *names.values()):
                    connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
                    connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def _check_query(dsn: str, query: str) -> None:
    with (
        psycopg.connect(as_user(dsn, "keda"), autocommit=True) as observer,
        Client(PostgresState(dsn), JobTypes(resize, publish, other), notify=InProcessNotify()) as client,
    ):

        def demanded() -> object:
            [row] = observer.execute(query.encode()).fetchall()
            return row

        assert demanded() == (0,)
        for job_type in (resize, resize, publish, other):
            client.start_chain(job_type, 1)
        assert demanded() == (3,)
        client.pause_job_types([resize])
        assert demanded() == (1,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            observer.execute("SELECT limit_key FROM queuert.job")
