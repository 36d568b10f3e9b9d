"""What is measured, of whom, and what came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from benchmarks.arithmetic import Spread, paired_ratios, spread


class Store(Enum):
    """The server that a scenario runs on."""

    POSTGRES = "postgres"
    REDIS = "redis"


class Kind(Enum):
    """What a contestant is to us."""

    OURS = "ours"
    BARE = "bare"
    PEER = "peer"


@dataclass(frozen=True)
class Contestant:
    """A program that is measured.

    Attributes:
        name: its name on the command line and in the report.
        module: the module that is run.
        kind: us, the ceiling, or a peer.
        peer: the file of requirements in ``benchmarks/peers``; None runs in this project's own environment.
        package: the distribution whose version is reported.
        needs: the oldest Python that it runs on.
        optional: a failure of it is no failure of the run: a tool that may be absent.
    """

    name: str
    module: str
    kind: Kind
    peer: str | None = None
    package: str | None = None
    needs: tuple[int, int] = (3, 11)
    optional: bool = False

    @property
    def may_fail(self) -> bool:
        """Whether the run is good without it."""
        return self.optional or self.kind is Kind.PEER


@dataclass(frozen=True)
class Entry:
    """One configuration of a contestant in a scenario.

    Attributes:
        contestant: who.
        label: its name in the report.
        settings: how it is configured, in words.
        options: the same for its program.
        share: its part of the run's jobs: slow contestants are given fewer.
        processes: how many workers share the jobs, each a process.
        snapshot: whether an old snapshot is held open for as long as it is measured.
        kept: whether it is measured on one database, round after round, instead of a copy for each: for databases so
            large that a measurement hardly changes them.
    """

    contestant: Contestant
    label: str
    settings: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    share: float = 1.0
    processes: int = 1
    snapshot: bool = False
    kept: bool = False

    @property
    def filled(self) -> str:
        """What of its options decides what a database is filled with."""
        return " ".join(f"{name}={self.options[name]}" for name in ("rows", "types") if name in self.options)

    def jobs(self, jobs: int) -> int:
        """How many jobs it is given in a run of ``jobs``."""
        return max(10, round(jobs * self.share))


@dataclass(frozen=True)
class Scenario:
    """Something that several contestants do in turn.

    Attributes:
        name: on the command line.
        title: in the report.
        store: the server.
        action: the function of the contestants that is measured.
        entries: who takes part; the first is ours, and the ratios are ours to theirs.
        loaded: the function that fills the database before it, out of the measurement; None leaves it empty.
        metric: the number that counts.
        unit: of that number.
        more_is_better: or less.
        note: what is to be known of it.
        share: its part of the run's jobs.
        paced: the jobs are started by a second process while the first waits for them.
        load: with ``paced``: the part of what the entry can drain that is offered to it; 0 starts jobs far apart.
        observed: whether the server's work is told too; not where it does more than what is measured.
    """

    name: str
    title: str
    store: Store
    action: str
    entries: tuple[Entry, ...]
    loaded: str | None = None
    metric: str = "rate"
    unit: str = "jobs/s"
    more_is_better: bool = True
    note: str = ""
    share: float = 1.0
    paced: bool = False
    load: float = 0.0
    observed: bool = True


@dataclass
class Series:
    """What one entry achieved: the numbers of each round, or why there are none."""

    entry: Entry
    jobs: int
    samples: dict[int, dict[str, float]] = field(default_factory=dict)
    error: str | None = None

    def values(self, metric: str) -> dict[int, float]:
        """One number of each round."""
        return {number: sample[metric] for number, sample in self.samples.items() if metric in sample}

    def spread(self, metric: str) -> Spread | None:
        """The median of one number, and its extremes."""
        return spread(list(self.values(metric).values()))


@dataclass
class Outcome:
    """All that was measured in a scenario."""

    scenario: Scenario
    series: list[Series]
    seconds: float = 0.0

    def ratio(self, ours: Series, theirs: Series) -> Spread | None:
        """How many times as good as theirs ours is, round by round."""
        metric = self.scenario.metric
        this, that = ours.values(metric), theirs.values(metric)
        return spread(paired_ratios(this, that) if self.scenario.more_is_better else paired_ratios(that, this))

    def find(self, label: str) -> Series | None:
        """The series of an entry by its label."""
        return next((one for one in self.series if one.entry.label == label), None)
