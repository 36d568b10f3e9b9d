"""``queuert migrate``: upgrade, downgrade or show the revision of a database's schema."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from queuert.cli.exit_codes import MEANINGS, Exit, UsageError, exit_code_text
from queuert.cli.options import Commands, Run, add_command, database_options, postgres, schema_name, seconds
from queuert.cli.output import print_json
from queuert.errors import MigrationError
from queuert.rights import Role
from queuert.schema_names import upgrade_command

# What needs psycopg is imported where it is used, as the other commands work without it.
if TYPE_CHECKING:
    from queuert import migrations
    from queuert.state.postgres.adoption import AdoptionPlan

_DESCRIPTION = """Create, upgrade, downgrade or show the schema of Queuert's tables on Postgres.

Connect to Postgres itself, not through a pooler: migrations hold a lock of the
session. Any number may run at once: one works, the others wait for it.
"""

_UP = "Create or upgrade the schema. Does nothing if it is up to date."
_DOWN = "Downgrade the schema to a revision. This drops jobs."
_STATUS = "Show the revision of the schema and the pending revisions."
_STATUS_CODES: Mapping[int, str] = {
    Exit.DONE: "up to date",
    Exit.FAILED: "revisions are pending, or migrate adopt is needed",
}
_PLAN = """Print what an upgrade would do: each statement, the lock it takes and what waits
for that, the size of the table by Postgres's statistics, and an estimate of how
long it takes. It reads the catalog only.
"""
_PLAN_CODES: Mapping[int, str] = {
    Exit.DONE: "nothing to do, or jobs go on meanwhile",
    Exit.FAILED: "the command failed, or statements hold up jobs",
}
_SQL = "Print the SQL of an upgrade, for review or psql. Needs no database."
_STAMP = "Record a revision without running it, for SQL that was applied by hand."
_ADOPT_CODES: Mapping[int, str] = {
    Exit.DONE: "adopted, or nothing to adopt",
    Exit.FAILED: "the command failed, or without --yes: an adoption is needed",
}

_ROLES = """Print the SQL that creates roles for workers, clients, completers, Spark's
writers, producers in SQL, operators and observers, and grants what they need.
--apply runs it, as the owner of the schema. Run it again after each upgrade.
"""

_ADOPT = """Adopt a database that was moved from another cluster of Postgres, by a dump or
by logical replication: its event log and its closed chains have transaction
numbers of the old cluster. Without --yes, print what would be done.

Stop the workers first, and run it as the owner of the schema. It locks rows but
no tables: a day of the log, or 64 MiB of jobs, at a time. Running it again does
nothing, or continues after a failure.
"""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command and its actions."""
    parser = commands.add_parser(
        "migrate",
        help="create, upgrade or show the schema",
        description=_DESCRIPTION,
        epilog=exit_code_text(MEANINGS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[debug],
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
    shared = [debug, database_options()]

    def add(
        name: str, run: Run, help: str, description: str, exit_codes: Mapping[int, str] | None = None
    ) -> argparse.ArgumentParser:
        return add_command(
            actions, name, run, help=help, description=description, parents=shared, exit_codes=exit_codes
        )

    up = add("up", run_up, "create or upgrade the schema", _UP)
    down = add("down", run_down, "downgrade the schema, which drops jobs", _DOWN)
    status = add("status", run_status, "show the revision of the schema", _STATUS, _STATUS_CODES)
    plan = add("plan", run_plan, "print what an upgrade would do, its locks and sizes", _PLAN, _PLAN_CODES)
    for action in (status, plan):
        action.add_argument("--json", action="store_true", help="print one JSON document")
    sql = add("sql", run_sql, "print the SQL of an upgrade", _SQL)
    stamp = add("stamp", run_stamp, "record a revision without running it", _STAMP)
    _role_options(add("roles", run_roles, "print or apply the grants of roles with few rights", _ROLES))
    adopting = add("adopt", run_adopt, "adopt a database that was moved from another cluster", _ADOPT, _ADOPT_CODES)
    adopting.add_argument("--yes", action="store_true", help="adopt it (default: print what would be done)")
    adopting.add_argument("--force", action="store_true", help="adopt it even while workers are alive")
    for action in (up, plan, stamp):
        _revision(action, default="head", help="the revision to reach (default: head)")
    _revision(sql, default="head", help="the revision to reach, or FROM:TO (default: head)")
    _revision(down, default=None, help="the revision to downgrade to; base drops everything")
    down.add_argument("--yes", action="store_true", help="confirm that the data of later revisions is dropped")
    for action in (up, down, stamp, adopting):
        action.add_argument(
            "--lock-timeout",
            type=seconds,
            default=60.0,
            metavar="SECONDS",
            help="maximum wait for another migrator, and for each table (default: 60)",
        )


def _revision(action: argparse.ArgumentParser, *, default: str | None, help: str) -> None:
    action.add_argument("--revision", metavar="REVISION", default=default, required=default is None, help=help)


def _role_options(action: argparse.ArgumentParser) -> None:
    action.add_argument("--apply", action="store_true", help="run it (default: print it, which needs no database)")
    for role in Role:
        action.add_argument(f"--{role}", metavar="NAME", help=f"name of the {role} role (default: SCHEMA_{role})")


def run_up(args: argparse.Namespace) -> int:
    """Upgrade; say before what takes long."""
    from queuert import migrations
    from queuert.migration_plan import plan_upgrade

    url, schema = postgres(args)
    with _known_revisions():
        plan = plan_upgrade(url, schema=schema, revision=args.revision)
    for step in plan.slow:
        _print_step(f"revision {step.revision}: {step}")
    migrations.upgrade(url, schema=schema, revision=args.revision, lock_timeout=args.lock_timeout)
    return _print_where(url, schema)


def run_down(args: argparse.Namespace) -> int:
    """Downgrade if --yes was given."""
    from queuert import migrations

    url, schema = postgres(args)
    if not args.yes:
        raise UsageError("migrate down drops jobs: add --yes to confirm")
    migrations.downgrade(url, schema=schema, revision=args.revision, lock_timeout=args.lock_timeout)
    return _print_where(url, schema)


def run_stamp(args: argparse.Namespace) -> int:
    """Record a revision."""
    from queuert import migrations

    url, schema = postgres(args)
    migrations.stamp(url, schema=schema, revision=args.revision, lock_timeout=args.lock_timeout)
    return _print_where(url, schema)


def run_plan(args: argparse.Namespace) -> int:
    """Print what an upgrade would do; 1 if statements hold up jobs."""
    from queuert.migration_plan import plan_upgrade

    url, schema = postgres(args)
    with _known_revisions():
        plan = plan_upgrade(url, schema=schema, revision=args.revision)
    if args.json:
        steps = [{**asdict(step), "online": step.online} for step in plan.steps]
        print_json({**asdict(plan), "online": plan.online, "steps": steps})
    else:
        print(f"schema {schema}: {plan}")
    return Exit.DONE if plan.online else Exit.FAILED


def run_sql(args: argparse.Namespace) -> int:
    """Print SQL."""
    from queuert import migrations

    with _known_revisions():
        text = migrations.sql(schema=schema_name(args), revision=args.revision)
    sys.stdout.write(text)
    return Exit.DONE


def run_roles(args: argparse.Namespace) -> int:
    """Print or apply the grants of the roles."""
    from queuert.state.postgres.roles import grant_roles, role_names, roles_sql

    names = {role: str(getattr(args, role)) for role in Role if getattr(args, role) is not None}
    if not args.apply:
        sys.stdout.write(roles_sql(schema_name(args), names))
        return Exit.DONE
    url, schema = postgres(args)
    grant_roles(url, schema=schema, names=names)
    print(f"granted schema {schema} to {', '.join(role_names(schema, names).values())}")
    return Exit.DONE


def run_status(args: argparse.Namespace) -> int:
    """Print the revision; 1 if revisions are pending or the database must be adopted."""
    from queuert.state.postgres.adoption import how_moved

    url, schema = postgres(args)
    status = _status(url, schema)
    moved = None if status.pending else how_moved(url, schema=schema)
    if args.json:
        print_json({"schema": schema, **asdict(status), "moved": moved})
    else:
        print(status_line(status, schema))
        if moved is not None:
            print(moved)
    return Exit.DONE if not status.pending and moved is None else Exit.FAILED


def run_adopt(args: argparse.Namespace) -> int:
    """Adopt if --yes was given, else print what that would do."""
    from queuert.state.postgres.adoption import adopt, plan_adoption

    url, schema = postgres(args)
    plan = plan_adoption(url, schema=schema)
    if not args.yes:
        print("\n".join(_adoption_text(plan, schema)))
        return Exit.FAILED if plan.needed else Exit.DONE
    done = adopt(url, schema=schema, force=args.force, lock_timeout=args.lock_timeout, on_step=_print_step)
    print(f"adopted schema {schema}: {done.events:,} events and {done.jobs:,} jobs changed")
    return Exit.DONE


def _print_step(text: str) -> None:
    print(text, file=sys.stderr)


def _adoption_text(plan: AdoptionPlan, schema: str) -> Iterator[str]:
    if not plan.needed:
        yield f"schema {schema} has transaction numbers of this cluster ({plan.system}): nothing to adopt"
        return
    yield f"schema {schema} has transaction numbers of another cluster ({plan.owner}; this is {plan.system})."
    yield "An adoption would:"
    if plan.ahead:
        yield f"- renumber the events of the log (about {plan.events:,} rows) in their order, a day at a time"
    yield f"- scan about {plan.jobs:,} jobs, and clear the numbers that this cluster has not reached"
    yield "- record this cluster as their owner. Until then, reading the log fails; jobs run as before"
    yield "After it, cursors, stream checkpoints and outputs of queuert history from before are refused:"
    yield "start them again from the beginning."
    if plan.workers:
        yield f"{plan.workers} worker(s) are alive: stop them first."
    yield "Add --yes to adopt it."


def _print_where(url: str, schema: str) -> int:
    print(status_line(_status(url, schema), schema))
    return Exit.DONE


def _status(url: str, schema: str) -> migrations.MigrationStatus:
    from queuert import migrations

    with _known_revisions():
        return migrations.status(url, schema=schema)


def status_line(status: migrations.MigrationStatus, schema: str) -> str:
    """The revision of a schema, in one line."""
    where = "has no tables of Queuert" if status.current is None else f"is at revision {status.current}"
    if not status.pending:
        return f"schema {schema} {where}: up to date"
    return f"schema {schema} {where}; pending: {', '.join(status.pending)} (run {upgrade_command(schema)})"


@contextmanager
def _known_revisions() -> Iterator[None]:
    """Raise a MigrationError that says what to do where Alembic does not know a revision."""
    from alembic.util import CommandError

    try:
        yield
    except CommandError as error:
        raise MigrationError(
            f"{error}: this version of Queuert does not know the revision; a newer version may have migrated the schema"
        ) from error
