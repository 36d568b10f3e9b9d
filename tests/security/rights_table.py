"""What each method of a client and each command does in the table of rights: the rows that it needs, and the call."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql

from queuert import Attempt, Chain, Client, JobType, JobTypes, PostgresState, after
from queuert.callbacks import CallbackUrls
from queuert.cli import build_parser
from queuert.deduplication import Deduplicate
from queuert.errors import WaitTimeoutError
from queuert.ids import new_id
from queuert.new_chain import NewChain
from queuert.notify.in_process import InProcessNotify
from queuert.schedules import RecurringSchedule
from queuert.worker import Processors

LONG_AGO = datetime(2024, 1, 1, tzinfo=UTC)

approval = JobType("approval", input=int, output=int)
review = JobType("review", input=int, output=int, continues_with=approval)
TYPES = JobTypes(approval, review)


def client_of(dsn: str, *, schema: str = "queuert") -> Client:
    """A client of the job types above, without sessions of its own for notifications."""
    callbacks = CallbackUrls("https://example.com/hooks", "0123456789abcdef0123456789abcdef")
    return Client(
        PostgresState(dsn, schema=schema), TYPES, notify=InProcessNotify(), max_connections=2, callbacks=callbacks
    )


class Scene:
    """Makes rows as the owner."""

    def __init__(self, owner: Client, dsn: str) -> None:
        self.owner = owner
        self.dsn = dsn

    def nothing(self) -> str:
        """No rows; a new id or name."""
        return new_id()

    def chain(self, **options: Any) -> str:
        """An open chain that is ready, and the only one of its type and key."""
        return self.owner.start_chain(approval, 1, **options).id

    def cursor(self) -> str:
        """A place in the event log behind which there is an event."""
        cursor = self.owner.event_cursor()
        self.chain()
        return cursor

    def key(self) -> str:
        """The key of an open chain."""
        key = new_id()
        self.owner.start_chain(approval, 1, deduplication=Deduplicate(key))
        return key

    def blocked(self) -> str:
        """A chain that waits for another."""
        return self.chain(blockers=[self.chain()])

    def scheduled(self) -> str:
        """A chain that is due in an hour."""
        return self.chain(run_at=after(hours=1))

    def no_days(self) -> str:
        """An event log without partitions for days: somebody has to make them."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for (name,) in connection.execute("select relname from pg_class where relname ~ '^job_event_[0-9]{8}$'"):
                connection.execute(sql.SQL("drop table {}").format(sql.Identifier("queuert", name)))
        return ""

    def cancelled(self) -> str:
        """A chain that is closed and can be retried."""
        id = self.chain()
        self.owner.cancel_chain(id)
        return id

    def old(self) -> str:
        """A chain that closed long ago."""
        id = self.cancelled()
        with psycopg.connect(self.dsn) as connection:
            connection.execute(
                "update queuert.job set created_at = %(then)s, chain_closed_at = %(then)s where id = %(id)s",
                {"then": LONG_AGO, "id": id},
            )
        return id

    def kept_for_long(self) -> str:
        """An event log that is kept for a while."""
        self.owner.set_event_retention(90)
        return ""

    def completed(self) -> str:
        """A chain with an output."""
        id = self.chain()
        self.owner.complete_chain(id, 2)
        return id

    def handle(self) -> Chain[int]:
        """The handle of a chain with an output."""
        return self.owner.get_chain(self.completed(), approval)

    def reviewed(self) -> str:
        """A chain that can be continued."""
        return self.owner.start_chain(review, 1).id

    def schedule(self) -> str:
        """A schedule that is far from its first tick."""
        name = new_id()
        self.owner.put_schedules([self.schedule_of(name)])
        return name

    @staticmethod
    def schedule_of(name: str) -> RecurringSchedule:
        return RecurringSchedule(name, approval, 7, cron="0 0 1 1 *", overlap="allow")

    def paused_schedule(self) -> str:
        """A schedule that is paused."""
        name = self.schedule()
        self.owner.pause_schedules([name])
        return name

    def paused_type(self) -> str:
        """A job type that is paused."""
        self.owner.pause_job_types([name := new_id()])
        return name

    def webhook(self) -> str:
        """A webhook."""
        return self.owner.create_webhook("https://example.com/hook").webhook.id

    def pinged_webhook(self) -> str:
        """A webhook; and the key that encrypts all deliveries, which the first one makes."""
        self.owner.ping_webhook(id := self.webhook())
        return id

    def disabled_webhook(self) -> str:
        """A webhook to which nothing is sent."""
        id = self.webhook()
        self.owner.disable_webhook(id)
        return id

    def delivery(self) -> str:
        """A delivery to a webhook."""
        return self.owner.ping_webhook(self.webhook())

    def event(self) -> str:
        """A webhook and, after it, a chain that it tells of."""
        id = self.webhook()
        self.completed()
        return id

    def operation(self) -> str:
        """A bulk operation that is open."""
        return self.owner.start_bulk_operation("cancel", requested_by="the owner", job_types=[new_id()]).id


Prepare = Callable[[Scene], Any]


@dataclass(frozen=True)
class Method:
    """A method of a client: the rows that it needs, and how it is called with the id or name of them."""

    prepare: Prepare
    call: Callable[[Client, Any], Any]


def start_many(client: Client, _: str) -> Any:
    return client.start_chains([NewChain(approval, 1), NewChain(review, 1)])


def start_and_wait(client: Client, id: str) -> None:
    """Nobody works here: that the chain was started is enough."""
    with suppress(WaitTimeoutError):
        client.start_and_wait(approval, 1, id=id, timeout=0.0)


METHODS: dict[str, Method] = {
    "open": Method(Scene.nothing, lambda client, _: client.open()),
    # Starting.
    "start_chain": Method(Scene.nothing, lambda client, id: client.start_chain(approval, 1, id=id)),
    "start_chains": Method(Scene.nothing, start_many),
    "start_and_wait": Method(Scene.nothing, start_and_wait),
    # Reading.
    "get_chain": Method(Scene.chain, lambda client, id: client.get_chain(id)),
    "get_chains": Method(Scene.chain, lambda client, id: client.get_chains([id])),
    "find_chain": Method(Scene.key, lambda client, key: client.find_chain(approval, key)),
    "get_job": Method(Scene.chain, lambda client, id: client.get_job(id)),
    "get_jobs": Method(Scene.chain, lambda client, id: client.get_jobs([id])),
    "wait": Method(Scene.handle, lambda client, chain: client.wait([chain], timeout=30)),
    "watch_chain": Method(Scene.completed, lambda client, id: list(client.watch_chain(id))),
    "list_chains": Method(Scene.chain, lambda client, _: client.list_chains()),
    "list_jobs": Method(Scene.chain, lambda client, _: client.list_jobs()),
    "list_chain_jobs": Method(Scene.chain, lambda client, id: client.list_chain_jobs(id)),
    "list_dependents": Method(Scene.blocked, lambda client, id: client.list_dependents(id)),
    "get_chain_states": Method(Scene.chain, lambda client, id: client.get_chain_states([id])),
    "get_blockers": Method(Scene.blocked, lambda client, id: client.get_blockers(id)),
    "get_chain_tree": Method(Scene.blocked, lambda client, id: client.get_chain_tree(id)),
    "get_steps": Method(Scene.chain, lambda client, id: client.get_steps(id)),
    "get_phases": Method(Scene.chain, lambda client, id: client.get_phases(id)),
    "explain": Method(Scene.blocked, lambda client, id: client.explain(id)),
    "count_jobs": Method(Scene.chain, lambda client, _: client.count_jobs()),
    "get_demand": Method(Scene.chain, lambda client, _: client.get_demand()),
    "get_activity": Method(Scene.nothing, lambda client, _: client.get_activity()),
    "list_workers": Method(Scene.nothing, lambda client, _: client.list_workers()),
    "list_client_types": Method(Scene.nothing, lambda client, _: client.list_client_types()),
    "list_paused_job_types": Method(Scene.paused_type, lambda client, _: client.list_paused_job_types()),
    "list_schedules": Method(Scene.schedule, lambda client, _: client.list_schedules()),
    "list_events": Method(Scene.chain, lambda client, _: client.list_events()),
    "event_cursor": Method(Scene.chain, lambda client, _: client.event_cursor()),
    "get_event_log": Method(Scene.chain, lambda client, _: client.get_event_log()),
    "follow": Method(Scene.completed, lambda client, id: follow(client.follow(id))),
    "follow_events": Method(Scene.cursor, lambda client, cursor: follow(client.follow_events(after=cursor))),
    "callback_url": Method(Scene.chain, lambda client, id: client.callback_url(id)),
    # Managing.
    "complete_chain": Method(Scene.chain, lambda client, id: client.complete_chain(id, 2)),
    "continue_chain": Method(Scene.reviewed, lambda client, id: client.continue_chain(id, approval, 2)),
    "cancel_chain": Method(Scene.chain, lambda client, id: client.cancel_chain(id)),
    "cancel_chains": Method(Scene.blocked, lambda client, id: client.cancel_chains([id], cascade=True)),
    "cancel_chains_of_key": Method(Scene.key, lambda client, key: client.cancel_chains_of_key(approval, key)),
    "retry_chain": Method(Scene.cancelled, lambda client, id: client.retry_chain(id)),
    "retry_chains": Method(Scene.cancelled, lambda client, id: client.retry_chains([id], cascade=True)),
    "retry_chain_with_input": Method(Scene.cancelled, lambda client, id: client.retry_chain_with_input(id, 2)),
    "reschedule_chains": Method(Scene.scheduled, lambda client, id: client.reschedule_chains([id], after(hours=2))),
    "edit_chain_input": Method(Scene.scheduled, lambda client, id: client.edit_chain_input(id, 2)),
    "reprioritize_chains": Method(Scene.chain, lambda client, id: client.reprioritize_chains([id], 5)),
    "trigger_job": Method(Scene.scheduled, lambda client, id: client.trigger_job(id)),
    "trigger_jobs": Method(Scene.scheduled, lambda client, id: client.trigger_jobs([id])),
    "send_event": Method(Scene.chain, lambda client, id: client.send_event(id, "paid", 1)),
    "send_event_to_key": Method(Scene.key, lambda client, key: client.send_event_to_key(approval, key, "paid", 1)),
    "delete_chain": Method(Scene.cancelled, lambda client, id: client.delete_chain(id)),
    "delete_chains": Method(Scene.cancelled, lambda client, id: client.delete_chains([id], cascade=True)),
    "update_result_ttl": Method(Scene.cancelled, lambda client, id: client.update_result_ttl([id], 60)),
    "preview_prune": Method(Scene.old, lambda client, _: client.preview_prune(older_than=3600)),
    "prune_chains": Method(Scene.old, lambda client, _: client.prune_chains(older_than=3600)),
    "preview_bulk_operation": Method(Scene.chain, lambda client, _: client.preview_bulk_operation("cancel")),
    "start_bulk_operation": Method(
        Scene.nothing,
        lambda client, name: client.start_bulk_operation("cancel", requested_by="ana", job_types=[name]),
    ),
    "get_bulk_operation": Method(Scene.operation, lambda client, id: client.get_bulk_operation(id)),
    "list_bulk_operations": Method(Scene.operation, lambda client, _: client.list_bulk_operations()),
    "run_bulk_operations": Method(Scene.operation, lambda client, _: client.run_bulk_operations()),
    # Schedules, job types, the event log.
    "put_schedules": Method(Scene.nothing, lambda client, name: client.put_schedules([Scene.schedule_of(name)])),
    "delete_schedules": Method(Scene.schedule, lambda client, name: client.delete_schedules([name])),
    "pause_schedules": Method(Scene.schedule, lambda client, name: client.pause_schedules([name])),
    "resume_schedules": Method(Scene.paused_schedule, lambda client, name: client.resume_schedules([name])),
    "run_schedule": Method(Scene.schedule, lambda client, name: client.run_schedule(name)),
    "backfill_schedule": Method(
        Scene.schedule,
        lambda client, name: client.backfill_schedule(
            name, since=LONG_AGO, before=LONG_AGO + timedelta(days=1)
        ),
    ),
    "pause_job_types": Method(Scene.nothing, lambda client, name: client.pause_job_types([name])),
    "resume_job_types": Method(Scene.paused_type, lambda client, name: client.resume_job_types([name])),
    "set_event_level": Method(Scene.nothing, lambda client, name: client.set_event_level("off", job_types=[name])),
    "set_event_retention": Method(Scene.kept_for_long, lambda client, _: client.set_event_retention(20)),
    "maintain_event_log": Method(Scene.no_days, lambda client, _: client.maintain_event_log()),
    # Webhooks.
    "create_webhook": Method(Scene.nothing, lambda client, _: client.create_webhook("https://example.com/hook")),
    "list_webhooks": Method(Scene.webhook, lambda client, _: client.list_webhooks()),
    "get_webhook": Method(Scene.webhook, lambda client, id: client.get_webhook(id)),
    "change_webhook": Method(Scene.webhook, lambda client, id: client.change_webhook(id, description="new")),
    "rotate_webhook_secret": Method(Scene.webhook, lambda client, id: client.rotate_webhook_secret(id)),
    "disable_webhook": Method(Scene.webhook, lambda client, id: client.disable_webhook(id)),
    "enable_webhook": Method(Scene.disabled_webhook, lambda client, id: client.enable_webhook(id)),
    "delete_webhook": Method(Scene.webhook, lambda client, id: client.delete_webhook(id)),
    "ping_webhook": Method(Scene.pinged_webhook, lambda client, id: client.ping_webhook(id)),
    "replay_webhook_delivery": Method(Scene.delivery, lambda client, id: client.replay_webhook_delivery(id)),
    "replay_webhook": Method(
        Scene.event, lambda client, id: client.replay_webhook(id, since=LONG_AGO, failed_only=False)
    ),
    "list_webhook_deliveries": Method(Scene.webhook, lambda client, id: client.list_webhook_deliveries(id)),
}  # fmt: skip


def follow(follower: Any) -> Any:
    """The first event."""
    try:
        return follower.next(timeout=30)
    finally:
        follower.close()


def public_methods() -> set[str]:
    """The names of the public methods of a client, without those that make and close it."""
    found = {name for name, _ in inspect.getmembers(Client, callable) if not name.startswith("_")}
    return found - {"close", "from_url"}


def commands() -> Iterator[str]:
    """The words of each command."""
    return _commands(build_parser(), ())


def _commands(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[str]:
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not nested:
        yield " ".join(words)
    for action in nested:
        for name, inner in action.choices.items():
            yield from _commands(inner, (*words, name))


# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """A command: the rows that it needs, and what follows its words. `ID` is what was made."""

    prepare: Prepare
    options: str = ""


COMMANDS: dict[str, Command] = {
    "migrate status": Command(Scene.nothing),
    "migrate plan": Command(Scene.nothing),
    "workers": Command(Scene.nothing),
    "why": Command(Scene.blocked, "ID"),
    "chains list": Command(Scene.chain),
    "chains show": Command(Scene.blocked, "ID"),
    "chains tree": Command(Scene.blocked, "ID"),
    "chains cancel": Command(Scene.chain, "ID"),
    "chains retry": Command(Scene.cancelled, "ID"),
    "chains reschedule": Command(Scene.scheduled, "ID --after 2h"),
    "chains reprioritize": Command(Scene.chain, "ID --priority 5"),
    "chains edit": Command(Scene.scheduled, "ID --input 2"),
    "chains send-event": Command(Scene.chain, "ID paid --payload 1"),
    "chains delete": Command(Scene.cancelled, "ID --yes"),
    "operations start": Command(Scene.nothing, "cancel --type ID --by ana --yes --no-wait"),
    "operations list": Command(Scene.operation),
    "operations show": Command(Scene.operation, "ID"),
    "operations run": Command(Scene.operation),
    "operations cancel": Command(Scene.operation, "ID --by ana"),
    "jobs list": Command(Scene.chain),
    "jobs show": Command(Scene.blocked, "ID"),
    "jobs trigger": Command(Scene.scheduled, "ID"),
    "stats": Command(Scene.chain),
    "demand": Command(Scene.chain),
    "activity": Command(Scene.nothing),
    "events list": Command(Scene.chain),
    "events tail": Command(Scene.chain, "--once"),
    "events status": Command(Scene.chain),
    "events set-level": Command(Scene.nothing, "off --type ID"),
    "events set-retention": Command(Scene.kept_for_long, "20"),
    "events maintain": Command(Scene.no_days),
    "job-types list": Command(Scene.chain),
    "job-types pause": Command(Scene.nothing, "ID --by ana --force"),
    "job-types resume": Command(Scene.paused_type, "ID"),
    "schedules list": Command(Scene.schedule),
    "schedules pause": Command(Scene.schedule, "ID"),
    "schedules resume": Command(Scene.paused_schedule, "ID"),
    "schedules delete": Command(Scene.schedule, "ID --yes"),
    "schedules run": Command(Scene.schedule, "ID"),
    "schedules backfill": Command(Scene.schedule, "ID --since 2024-01-01T00:00Z --before 2024-01-02T00:00Z"),
    "webhooks list": Command(Scene.webhook),
    "webhooks create": Command(Scene.nothing, "https://example.com/hook"),
    "webhooks rotate": Command(Scene.webhook, "ID"),
    "webhooks disable": Command(Scene.webhook, "ID"),
    "webhooks enable": Command(Scene.disabled_webhook, "ID"),
    "webhooks delete": Command(Scene.webhook, "ID --yes"),
    "webhooks ping": Command(Scene.pinged_webhook, "ID"),
    "webhooks deliveries": Command(Scene.webhook, "ID"),
    "webhooks replay": Command(Scene.event, "ID --since 2024-01-01T00:00Z --all"),
    "prune": Command(Scene.old, "--older-than 1h --yes"),
    "metrics": Command(Scene.chain),
}  # fmt: skip

APART = {
    "migrate up": "tests/migrations/test_rights.py, and below",
    **dict.fromkeys(("migrate down", "migrate stamp", "migrate roles", "migrate adopt"), "the owner's, see below"),
    "doctor": "it says what it cannot see, see below",
    "worker": "it goes on until it is stopped, see below",
    "web": "it serves what the methods above do",
    **dict.fromkeys(
        ("migrate sql", "check", "health", "alerts export", "grafana export", "version"), "they need no database"
    ),
    **dict.fromkeys(
        ("history run", "history rollup", "history archive", "history report"), "they need Spark: tests/spark"
    ),
    **dict.fromkeys(("dev bench", "dev demo", "dev dashboard", "dev chaos"), "they make databases of their own"),
}  # fmt: skip
"""Commands that are called otherwise, or not at all, and why."""

processors = Processors(TYPES)


@processors.handles(approval)
def approving(attempt: Attempt[int, int]) -> int:
    return attempt.input


@processors.handles(review)
def reviewing(attempt: Attempt[int, int]) -> int:
    return attempt.input
