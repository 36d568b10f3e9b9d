"""The options of this interpreter for another one: the standard library knows them, under a private name."""

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
    """The options that a child needs to import and warn as this process does."""
    known = getattr(subprocess, "_args_from_interpreter_flags", None)
    return list(known()) if known is not None else _public_flags()


def _public_flags() -> list[str]:
    """The same from what is documented, without ``-X`` options other than ``dev``."""
    flags = [option for name, option in _OPTIONS.items() if getattr(sys.flags, name)]
    if sys.flags.optimize:
        flags.append("-" + "O" * sys.flags.optimize)
    if sys.flags.dev_mode:
        flags += ["-X", "dev"]
    return [*flags, *(f"-W{option}" for option in sys.warnoptions)]
