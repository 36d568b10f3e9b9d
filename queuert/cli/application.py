"""Imports and checks the application of a worker: ``MODULE:ATTRIBUTE``."""

from __future__ import annotations

import importlib
import inspect
import os
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from queuert.cli.exit_codes import UsageError
from queuert.cli.options import URL_VARIABLE, current_directory_is_importable
from queuert.job_types import JobTypes
from queuert.worker import InProcessWorker, Processors

Application: TypeAlias = InProcessWorker | list[Processors]

_EXPECTED = "a Processors, a sequence of them, an InProcessWorker, or a function that returns one of these"


def load(target: str, settings: Mapping[str, Any] | None = None) -> Application:
    """Import what ``MODULE:ATTRIBUTE`` names. A function is called with those settings that it has parameters for; a
    parameter ``url`` without a default gets the address of ``QUEUERT_URL`` if no setting has it.

    Raises:
        UsageError: it does not exist, importing or calling it failed, it has other parameters without a default, or it
            has a wrong type.
    """
    return load_with(target, settings or {})[0]


def load_with(target: str, settings: Mapping[str, Any]) -> tuple[Application, frozenset[str]]:
    """As :func:`load`, with the names of the settings that a function was called with."""
    found = attribute_of(target)
    passed: dict[str, Any] = {}
    if callable(found):
        passed = _arguments(found, target, settings)
        found = _called(found, target, passed)
    return checked(found, target), frozenset(passed)


def load_job_types(target: str) -> JobTypes:
    """The job types that ``MODULE:ATTRIBUTE`` names: a JobTypes, or those of an application.

    Raises:
        UsageError: as of :func:`load`.
        DuplicateJobTypeError: two different job types have one name.
    """
    found = attribute_of(target)
    if isinstance(found, JobTypes):
        return found
    application = load(target)
    return application.client.job_types if isinstance(application, InProcessWorker) else merged_job_types(application)


def attribute_of(target: str) -> Any:
    """What ``MODULE:ATTRIBUTE`` names, as it is.

    Raises:
        UsageError: it does not exist, or importing its module failed.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"the application must be MODULE:ATTRIBUTE, such as app.jobs:processors, got {target!r}")
    return _attribute(imported(module_name), attribute, target)


def _arguments(function: Any, target: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a function is called with."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # A callable of C without a signature.
        return {}
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    passed = {one.name: settings[one.name] for one in named if one.name in settings}
    lacking = [one.name for one in named if one.default is one.empty and one.name not in passed]
    if "url" in lacking and os.environ.get(URL_VARIABLE):
        passed["url"] = os.environ[URL_VARIABLE]
        lacking.remove("url")
    if "url" in lacking:
        raise UsageError(f"{target!r} needs an address: pass --url, or set {URL_VARIABLE}")
    if lacking:
        raise UsageError(f"{target!r} must be callable without {', '.join(lacking)}: give these parameters a default")
    return passed


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
    # Code of Python that is frozen into the interpreter has no file, such as <frozen os>.
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith("<")]
    frames = [one for one in frames if one.filename != __file__]
    own = [one for one in frames if _is_own(Path(one.filename))] or frames
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return UsageError(f"{what} failed: {type(error).__name__}: {error}{where}; --debug shows the traceback")


def _is_own(path: Path) -> bool:
    """Whether a file is of the application: not of Python, of an installed package, or of Queuert."""
    installed = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not any(path.is_relative_to(one) for one in {*installed, Path(__file__).parents[1]})
