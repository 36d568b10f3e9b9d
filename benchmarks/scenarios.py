"""All scenarios, and the choice among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.model import Kind, Scenario
from benchmarks.scenarios_large import DEFAULT, Sizes, large
from benchmarks.scenarios_postgres import POSTGRES
from benchmarks.scenarios_redis import REDIS


def scenarios(sizes: Sizes = DEFAULT) -> tuple[Scenario, ...]:
    """All of them; their names are the same at all sizes."""
    return (*POSTGRES, *large(sizes), *REDIS)


SCENARIOS = scenarios()


def names(among: Sequence[Scenario]) -> list[str]:
    """What may be asked for: stores, scenarios, contestants."""
    found = [one.store.value for one in among] + [one.name for one in among]
    found += [entry.contestant.name for one in among for entry in one.entries]
    return list(dict.fromkeys(found))


def chosen(among: Sequence[Scenario], wanted: Sequence[str]) -> list[Scenario]:
    """The scenarios of these names or stores; of these peers alone when some are named, beside ours and the ceiling."""
    peers = {entry.contestant.name for one in among for entry in one.entries} & set(wanted)
    places = set(wanted) - peers
    found = [one for one in among if not places or places & {one.store.value, one.name}]
    if peers:
        found = [_among(one, peers) for one in found]
        found = [one for one in found if peers & {entry.contestant.name for entry in one.entries}]
    return found


def _among(scenario: Scenario, peers: set[str]) -> Scenario:
    """Without a peer among them, these alone."""
    kinds = {entry.contestant.kind for entry in scenario.entries if entry.contestant.name in peers}
    always = (Kind.OURS, Kind.BARE) if Kind.PEER in kinds else ()
    kept = [one for one in scenario.entries if one.contestant.name in peers or one.contestant.kind in always]
    return replace(scenario, entries=tuple(kept))
