"""Imports and checks the application of a worker: ``MODULE:ATTRIBUTE``."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from queuert.cli.exit_codes import UsageError
from queuert.cli.options import current_directory_is_importable
from queuert.job_types import JobTypes
from queuert.worker import InProcessWorker, Processors

Application: TypeAlias = InProcessWorker | list[Processors]

_EXPECTED = "a Processors, a sequence of them, an InProcessWorker, or a function that returns one of these"


def load(target: str, settings: Mapping[str, Any] | None = None) -> Application:
    """Import what ``MODULE:ATTRIBUTE`` names. A function is called with those settings that it has parameters for.

    Raises:
        UsageError: it does not exist, importing or calling it failed, or it has a wrong type.
    """
    return load_with(target, settings or {})[0]


def load_with(target: str, settings: Mapping[str, Any]) -> tuple[Application, frozenset[str]]:
    """As :func:`load`, with the names of the settings that a function was called with."""
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"the application must be MODULE:ATTRIBUTE, such as app.jobs:processors, got {target!r}")
    found = _attribute(imported(module_name), attribute, target)
    passed: dict[str, Any] = {}
    if callable(found):
        passed = {name: settings[name] for name in _parameters(found) if name in settings}
        found = _called(found, target, passed)
    return checked(found, target), frozenset(passed)


def _parameters(function: Any) -> list[str]:
    """The names of the parameters that can be passed by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # A callable of C without a signature.
        return []
    return [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]


def load_all(targets: Sequence[str], settings: Mapping[str, Any]) -> tuple[Application, frozenset[str]]:
    """Import several targets: the groups of all of them, or the one worker; and the settings that functions took.

    Raises:
        UsageError: as of :func:`load`; or one of several is a worker.
    """
    loaded = [load_with(target, settings) for target in targets]
    passed = frozenset().union(*(names for _, names in loaded))
    groups: list[Processors] = []
    for target, (found, _) in zip(targets, loaded, strict=True):
        if isinstance(found, InProcessWorker):
            if len(targets) > 1:
                raise UsageError(f"an InProcessWorker must be the only target, got {target!r} beside others")
            return found, passed
        groups += found
    return groups, passed


def merged_job_types(groups: Sequence[Processors]) -> JobTypes:
    """The job types of all groups; groups often share them.

    Raises:
        DuplicateJobTypeError: two different job types have one name.
    """
    distinct = {id(job_type): job_type for group in groups for job_type in group.job_types}
    return JobTypes(*distinct.values())


def imported(name: str) -> Any:
    """Import a module, from the current directory too.

    Raises:
        UsageError: it does not exist, or importing it failed.
    """
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


def _called(function: Any, target: str, settings: Mapping[str, Any]) -> Any:
    try:
        return function(**settings)
    except (Exception, SystemExit) as error:
        raise _failed(f"calling {target!r}", error) from error


def checked(found: Any, target: str) -> Application:
    """Return a worker, or groups of processors; raise UsageError for anything else."""
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
