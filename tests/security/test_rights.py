"""Every method of a client and every command as every role: it works, or it is refused by an error that says which
right is missing and who has it, and then nothing was written."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql

from queuert import AsyncClient, InProcessWorker, JobTypes, PostgresState
from queuert.cli import main
from queuert.cli.rights import COMMANDS as RIGHTS_OF_COMMANDS
from queuert.errors import RightMissingError
from queuert.notify.in_process import InProcessNotify
from queuert.rights import COUNT, EVERYBODY, OWNER, READ, RIGHTS, Role, names_of
from queuert.schedules import RecurringSchedule
from queuert.web import FULL_ACCESS
from queuert.web.dashboard import DashboardApp
from tests.security import rights_table
from tests.security.conftest import LoginOf, Logins
from tests.security.rights_table import APART, COMMANDS, METHODS, Command, Scene, client_of, commands, public_methods

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"

ROLES = [None, *Role]
"""None is the owner."""

as_each_role = pytest.mark.parametrize("role", ROLES, ids=lambda role: str(role or "owner"))


@pytest.fixture
def scene(granted: str) -> Iterator[Scene]:
    with client_of(granted) as owner:
        yield Scene(owner, granted)


@pytest.fixture
def contents(granted: str) -> Iterator[Callable[[], Any]]:
    """A function that returns what is in the tables, and which tables there are."""
    with psycopg.connect(granted, autocommit=True) as connection:
        names = connection.execute(
            "select relname from pg_class where relnamespace = 'queuert'::regnamespace and relkind in ('r', 'p')"
            " and not relispartition"
        ).fetchall()
        one = sql.SQL("select {}, count(*), sum(hashtext(t::text)) from {} as t")
        tables = [one.format(sql.Literal(name), sql.Identifier("queuert", name)) for (name,) in names]
        partitions = sql.SQL("select 'partitions', count(*), 0 from pg_inherits")
        query = sql.SQL(" union all ").join([*tables, partitions])
        yield lambda: sorted(connection.execute(query).fetchall())


def user_of(granted: str, login: LoginOf, role: Role | None) -> str:
    return granted if role is None else login(role)


# --- methods ----------------------------------------------------------------------------------------------------------


def test_no_method_is_left_out() -> None:
    """Whoever adds one says who may call it, in `RIGHTS`, and how it is called, in `METHODS`."""
    assert public_methods() == METHODS.keys() == RIGHTS.keys()


FOLLOWERS = {"follow", "follow_events"}
"""The thread that all followers of a client share reads for them, and its errors name what it reads."""


def only_reads(name: str) -> bool:
    return RIGHTS[name] in (COUNT, READ, EVERYBODY) or name.startswith(("list_", "get_"))


@pytest.mark.timeout(120)
@as_each_role
def test_methods(granted: str, login: LoginOf, scene: Scene, contents: Callable[[], Any], role: Role | None) -> None:
    wrong: dict[str, str] = {}
    with ExitStack() as stack:
        user = client_of(user_of(granted, login, role))
        stack.callback(user.close)
        for name, method in METHODS.items():
            id, may = method.prepare(scene), role is None or role in RIGHTS[name]
            before = contents()
            try:
                method.call(user, id)
            except RightMissingError as error:
                named = (error.operation, error.roles) == (name, tuple(names_of(RIGHTS[name], "queuert")))
                if may or not (named or name in FOLLOWERS):
                    wrong[name] = str(error)
                may = False
            else:
                if not may:
                    wrong[name] = "it is not refused"
            if (contents() != before) != (may and not only_reads(name)):
                wrong[name] = "it has written" if contents() != before else "it has not written"
    assert wrong == {}


# --- commands ---------------------------------------------------------------------------------------------------------


def test_no_command_is_left_out() -> None:
    """Whoever adds one says who may run it, and how it is run, or why it is not."""
    known, ran = set(commands()), COMMANDS.keys() | APART.keys()
    table = "COMMANDS or APART of tests/security/rights_table.py"
    assert known == ran, f"{table}: add {sorted(known - ran)}, remove {sorted(ran - known)}"
    assert not COMMANDS.keys() & APART.keys()
    missing = sorted(COMMANDS.keys() - RIGHTS_OF_COMMANDS.keys())
    assert not missing, f"queuert/cli/rights.py says of no method for {missing}"
    assert RIGHTS_OF_COMMANDS.keys() <= known


@pytest.mark.timeout(120)
@as_each_role
def test_commands(
    granted: str,
    login: LoginOf,
    scene: Scene,
    contents: Callable[[], Any],
    capsys: pytest.CaptureFixture[str],
    role: Role | None,
) -> None:
    wrong: dict[str, str] = {}
    user = user_of(granted, login, role)
    for words, command in COMMANDS.items():
        id, may = command.prepare(scene), role is None or role in RIGHTS_OF_COMMANDS[words]
        before = contents()
        capsys.readouterr()
        options = [id if word == "ID" else word for word in command.options.split()]
        code = main([*words.split(), *options, "--url", user])
        said = capsys.readouterr().err
        if code != (0 if may else 1) or (not may and not is_explained(said, words)):
            wrong[words] = said
        if not may and contents() != before:
            wrong[words] = "it has written"
    assert wrong == {}


OPTIONS = {
    "chains retry": (Command(Scene.cancelled, "ID --input 2"), "retry_chain_with_input"),
    "chains delete": (Command(Scene.cancelled, "ID --cascade --yes"), "delete_chains"),
    "operations start": (Command(Scene.nothing, "cancel --type ID"), "preview_bulk_operation"),
    "prune": (Command(Scene.old, "--older-than 1h"), "preview_prune"),
}
"""Commands with options for which they call another method, which may need more or less."""


@as_each_role
def test_commands_whose_options_need_other_rights(
    granted: str, login: LoginOf, scene: Scene, capsys: pytest.CaptureFixture[str], role: Role | None
) -> None:
    """Whoever has a role is not told to get it."""
    wrong: dict[str, str] = {}
    user = user_of(granted, login, role)
    for words, (command, method) in OPTIONS.items():
        id, may = command.prepare(scene), role is None or role in RIGHTS[method]
        capsys.readouterr()
        options = [id if word == "ID" else word for word in command.options.split()]
        code = main([*words.split(), *options, "--url", user])
        said = capsys.readouterr().err
        # A producer is refused before the method is called.
        roles = RIGHTS_OF_COMMANDS[words] & RIGHTS["open" if role is Role.PRODUCER else method]
        if code != (0 if may else 1) or (not may and (not is_explained(said, words, roles) or f"{role} TO" in said)):
            wrong[words] = said
    assert wrong == {}


def is_explained(said: str, words: str, may: frozenset[Role] | None = None) -> bool:
    """Whether the error names the command, the right, and who has it."""
    roles = names_of(RIGHTS_OF_COMMANDS[words] if may is None else may, "queuert")
    advice = f"GRANT {roles[0]} TO LOGIN" if roles else "use the login that owns the tables"
    needs = f"queuert: queuert {words} needs a right that this login does not have ("
    return needs in said and advice in said and all(role in said for role in roles)


@as_each_role
def test_migrate_up_that_has_nothing_to_do(
    granted: str, login: LoginOf, capsys: pytest.CaptureFixture[str], role: Role | None
) -> None:
    """It needs no right but to read the revision."""
    code = main(["migrate", "up", "--url", user_of(granted, login, role)])
    captured = capsys.readouterr()
    if role is Role.PRODUCER:
        assert (code, captured.out) == (1, "")
        assert "queuert migrate up needs a right" in captured.err
    else:
        assert (code, captured.err) == (0, "")
        assert "up to date" in captured.out


@pytest.mark.parametrize("role", list(Role), ids=str)
def test_what_only_the_owner_may(
    granted: str, login: LoginOf, logins: Logins, capsys: pytest.CaptureFixture[str], role: Role
) -> None:
    names = [word for one, name in logins.names.items() for word in (f"--{one}", name)]
    user = login(role)
    for words in (
        ["migrate", "down", "--revision", "0025", "--yes"],
        ["migrate", "stamp", "--revision", "0025"],
        ["migrate", "roles", "--apply", *names],
    ):
        assert main([*words, "--url", user]) == 1
        said = capsys.readouterr().err
        assert "permission denied" in said or "must be owner" in said
        assert "owner" in said
    assert main(["migrate", "status", "--url", granted]) == 0


@pytest.mark.parametrize("role", list(Role), ids=str)
def test_doctor_says_what_it_cannot_see(
    granted: str, login: LoginOf, capsys: pytest.CaptureFixture[str], role: Role
) -> None:
    """Each check is made, or it says that it is not."""
    main(["doctor", "--json", "--url", login(role)])
    captured = capsys.readouterr()
    assert captured.err == ""
    findings = {one["check"]: one for one in json.loads(captured.out)["items"]}
    assert findings["settings"]
    if role is Role.PRODUCER:
        assert findings["schema"]["found"] == "its revision cannot be read"
        return
    assert "the newest" in findings["schema"]["found"]
    assert findings["login"]["severity"] == "ok"
    denied = {one["severity"] for one in findings.values() if "permission denied" in str(one)}
    assert denied <= {"skipped"}


def never_entered() -> AbstractAsyncContextManager[None]:
    """A lifespan that opens what only a worker that may work needs."""
    raise AssertionError("the lifespan was entered")


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.WORKER], ids=str)
async def test_a_worker_is_refused(granted: str, login: LoginOf, scene: Scene, role: Role) -> None:
    """It would go on to fail for ever."""
    chain = scene.chain()
    client = AsyncClient(PostgresState(login(role)), rights_table.TYPES)
    with pytest.raises(RightMissingError, match=r"queuert worker needs .*GRANT queuert_worker TO LOGIN"):
        await InProcessWorker(client, rights_table.processors.with_lifespan(never_entered)).start()
    assert scene.owner.get_job(chain).status == "ready"


async def test_a_worker_with_schedules_needs_the_role_of_operators(login: LoginOf) -> None:
    nightly = RecurringSchedule("nightly", rights_table.approval, 7, cron="@daily")
    async with AsyncClient(PostgresState(login(Role.WORKER)), rights_table.TYPES) as client:
        with pytest.raises(RightMissingError, match=r"put_schedules needs .*GRANT queuert_operator TO LOGIN"):
            await InProcessWorker(client, rights_table.processors, schedules=[nightly]).start()


def test_the_command_of_a_worker(login: LoginOf, scene: Scene, capfd: pytest.CaptureFixture[str]) -> None:
    chain = scene.chain()
    words = ["worker", "tests.security.rights_table:processors", "--once", "--url"]
    assert main([*words, login(Role.CLIENT)]) == 3
    assert capfd.readouterr().err.endswith("TO LOGIN; if it has that, run queuert migrate roles --apply\n")
    assert main([*words, login(Role.WORKER)]) == 0
    assert scene.owner.get_chain(chain).output == 1


# --- the dashboard ----------------------------------------------------------------------------------------------------


async def test_who_may_not_read_webhooks_can_search(login: LoginOf) -> None:
    """What the login may not read is not found; what else there is, is."""
    client = AsyncClient(PostgresState(login(Role.CLIENT)), JobTypes(), notify=InProcessNotify())
    transport = httpx.ASGITransport(app=DashboardApp(client, access=lambda request: FULL_ACCESS))
    async with client, httpx.AsyncClient(transport=transport, base_url="http://queue.test") as web:
        answer = await web.get("/search", params={"q": "customer=17"})
        assert (answer.status_code, answer.headers.get("location")) == (303, "/chains?attribute=customer%3D17")
        answer = await web.get("/search", params={"q": "nothing"})
        assert (answer.status_code, "is called &#39;nothing&#39;" in answer.text) == (404, True)
        answer = await web.get("/search", params={"q": "https://crm.example/hook?a=b"})
        assert answer.headers["location"].startswith("/chains?attribute=")


# --- the error --------------------------------------------------------------------------------------------------------


def test_the_error_is_of_the_schema_of_the_client(granted: str, login: LoginOf) -> None:
    """Also in a transaction of the caller."""
    user = login(Role.CLIENT)
    with psycopg.connect(granted, autocommit=True) as owner:
        owner.execute("alter schema queuert rename to billing")
    with psycopg.connect(user) as callers, client_of(user, schema="billing") as client:
        chain = client.start_chain(rights_table.approval, 1)
        for connection in [None, callers]:
            with pytest.raises(RightMissingError) as caught:
                client.cancel_chain(chain, connection=connection)
            assert caught.value.roles == ("billing_operator", "billing_worker")


def test_the_error_can_be_pickled() -> None:
    error = RightMissingError("permission denied for table job", "cancel_chains", ["queuert_operator"])
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.reason, again.operation, again.roles) == (
        str(error),
        "permission denied for table job",
        "cancel_chains",
        ("queuert_operator",),
    )
    assert str(error) == (
        "cancel_chains needs a right that this login does not have (permission denied for table job): as the owner, "
        "GRANT queuert_operator TO LOGIN; if it has that, run queuert migrate roles --apply"
    )
    assert "docs/security.md" in str(RightMissingError("denied"))
    assert "owns the tables" in str(RightMissingError("denied", "maintain_event_log", names_of(OWNER, "queuert")))


# --- the document -----------------------------------------------------------------------------------------------------


def table() -> str:
    """The table of the document: who may what."""
    groups: dict[frozenset[Role], tuple[list[str], list[str]]] = {}
    for place, rights in enumerate((RIGHTS, RIGHTS_OF_COMMANDS)):
        for name, roles in rights.items():
            groups.setdefault(roles, ([], []))[place].append(f"`{name}`")
    lines = ["| who | methods of a client | commands |", "|---|---|---|"]
    for roles, (methods, words) in groups.items():
        who = "anybody" if roles == EVERYBODY else ", ".join(role for role in Role if role in roles) or "the owner"
        lines.append(f"| {who} | {', '.join(methods)} | {', '.join(words)} |")
    return "\n".join(lines)


def test_the_document_has_the_table() -> None:
    document = SECURITY.read_text(encoding="utf-8")
    missing = "\n".join(row for row in table().splitlines() if row not in document.splitlines())
    assert table() in document, (
        f"the table of rights in docs/security.md must have these rows, in its order:\n{missing}"
    )
