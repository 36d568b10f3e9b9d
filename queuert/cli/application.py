"""Imports and checks the application of a worker: ``MODULE:ATTRIBUTE``."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from queuert.cli.exit_codes import UsageError
from queuert.cli.options import current_directory_is_importable
from queuert.job_types import JobTypes
from queuert.worker import InProcessWorker, Processors

Application: TypeAlias = InProcessWorker | list[Processors]

_EXPECTED = "a Processors, a sequence of them, an InProcessWorker, or a function that returns one of these"


def load(target: str) -> Application:
    """Import what ``MODULE:ATTRIBUTE`` names; a function is called without arguments.

    Raises:
        UsageError: it does not exist, importing or calling it failed, or it has a wrong type.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"the application must be MODULE:ATTRIBUTE, such as app.jobs:processors, got {target!r}")
    found = _attribute(_module(module_name), attribute, target)
    if callable(found):
        found = _called(found, target)
    return _checked(found, target)


def merged_job_types(groups: Sequence[Processors]) -> JobTypes:
    """The job types of all groups; groups often share them.

    Raises:
        DuplicateJobTypeError: two different job types have one name.
    """
    distinct = {id(job_type): job_type for group in groups for job_type in group.job_types}
    return JobTypes(*distinct.values())


def _module(name: str) -> Any:
    current_directory_is_importable()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"no module {error.name!r}: it is neither installed nor in the current directory"
            ) from error
        raise _failed(f"importing {name!r}", error) from error
    except (Exception, SystemExit) as error:
        raise _failed(f"importing {name!r}", error) from error


def _attribute(module: Any, path: str, target: str) -> Any:
    found = module
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise UsageError(f"{target!r} not found: module {module.__name__!r} has no attribute {name!r}") from error
    return found


def _called(function: Any, target: str) -> Any:
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise _failed(f"calling {target!r}", error) from error


def _checked(found: Any, target: str) -> Application:
    if isinstance(found, InProcessWorker):
        return found
    groups = [found] if isinstance(found, Processors) else found
    if isinstance(groups, list | tuple) and groups and all(isinstance(group, Processors) for group in groups):
        return list(groups)
    raise UsageError(f"{target!r} must be {_EXPECTED}, got {_described(found)}")


def _described(found: Any) -> str:
    return f"an empty {type(found).__name__}" if found in ([], ()) else f"an object of type {type(found).__name__}"


def _failed(what: str, error: BaseException) -> UsageError:
    """The application's own error, with the line that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return UsageError(f"{what} failed: {type(error).__name__}: {error}{where}; --debug shows the traceback")
