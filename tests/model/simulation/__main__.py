"""Show how one seed goes: ``python -m tests.model.simulation SEED [JOB]``."""

from __future__ import annotations

import argparse

from tests.model.simulation.judge import faults
from tests.model.simulation.plan import plan
from tests.model.simulation.scenario import Scenario


def timeline(run: Scenario, job: str | None) -> list[str]:
    """All that became of the run, or of one job in it, in its order."""
    lines: list[tuple[float, str]] = [
        (run.epoch + one.at, f"fault   {one.kind} {one.target}, {one.seconds:.3f} s") for one in run.plan.faults
    ]
    for entry in run.server.store.record:
        if job in (None, entry.job_id):
            until = f" until {entry.until - run.epoch:.3f}" if entry.until else ""
            lines.append(
                (entry.at, f"store   {entry.what}: {entry.job_id}/{entry.attempt} {entry.holder or ''}{until}")
            )
    for machine in run.machines:
        for at, event in machine.reported.events:
            if job is None or getattr(event, "job_id", job) == job:
                lines.append((at, f"told    {event}"))
    for one in run.desk.sittings:
        if job in (None, one.attempt.job_id):
            what = f"{one.attempt.job_id}/{one.attempt.number} in {one.process.name}"
            lines.append((one.began, f"handler begins {what}"))
            if one.ended is not None:
                lines.append((one.ended, f"handler ends {what}, told {one.attempt.abort.reason}"))
    return [f"{at - run.epoch:9.3f} {line}" for at, line in sorted(lines, key=lambda one: one[0])]


def main() -> None:
    """Run the seed and print the result of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.simulation", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("job", nargs="?")
    requested = parser.parse_args()
    run = Scenario(plan(requested.seed))
    run.run()
    print(run.plan)
    for line in [*timeline(run, requested.job), *faults(run)]:
        print(line)


if __name__ == "__main__":
    main()
