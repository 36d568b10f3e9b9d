"""``queuert doctor``: checks a store, and says what is wrong, why it matters, and how to fix it."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from queuert.cli.exit_codes import Exit, UsageError
from queuert.cli.list_options import output_options
from queuert.cli.options import Commands, add_command, database_options, existing_store
from queuert.cli.output import print_json, shown
from queuert.state.diagnosis import CHECKS, Diagnosable, Finding, Severity

_DESCRIPTION = """Check the database: its settings, the schema, the roles, old transactions, the
listener, workers, retention and more. For each problem it prints what is wrong,
why it matters, and how to fix it. It changes nothing.

Run it with the address that workers have, to check what they see.
"""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "doctor",
        run,
        help="check the database, and say how to fix it",
        description=_DESCRIPTION,
        parents=[debug, database_options(), output_options()],
        exit_codes={
            Exit.DONE: "no check found an error or a warning",
            Exit.FAILED: "at least one error",
            Exit.WARNINGS: "at least one warning, and no error",
        },
    )
    parser.add_argument(
        "--ignore",
        action="append",
        type=_check,
        default=[],
        metavar="CHECK",
        help="leave out what this check found, also in the exit code; may be repeated",
    )


def _check(text: str) -> str:
    if text not in CHECKS:
        raise argparse.ArgumentTypeError(f"must be the name of a check, got {text!r}: use {', '.join(sorted(CHECKS))}")
    return text


def run(args: argparse.Namespace) -> int:
    """Print the findings."""
    state = existing_store(args, application_name="queuert doctor")
    if not isinstance(state, Diagnosable):
        raise UsageError(f"the address must be one of a store that doctor can check, got a {type(state).__name__}")
    findings = [finding for finding in state.diagnose() if finding.check not in args.ignore]
    if args.json:
        print_json({"items": [asdict(finding) for finding in findings]})
    else:
        _print(findings)
    found = {finding.severity for finding in findings}
    if Severity.ERROR in found:
        return Exit.FAILED
    return Exit.WARNINGS if Severity.WARNING in found else Exit.DONE


def _print(findings: Sequence[Finding]) -> None:
    if not findings:
        print("nothing found but what is ignored")
        return
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        print(f"{finding.severity:<7}  {finding.check:<{width}}  {shown(finding.found)}")
        for label, text in (("why", finding.reason), ("fix", finding.remedy)):
            if text:
                print(f"{'':<{7 + 2 + width}}  {label}: {shown(text)}")
    counts = Counter(finding.severity for finding in findings)
    print(", ".join(f"{counts[severity]} {severity}" for severity in Severity if counts[severity]))
