"""Each runbook on the trouble that it is for: its commands show the cause, and mend it."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
import redis

from queuert import Client, Deduplicate, JobStatus, JobType, JobTypes, NewChain, PostgresState, RetryPolicy
from queuert.cli import main
from queuert.embedded import EmbeddedRedis, EmbeddedServerError
from queuert.embedded.binaries import find_postgres
from queuert.errors import StateError, StateUnavailableError
from queuert.ids import new_id
from queuert.limits import TypeTraits
from queuert.notify.in_process import InProcessNotify
from queuert.schedules import RecurringSchedule
from queuert.state.diagnosis import Thresholds
from queuert.state.redis import RedisState
from queuert.state.types import ClaimRequest, ReapRequest
from queuert.workers import WorkerHeartbeat
from tests.conftest import server_is_missing
from tests.faults.disks import limited_files

PAGE = (Path(__file__).parents[2] / "docs/operate/runbooks.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))

page = JobType("page", input=int, output=int)
book = JobType("book", input=int, output=int)
JOB_TYPES = JobTypes(page, book)

APPLICATION = """
from pathlib import Path

from queuert import JobType, JobTypes, Processors, RetryPolicy

page = JobType("page", input=int, output=int)
book = JobType("book", input=int, output=int)
processors = Processors(JobTypes(page, book), retry=RetryPolicy(max_attempts=1))


@processors.handles(page)
@processors.handles(book)
def handle(attempt):
    if Path("broken").exists():
        raise ValueError("no paper")
    return attempt.input
"""


def _commands(text: str) -> Iterator[str]:
    """The commands of a block, a line each; one with an open quotation mark goes on in the next line."""
    command = ""
    for line in text.splitlines():
        command = f"{command}\n{line}" if command else line
        if command.count('"') % 2 == 0:
            yield command
            command = ""
    assert not command


class Runbook:
    """Runs the commands of one section, and knows which were run."""

    def __init__(self, heading: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        blocks = re.findall(r"^```sh\n(.*?)^```", SECTIONS[heading], re.MULTILINE | re.DOTALL)
        self.commands = [command for text in blocks for command in _commands(text)]
        self.ran: set[str] = set()

    def shell(self, beginning: str, **words: str) -> str:
        """Run a command of the server's own in a shell, with these words for those in capitals; return what it prints.

        Other capitals are SQL or commands of Redis.
        """
        [command] = [one for one in self.commands if one.startswith(beginning)]
        self.ran.add(command)
        for word, value in words.items():
            command = command.replace(word, value)
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout

    def __call__(self, beginning: str, *, code: int = 0, **words: str) -> str:
        """Run the command that is this, or begins like this, with these words for those in capitals; return what it
        prints."""
        whole = f"queuert {beginning}"
        begun = [one for one in self.commands if one.startswith(f"{whole} ")]
        [command] = [whole] if whole in self.commands else begun
        self.ran.add(command)
        self._capsys.readouterr()
        name, *arguments = shlex.split(re.sub(r"\b[A-Z]{2,}\b", lambda found: words[found[0]], command))
        assert name == "queuert"
        assert main(arguments) == code
        captured = self._capsys.readouterr()
        return captured.out + captured.err


@pytest.fixture
def runbook(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[str], Runbook]]:
    """The runbook of a heading; at the end all its commands must have been run."""
    monkeypatch.setenv("QUEUERT_URL", dsn)
    made: list[Runbook] = []

    def make(heading: str) -> Runbook:
        made.append(Runbook(heading, capsys))
        return made[-1]

    yield make
    for one in made:
        assert one.ran == set(one.commands)


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        yield client


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Processors of both types in a module of the current directory; a file ``broken`` breaks them."""
    (tmp_path / "application_of_runbooks.py").write_text(APPLICATION, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "application_of_runbooks:processors"
    sys.modules.pop("application_of_runbooks", None)


def alive(client: Client, *types: str, traits: tuple[TypeTraits, ...] = ()) -> None:
    """Let a worker of these types be alive, and record what else it knows of types."""
    store = client.state.sync_store(max_connections=1)
    store.open()
    heartbeat = WorkerHeartbeat("worker-1", "worker-1", "here", 1, "1", types, 5, 0, 0.0)
    store.record_heartbeat(replace(heartbeat, traits=traits), 60.0)
    store.close()


def test_a_paused_type(runbook: Callable[[str], Runbook], client: Client) -> None:
    run = runbook("A type is paused and forgotten")
    client.pause_job_types([page], reason="stock-taking", by="ana")
    chain = client.start_chain(page, 1)
    alive(client, "page")
    assert "type page is paused since" in run("why", ID=chain.id)
    listed = run("job-types list")
    assert "stock-taking" in listed
    assert "ana" in listed
    assert run("job-types resume", TYPE="page") == "resumed 1: page\n"
    assert client.list_paused_job_types() == []


def test_an_approval_that_nobody_gives(runbook: Callable[[str], Runbook], client: Client, dsn: str) -> None:
    run = runbook("An approval that nobody gives")
    review = client.start_chain(book, 1)
    chain = client.start_chain(page, 1, blockers=[review])
    alive(client, "page", traits=(TypeTraits("book", completed_by_client=True, overdue_after=3600.0),))
    assert "the oldest job of type book" not in run("doctor", code=_anything())
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "UPDATE queuert.job SET scheduled_at = scheduled_at - interval '2 h' WHERE id = %s", [review.id]
        )
    assert "the oldest job of type book has waited for a client for 7,2" in run("doctor", code=_anything())
    assert review.id in run("jobs list", TYPE="book")
    assert re.search("waits for a client to complete it, since 20.*; overdue since 20", run("why", CHAIN=review.id))
    assert run("chains cancel", CHAIN=chain.id).startswith("cancelled 2")
    assert review.refresh().status == "cancelled"


def test_a_poison_job(runbook: Callable[[str], Runbook], client: Client, dsn: str) -> None:
    run = runbook("A poison job")
    poison, other = client.start_chain(page, 1), client.start_chain(page, 2)
    store = client.state.sync_store(max_connections=1)
    store.open()
    alive(client, "page")
    for number in (1, 2):
        # The first time another job runs beside it, and expires as well.
        held = store.claim(
            ClaimRequest({"page": 60.0}, 3 - number, "worker-7", f"00000000-0000-0000-0000-00000000000{number}")
        )
        assert [one.id for one in held] == [poison.id, other.id][: 3 - number]
        with psycopg.connect(dsn) as connection:
            connection.execute(
                "UPDATE queuert.job SET lease_expires_at = now() - interval '1 s' WHERE id = ANY (%s)",
                [[one.id for one in held]],
            )
        store.reap(ReapRequest({"page": RetryPolicy(initial_delay=0.0, max_crashes=2)}))
        if number == 1:
            listed = run("chains list --status open", TYPE="page")
            assert listed.index(poison.id) < listed.index(other.id)
            seen = f"1 of its attempts has crashed or lost the lease: queuert jobs show {poison.id} names the workers"
            assert seen in run("why", ID=poison.id)
    store.close()
    header, *rows = [line.split() for line in run("jobs list", TYPE="page").splitlines()]
    counted = {row[header.index("id")]: row[header.index("lease_expirations")] for row in rows}
    assert counted == {poison.id: "2", other.id: "1"}
    assert poison.id in run("chains list --status failed", TYPE="page")
    shown = run("jobs show", ID=poison.id)
    assert "worker-7" in shown
    assert "lease_expired" in shown
    assert run("chains cancel", OPEN=other.id).startswith("cancelled 1")
    assert run("chains retry", ID=poison.id) == "retried 1\n"
    assert poison.refresh().status == "open"


def test_a_flood(runbook: Callable[[str], Runbook], client: Client) -> None:
    run = runbook("A tenant's flood")
    flood = client.start_chains([NewChain(page, number, attributes={"tenant": "acme"}) for number in range(20)])
    waits = client.start_chain(page, 99, attributes={"tenant": "other"})
    alive(client, "page")
    assert "20 ready jobs are claimed before it" in run("why", ID=waits.id)
    assert run("chains list", TYPE="page").count('{"tenant": "acme"}') == 19, "the newest twenty"
    assert "20 chains" in run("operations start cancel --type", TYPE="page", NAME="acme")
    assert all(one.refresh().status == "open" for one in flood)
    assert re.search(r"^changed +20$", run("operations start cancel --yes", TYPE="page", NAME="acme"), re.MULTILINE)
    assert "cancel" in run("operations list")
    assert all(one.refresh().status == "cancelled" for one in flood)
    assert client.get_job(waits.id).status is JobStatus.READY


def stop_workers_when_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each worker end when no job is left: else it would run until somebody stops it."""
    module = importlib.import_module("queuert.worker.run")
    run_worker = module.run
    monkeypatch.setattr(module, "run", lambda worker, **settings: run_worker(worker, **{**settings, "once": True}))


def test_dead_workers(
    runbook: Callable[[str], Runbook], client: Client, application: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runbook("The worker pool is dead")
    chain = client.start_chain(page, 5)
    assert run("workers") == "none\n"
    assert "no worker is alive" in run("why", ID=chain.id)
    run("worker APPLICATION --once", APPLICATION=application)
    assert chain.refresh().status == "completed"
    another = client.start_chain(page, 6)
    stop_workers_when_done(monkeypatch)
    run("worker APPLICATION", APPLICATION=application)
    assert another.refresh().status == "completed"


def test_a_client_that_notifies_nobody(
    runbook: Callable[[str], Runbook], client: Client, dsn: str, application: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fixture's has notifications of its own: workers hear only of what the other one starts."""
    run = runbook("Jobs start only after a minute")
    with psycopg.connect(dsn, autocommit=True) as workers, Client(PostgresState(dsn), JOB_TYPES) as mended:
        workers.execute("LISTEN queuert_jobs")
        chain = client.start_chain(page, 1)
        mended.start_chain(book, 1)
        [heard] = workers.notifies(timeout=60.0, stop_after=1)
    assert "book" in heard.payload
    assert "page" not in heard.payload
    alive(client, "page")
    assert "nothing holds it: the next claim of its type takes it" in run("why", ID=chain.id)
    assert "a notification arrived" in run("doctor", code=_anything())
    stop_workers_when_done(monkeypatch)
    run("worker", APPLICATION=application)
    assert client.get_chain(chain.id).status == "completed"


@pytest.mark.fault
def test_a_full_disk(
    runbook: Callable[[str], Runbook], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from queuert import migrations

    run = runbook("The disk is full")
    with limited_files() as disk:
        try:
            disk.server.start()
        except EmbeddedServerError as error:
            server_is_missing(error)
        migrations.upgrade(disk.server.dsn())
        monkeypatch.setenv("QUEUERT_URL", disk.server.dsn())
        texts = JobType("text", input=str, output=str)
        with Client(PostgresState(disk.server.dsn()), JobTypes(texts), notify=InProcessNotify()) as client:
            first = client.start_chain(texts, "first")
            client.cancel_chain(first)
            disk.fill()
            with pytest.raises(StateError):
                client.start_chains([NewChain(texts, new_id() * 20_000) for _ in range(100)])
            disk.free()
            if not disk.server.running:
                disk.server.start()
            assert "cancelled" in run("stats")
            assert run("doctor", code=_anything()) != ""
            with psycopg.connect(disk.server.dsn()) as connection:
                connection.execute(
                    "UPDATE queuert.job SET created_at = %(then)s, chain_closed_at = %(then)s WHERE id = %(id)s",
                    {"then": datetime.now(UTC) - timedelta(days=40), "id": first.id},
                )
            assert run("prune --older-than 30d").startswith("prune would delete 1 chain:")
            assert run("prune --older-than 30d --yes").startswith("deleted 1")
            assert client.preview_prune(older_than=timedelta(days=30)).count == 0
            assert client.start_chain(texts, "after").status == "open"


class _Anything(int):
    """Equal to each exit code: what ``doctor`` finds of a server for tests is not at issue."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def _anything() -> int:
    return _Anything()


def test_an_old_snapshot(
    runbook: Callable[[str], Runbook], client: Client, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runbook("An old snapshot")
    monkeypatch.setenv("PATH", f"{find_postgres().bindir}{os.pathsep}{os.environ['PATH']}")
    with psycopg.connect(dsn) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM queuert.job")
        assert "transactions" in run("doctor", code=_anything())
        found = PostgresState(dsn).diagnose(Thresholds(transaction_seconds=0.0))
        assert any(one.check == "transactions" for one in found)
        look = run.shell('psql "$QUEUERT_URL" -c "SELECT pid')
        assert str(old.info.backend_pid) in [line.split("|")[0].strip() for line in look.splitlines()]
        run.shell('psql "$QUEUERT_URL" -c "SELECT pg_terminate_backend', PID=str(old.info.backend_pid))
        with pytest.raises(psycopg.OperationalError):
            old.execute("SELECT 1")


def test_a_lost_redis(
    runbook: Callable[[str], Runbook],
    private_redis: Callable[..., EmbeddedRedis],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = runbook("Redis is lost")
    server = private_redis()
    monkeypatch.setenv("QUEUERT_URL", server.url())
    with Client(RedisState(server.url()), JOB_TYPES, notify=InProcessNotify()) as client:
        client.start_chain(page, 1, id="order-1")
        server.stop()
        run("stats", code=3)
        with pytest.raises(StateUnavailableError):
            client.start_chain(page, 2, id="order-2")
        server.start()
        monkeypatch.setenv("QUEUERT_URL", server.url(user="default"))
        assert "persist" in run("doctor", code=_anything())
        if shutil.which("redis-cli") is None:
            server_is_missing(EmbeddedServerError("redis-cli is not installed"))
        words = {"HOST:6379": f"127.0.0.1:{server.port}", "PASSWORD": server.password}
        login = 'redis-cli -u "redis://default:PASSWORD@HOST:6379/0"'
        assert run.shell(f"{login} CONFIG SET", **words).strip() == "OK"
        assert run.shell(f"{login} CONFIG REWRITE", **words).strip() == "OK"
        assert "appendonly yes" in (server.data_dir / "queuert.conf").read_text(encoding="utf-8")
        with redis.Redis.from_url(server.url()) as connection:
            assert connection.config_get("appendonly") == {"appendonly": "yes"}
    with Client(RedisState(server.url()), JOB_TYPES, notify=InProcessNotify()) as client:
        for number in (1, 2, 1):
            client.start_chain(page, number, id=f"order-{number}", attach=True)
        assert {one.id for one in client.list_chains()} == {"order-1", "order-2"}


@pytest.mark.usefixtures("application")
def test_a_schedule_twice(runbook: Callable[[str], Runbook], client: Client) -> None:
    run = runbook("A schedule runs twice")
    for name in ("nightly", "every-night"):
        client.put_schedules([RecurringSchedule(name, page, 1, cron="0 3 * * *")])
    listed = run("schedules list")
    assert "nightly" in listed
    assert "every-night" in listed
    scheduled = (
        APPLICATION
        + """
from queuert.schedules import RecurringSchedule

nightly = RecurringSchedule("every-night", page, 1, cron="0 3 * * *")
"""
    )
    Path("application_with_a_schedule.py").write_text(scheduled, encoding="utf-8")
    assert "schedules: 1 (every-night)" in run("check", MODULE="application_with_a_schedule")
    assert run("schedules delete", OLD="nightly").startswith("deleted 1")
    assert [one.name for one in client.list_schedules()] == ["every-night"]


def test_a_failed_blocker(runbook: Callable[[str], Runbook], client: Client, application: str) -> None:
    run = runbook("A failed blocker with 1,000 dependents")
    blocker = client.start_chain(page, 1)
    client.start_chains([NewChain(book, number, blockers=[blocker]) for number in range(1_000)])
    Path("broken").touch()
    assert main(["worker", application, "--once", "--concurrency", "20"]) == 0
    failed = client.list_chains(job_types=[book], statuses=["failed"], limit=1)
    assert blocker.id in run("why", ID=failed.items[0].id)
    assert failed.items[0].id in run("chains show", BLOCKER=blocker.id)
    Path("broken").unlink()
    assert run("chains retry BLOCKER", BLOCKER=blocker.id) == "retried 1001\n"
    assert main(["worker", application, "--once", "--concurrency", "20"]) == 0
    assert {one.status: one.count for one in client.count_jobs(["book"])} == {JobStatus.COMPLETED: 1_000}


def test_a_forgotten_handler(
    runbook: Callable[[str], Runbook], client: Client, application: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runbook("A deploy forgot a handler")
    chain = client.start_chain(page, 1, deduplication=Deduplicate("one"))
    alive(client, "book")
    assert "no live worker handles type page: the live workers handle book" in run("why", ID=chain.id)
    forgotten = (
        Path("application_of_runbooks.py").read_text(encoding="utf-8").replace("@processors.handles(page)\n", "")
    )
    Path("forgotten_handler.py").write_text(forgotten, encoding="utf-8")
    assert "job type 'page' has no handler" in run("check", MODULE="forgotten_handler", code=1)
    other = client.start_chain(book, 1)
    stop_workers_when_done(monkeypatch)
    run("worker", APPLICATION=application, TYPE="page")
    assert [one.refresh().status for one in (chain, other)] == ["completed", "open"]


def test_every_runbook_is_tried() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert len(SECTIONS) == 12
    assert [heading for heading in SECTIONS if f'"{heading}"' not in source] == []
