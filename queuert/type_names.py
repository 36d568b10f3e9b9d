"""What a job type may be called."""

from __future__ import annotations

import re

from queuert.errors import DefinitionError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*")
_MAX_NAME = 128


def checked_type_name(name: object) -> str:
    """The name, if a job type can have it.

    Raises:
        DefinitionError: it cannot.
    """
    if isinstance(name, str) and len(name) <= _MAX_NAME and _NAME.fullmatch(name):
        return name
    shown = repr(name) if len(repr(name)) <= 2 * _MAX_NAME else f"of {len(repr(name))} characters"
    raise DefinitionError(
        f"the job type name {shown} is not allowed: it takes 1 to {_MAX_NAME} characters of A-Z a-z 0-9 _ . : / -, "
        "and begins with a letter or _"
    )
