"""``queuert migrate``: bring a database's schema to a revision, or say where it stands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from queuert import migrations
from queuert.cli.exit_codes import Exit, UsageError
from queuert.cli.options import Commands, Run, database_options, postgres, schema_name, seconds
from queuert.errors import MigrationError
from queuert.state.postgres.adoption import AdoptionPlan, adopt, how_moved, plan_adoption
from queuert.state.postgres.roles import Role, grant_roles, role_names, roles_sql

_DESCRIPTION = """Create, upgrade, downgrade or look at Queuert's tables.

Give the address of Postgres itself, not of a pooler: the lock that keeps migrators apart belongs to a session.
Any number of migrators may run at once; one works and the others wait for it.
"""

_ROLES = """Print the SQL that makes roles for workers, clients, Spark's writers, operators and observers, and grants
each what it needs; with --apply, run it as the owner of the schema. Run it again after each upgrade.
"""

_ADOPT = """Adopt a database that was moved from another cluster of Postgres, by a dump or by logical replication:
its event log and its closed chains have transaction numbers of the old cluster. Without --yes it says what it would do.

Stop the workers first. Run it as the owner of the schema. It locks rows and no tables, a day of the log or 64 MiB of
jobs at a time. Running it again does nothing, or goes on after a failure.
"""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command and its actions."""
    parser = commands.add_parser(
        "migrate",
        help="create, upgrade or look at the schema",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[debug],
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
    shared = [debug, database_options()]

    def add(name: str, run: Run, help: str, description: str) -> argparse.ArgumentParser:
        action: argparse.ArgumentParser = actions.add_parser(name, help=help, description=description, parents=shared)
        action.set_defaults(run=run)
        return action

    up = add("up", run_up, "upgrade, creating the schema if need be", "Upgrade the schema; again does nothing.")
    down = add("down", run_down, "downgrade: this drops jobs", "Take the schema back to a revision. This drops jobs.")
    add("status", run_status, "say where the schema stands", "Exit code 1 when revisions are pending.")
    sql = add("sql", run_sql, "print the SQL of an upgrade", "Print the SQL, for review or psql; no database needed.")
    stamp = add("stamp", run_stamp, "record a revision, run nothing", "For SQL that was applied by hand.")
    _role_options(add("roles", run_roles, "print or apply the grants of roles with few rights", _ROLES))
    adopting = add("adopt", run_adopt, "adopt a database that was moved from another cluster", _ADOPT)
    adopting.add_argument("--yes", action="store_true", help="do it (default: say what would be done)")
    adopting.add_argument("--force", action="store_true", help="also while workers live")
    for action in (up, stamp):
        _revision(action, default="head", help="the revision to reach (default: head)")
    _revision(sql, default="head", help="the revision to reach, or FROM:TO (default: head)")
    _revision(down, default=None, help="the revision to go back to; base for nothing at all")
    down.add_argument("--yes", action="store_true", help="yes, drop what the later revisions hold")
    for action in (up, down, stamp, adopting):
        action.add_argument(
            "--lock-timeout",
            type=seconds,
            default=60.0,
            metavar="SECONDS",
            help="how long to wait for another migrator, and for each table (default: 60)",
        )


def _revision(action: argparse.ArgumentParser, *, default: str | None, help: str) -> None:
    action.add_argument("--revision", default=default, required=default is None, help=help)


def _role_options(action: argparse.ArgumentParser) -> None:
    action.add_argument("--apply", action="store_true", help="run it (default: print it; no database needed)")
    for role in Role:
        action.add_argument(
            f"--{role}", metavar="NAME", help=f"the name of the {role} role (default: the schema's and _{role})"
        )


def run_up(args: argparse.Namespace) -> int:
    """Upgrade."""
    url, schema = postgres(args)
    migrations.upgrade(url, schema=schema, revision=args.revision, lock_timeout=args.lock_timeout)
    return _say_where(url, schema)


def run_down(args: argparse.Namespace) -> int:
    """Downgrade, if that is really meant."""
    url, schema = postgres(args)
    if not args.yes:
        raise UsageError("a downgrade drops jobs: add --yes if that is what you want")
    migrations.downgrade(url, schema=schema, revision=args.revision, lock_timeout=args.lock_timeout)
    return _say_where(url, schema)


def run_stamp(args: argparse.Namespace) -> int:
    """Record a revision."""
    url, schema = postgres(args)
    migrations.stamp(url, schema=schema, revision=args.revision, lock_timeout=args.lock_timeout)
    return _say_where(url, schema)


def run_sql(args: argparse.Namespace) -> int:
    """Print SQL."""
    with _known_revisions():
        text = migrations.sql(schema=schema_name(args), revision=args.revision)
    sys.stdout.write(text)
    return Exit.DONE


def run_roles(args: argparse.Namespace) -> int:
    """Print what roles are granted, or grant it."""
    names = {role: str(getattr(args, role)) for role in Role if getattr(args, role) is not None}
    if not args.apply:
        sys.stdout.write(roles_sql(schema_name(args), names))
        return Exit.DONE
    url, schema = postgres(args)
    grant_roles(url, schema=schema, names=names)
    print(f"schema {schema} is granted to {', '.join(role_names(schema, names).values())}")
    return Exit.DONE


def run_status(args: argparse.Namespace) -> int:
    """Say where the schema stands; 1 when revisions are pending, or when the database is to be adopted."""
    url, schema = postgres(args)
    status = _say_status(url, schema)
    if status.pending:
        return Exit.FAILED
    moved = how_moved(url, schema=schema)
    if moved is not None:
        print(moved)
    return Exit.DONE if moved is None else Exit.FAILED


def run_adopt(args: argparse.Namespace) -> int:
    """Say what an adoption would do, or do it."""
    url, schema = postgres(args)
    plan = plan_adoption(url, schema=schema)
    if not args.yes:
        print("\n".join(_adoption_text(plan, schema)))
        return Exit.FAILED if plan.needed else Exit.DONE
    done = adopt(url, schema=schema, force=args.force, lock_timeout=args.lock_timeout, on_step=_say_step)
    print(f"schema {schema} is adopted: {done.events:,} events and {done.jobs:,} jobs changed")
    return Exit.DONE


def _say_step(text: str) -> None:
    print(text, file=sys.stderr)


def _adoption_text(plan: AdoptionPlan, schema: str) -> Iterator[str]:
    if not plan.needed:
        yield f"schema {schema} has the numbers of this cluster ({plan.system}): there is nothing to adopt"
        return
    yield f"schema {schema} has transaction numbers of another cluster ({plan.owner}; this is {plan.system})."
    yield "An adoption would"
    if plan.ahead:
        yield f"- give the events of the log (about {plan.events:,} rows) new numbers, in their order, a day at a time"
    yield f"- look through about {plan.jobs:,} jobs, and clear the numbers that this cluster has not reached"
    yield "- note this cluster as theirs. Until then readers of the log are refused; jobs go on as they are"
    yield "Cursors, checkpoints of streams and outputs of queuert history that were made before are refused afterwards:"
    yield "begin them anew."
    if plan.workers:
        yield f"{plan.workers} worker(s) live: stop them first."
    yield "Add --yes to do it."


def _say_where(url: str, schema: str) -> int:
    _say_status(url, schema)
    return Exit.DONE


def _say_status(url: str, schema: str) -> migrations.MigrationStatus:
    with _known_revisions():
        status = migrations.status(url, schema=schema)
    print(status_line(status, schema))
    return status


def status_line(status: migrations.MigrationStatus, schema: str) -> str:
    """Where a schema stands, in one line."""
    where = "holds no tables of Queuert" if status.current is None else f"is at revision {status.current}"
    if not status.pending:
        return f"schema {schema} {where}: up to date"
    return f"schema {schema} {where}; pending: {', '.join(status.pending)} (queuert migrate up)"


@contextmanager
def _known_revisions() -> Iterator[None]:
    """Alembic's refusal of a revision as an error with the way out."""
    from alembic.util import CommandError

    try:
        yield
    except CommandError as error:
        raise MigrationError(f"{error} (this version of Queuert does not know it: is a newer one deployed?)") from error
