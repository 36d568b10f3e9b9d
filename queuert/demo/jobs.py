"""The demo's handlers, sync and async, with their own writes and the job's finish in one transaction."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from queuert.demo import tables
from queuert.demo.job_types import (
    Indexed,
    Measured,
    Report,
    ReportOrder,
    SourceFile,
    index,
    job_types,
    measure,
    report,
)
from queuert.demo.report import Library, Module, render, summary
from queuert.demo.settings import LEASE_VARIABLE
from queuert.demo.source import UNREADABLE, inspect_source, line_count
from queuert.outcomes import Outcome
from queuert.policies import LeasePolicy, RetryPolicy
from queuert.worker import Attempt, Processors

processors = Processors(
    job_types,
    retry=RetryPolicy(initial_delay=0.1, max_delay=1.0),
    lease=LeasePolicy(seconds=float(os.environ.get(LEASE_VARIABLE, "3"))),
)


@processors.handles(measure)
def measure_file(attempt: Attempt[SourceFile, Indexed]) -> Outcome[Indexed]:
    """Parse a file: a plain function, which runs in a thread. What cannot be parsed is a result, not a failure."""
    file = attempt.input
    time.sleep(file.pause)
    content = Path(file.path).read_bytes()
    lines = line_count(content)
    try:
        symbols, imports = inspect_source(content, file.module, is_package=file.path.endswith("__init__.py"))
    except UNREADABLE as error:
        reason = f"{type(error).__name__}: {error}"
        with attempt.complete() as tx:
            tx.connection.execute(tables.ADD_FILE, _file_row(attempt, lines, reason))
            tx.connection.execute(tables.ADD_EFFECT, _effect_row(attempt))
            return tx.finish(Indexed(module=file.module, lines=lines, error=reason))
    return attempt.continue_with(
        index,
        Measured(**file.model_dump(exclude={"pause"}), lines=lines, symbols=symbols, imports=imports),
        priority=1,  # A chain that was begun is finished before another is.
    )


@processors.handles(index)
async def index_file(attempt: Attempt[Measured, Indexed]) -> Outcome[Indexed]:
    """Write what was found: a coroutine."""
    found = attempt.input
    async with attempt.complete() as tx:
        await tx.connection.execute(tables.ADD_FILE, _file_row(attempt, found.lines, None))
        await tx.connection.execute(
            tables.ADD_SYMBOLS,
            (
                found.module,
                [symbol.kind for symbol in found.symbols],
                [symbol.name for symbol in found.symbols],
                [symbol.line for symbol in found.symbols],
            ),
        )
        await tx.connection.execute(
            tables.ADD_IMPORTS,
            (found.module, [one.target for one in found.imports], [one.at_top for one in found.imports]),
        )
        await tx.connection.execute(tables.ADD_EFFECT, _effect_row(attempt))
        return tx.finish(
            Indexed(module=found.module, lines=found.lines, symbols=len(found.symbols), imports=len(found.imports))
        )


@processors.handles(report)
def write_report(attempt: Attempt[ReportOrder, Report]) -> Outcome[Report]:
    """Write the report, when every chain that it waits for has closed; their outputs are the attempt's blockers."""
    outputs = [blocker.output for blocker in attempt.blockers if blocker.output is not None]
    unreadable = {output.module: output.error for output in outputs if output.error}
    with attempt.complete() as tx:
        library = _library(tx.connection, unreadable)
        # The name stands for a whole report at any moment, however often this runs.
        path = Path(attempt.input.path)
        beside = path.with_name(f"{path.name}.{attempt.job_id}.{attempt.number}")
        beside.write_text(render(library), encoding="utf-8")
        beside.replace(path)
        tx.connection.execute(tables.ADD_EFFECT, _effect_row(attempt))
        return tx.finish(summary(library, str(path)))


def _library(connection: Any, unreadable: dict[str, str]) -> Library:
    return Library(
        modules=[Module(*row) for row in connection.execute(tables.GET_MODULES)],
        imports=list(connection.execute(tables.GET_IMPORTS)),
        unreadable=unreadable,
    )


def _file_row(attempt: Attempt[Any, Any], lines: int, error: str | None) -> tuple[Any, ...]:
    file = attempt.input
    return (attempt.chain_id, file.module, file.path, file.size, lines, file.digest, error)


def _effect_row(attempt: Attempt[Any, Any]) -> tuple[Any, ...]:
    return (attempt.job_id, attempt.chain_id, attempt.number, attempt.worker)
