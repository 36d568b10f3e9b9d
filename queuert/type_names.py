"""Checks the names of job types."""

from __future__ import annotations

import re

from queuert.errors import DefinitionError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*")
_MAX_NAME = 128


def checked_type_name(name: object) -> str:
    """Return the name, if it is allowed for a job type.

    Raises:
        DefinitionError: it is not 1 to 128 characters of ``A-Z a-z 0-9 _ . : / -`` beginning with a letter or ``_``.
    """
    if isinstance(name, str) and len(name) <= _MAX_NAME and _NAME.fullmatch(name):
        return name
    shown = repr(name) if len(repr(name)) <= 2 * _MAX_NAME else f"one of {len(repr(name))} characters"
    raise DefinitionError(
        f"a job type name must be 1 to {_MAX_NAME} characters of A-Z a-z 0-9 _ . : / - and begin with a letter or _, "
        f"got {shown}"
    )
