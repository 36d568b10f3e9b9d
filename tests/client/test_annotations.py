"""Annotations of the client's methods can be evaluated, as steps and tools for documents do."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

from queuert import AsyncChain, AsyncClient, Chain, Client


@pytest.mark.parametrize("of", [Client, AsyncClient, Chain, AsyncChain])
def test_annotations_of_all_methods_can_be_evaluated(of: type) -> None:
    for name, method in inspect.getmembers(of, inspect.isfunction):
        if not name.startswith("_"):
            assert get_type_hints(method) is not None, name
