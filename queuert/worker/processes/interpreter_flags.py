"""The command line options of this interpreter, for another one: by a private function of the standard library."""

from __future__ import annotations

import subprocess
import sys

_OPTIONS = {
    "isolated": "-I",
    "ignore_environment": "-E",
    "no_user_site": "-s",
    "safe_path": "-P",
    "no_site": "-S",
    "dont_write_bytecode": "-B",
}


def interpreter_flags() -> list[str]:
    """Return the options that a child needs to import and warn as this process does."""
    private_function = getattr(subprocess, "_args_from_interpreter_flags", None)
    return list(private_function()) if private_function is not None else _public_flags()


def _public_flags() -> list[str]:
    """Return the options from public attributes, without ``-X`` options other than ``dev``."""
    flags = [option for name, option in _OPTIONS.items() if getattr(sys.flags, name)]
    if sys.flags.optimize:
        flags.append("-" + "O" * sys.flags.optimize)
    if sys.flags.dev_mode:
        flags += ["-X", "dev"]
    return [*flags, *(f"-W{option}" for option in sys.warnoptions)]
