"""Random sequences of a client's own calls, after each of which it must show what the plainest rules say.

No worker runs: what workers do is in the machine of the contract (``test_state_machine.py``) and on simulated time.
Here it is the client that is asked: its arguments, what it returns, and which errors it raises with nothing written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from queuert import ChainStatus, Client, Deduplicate, JobStatus, JobType, JobTypes, NewChain, PostgresState, after
from queuert.errors import (
    BlockerReferenceError,
    ChainAlreadyClosedError,
    ChainNotFoundError,
    ChainNotRetriableError,
    InvalidIdentifierError,
    JobNotTriggerableError,
    PayloadError,
)
from queuert.ids import new_id
from queuert.state.sqlite import SQLiteState
from tests.model.sequences import try_sequences

pytestmark = pytest.mark.timeout(300)

number = JobType("number", input=int, output=int)
JOB_TYPES = JobTypes(number)
ENDED = {
    ChainStatus.COMPLETED: JobStatus.COMPLETED,
    ChainStatus.CANCELLED: JobStatus.CANCELLED,
}


@dataclass
class ModelChain:
    """What the model knows of a chain of one job."""

    input: int
    blockers: tuple[str, ...]
    waits_for: set[str]
    later: bool
    key: str | None
    status: ChainStatus = ChainStatus.OPEN
    output: int | None = None

    @property
    def job_status(self) -> JobStatus:
        if self.status is not ChainStatus.OPEN:
            return ENDED[self.status]
        if self.waits_for:
            return JobStatus.BLOCKED
        return JobStatus.SCHEDULED if self.later else JobStatus.READY


class ClientMachine(RuleBasedStateMachine):
    """Calls of one client."""

    client: Client

    @initialize()
    def begin(self) -> None:
        self.chains: dict[str, ModelChain] = {}
        self.run = new_id()

    def _some(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(list(self.chains)))

    def _close(self, id: str, status: ChainStatus, output: int | None = None) -> None:
        self.chains[id].status, self.chains[id].output = status, output
        for other in self.chains.values():
            other.waits_for.discard(id)

    def _open_of(self, key: str | None) -> list[str]:
        found = [id for id, one in self.chains.items() if key is not None and one.key == key]
        return [id for id in found if self.chains[id].status is ChainStatus.OPEN]

    @rule(value=st.integers(0, 9), later=st.booleans(), key=st.sampled_from([None, None, "a", "b"]), data=st.data())
    def start(self, value: int, later: bool, key: str | None, data: st.DataObject) -> None:
        """A chain with blockers, a time or a key; one of the same key is a duplicate of it while it is open."""
        known = st.sampled_from(list(self.chains)) if self.chains else st.nothing()
        blockers = tuple(data.draw(st.lists(known, unique=True, max_size=2)) if self.chains else ())
        stands_in = self._open_of(key)
        started = self.client.start_chain(
            number,
            value,
            run_at=after(hours=1) if later else None,
            blockers=blockers,
            deduplication=None if key is None else Deduplicate(f"{self.run} {key}"),
        )
        if stands_in:
            assert [started.id] == stands_in
            return
        assert started.id not in self.chains
        waits_for = {one for one in blockers if self.chains[one].status is ChainStatus.OPEN}
        self.chains[started.id] = ModelChain(value, blockers, waits_for, later, key)

    @rule(count=st.integers(1, 3))
    def start_many(self, count: int) -> None:
        """Several at once, handles in order."""
        started = self.client.start_chains([NewChain(number, place) for place in range(count)])
        for place, one in enumerate(started):
            self.chains[one.id] = ModelChain(place, (), set(), later=False, key=None)

    @rule(wrong=st.sampled_from(["input", "blocker", "id"]))
    def start_wrongly(self, wrong: str) -> None:
        """One that cannot be stored takes the others with it: the invariant sees that none of them is there."""
        first = new_id()
        not_a_number: Any = float("nan")
        others: dict[str, tuple[NewChain[int], type[Exception]]] = {
            "input": (NewChain(number, not_a_number), PayloadError),
            "blocker": (NewChain(number, 1, blockers=["nobody"]), ChainNotFoundError),
            "id": (NewChain(number, 1, id=first), InvalidIdentifierError),
        }
        second, error = others[wrong]
        with pytest.raises(error):
            self.client.start_chains([NewChain(number, 1, id=first), second])
        with pytest.raises(ChainNotFoundError):
            self.client.get_chain(first)

    @precondition(lambda self: self.chains)
    @rule(data=st.data(), output=st.integers(0, 9))
    def complete(self, data: st.DataObject, output: int) -> None:
        id = self._some(data)
        if self.chains[id].status is not ChainStatus.OPEN:
            with pytest.raises(ChainAlreadyClosedError):
                self.client.complete_chain(id, output)
            return
        self.client.complete_chain(id, output)
        self._close(id, ChainStatus.COMPLETED, output)

    @precondition(lambda self: self.chains)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = self._some(data)
        was_open = self.chains[id].status is ChainStatus.OPEN
        assert self.client.cancel_chain(id) is was_open
        if was_open:
            self._close(id, ChainStatus.CANCELLED)

    @precondition(lambda self: self.chains)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        """Only cancelled ones here; it is due at once, and waits again for those that are open, as others do for it."""
        id = self._some(data)
        one = self.chains[id]
        if one.status is not ChainStatus.CANCELLED:
            with pytest.raises(ChainNotRetriableError):
                self.client.retry_chain(id)
            return
        if self._open_of(one.key):
            return  # Two open chains of one key: the contract's machine has it.
        self.client.retry_chain(id)
        one.status, one.later = ChainStatus.OPEN, False
        one.waits_for = {other for other in one.blockers if self.chains[other].status is ChainStatus.OPEN}
        # Who still waits for others waits for this one again; who was released is let be.
        for other in self.chains.values():
            if id in other.blockers and other.job_status is JobStatus.BLOCKED:
                other.waits_for.add(id)

    @precondition(lambda self: self.chains)
    @rule(data=st.data())
    def trigger(self, data: st.DataObject) -> None:
        id = self._some(data)
        if self.chains[id].job_status not in {JobStatus.READY, JobStatus.SCHEDULED}:
            with pytest.raises(JobNotTriggerableError):
                self.client.trigger_job(id)
            return
        self.client.trigger_job(id)
        self.chains[id].later = False

    @precondition(lambda self: self.chains)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        id = self._some(data)
        if any(id in other.blockers for other in self.chains.values()):
            with pytest.raises(BlockerReferenceError):
                self.client.delete_chain(id)
            return
        assert self.client.delete_chain(id)
        assert not self.client.delete_chain(id)
        del self.chains[id]

    @invariant()
    def client_shows_the_model(self) -> None:
        if not self.chains:
            return
        ids = list(self.chains)
        shown = {chain.id: chain for chain in self.client.get_chains(ids)}
        assert list(shown) == ids
        for id, one in self.chains.items():
            assert (shown[id].status, shown[id].input) == (one.status, one.input)
            job = self.client.get_job(id)
            assert (job.status, job.output) == (one.job_status, one.output)
            assert {blocker.chain_id for blocker in self.client.get_blockers(id)} == set(one.blockers)


def test_any_calls_on_postgres(dsn: str) -> None:
    with Client(PostgresState(dsn), JOB_TYPES) as client:
        try_sequences(ClientMachine, 15, client=client)


def test_any_calls_on_sqlite(tmp_path: Path) -> None:
    with Client(SQLiteState(tmp_path / "queue.db"), JOB_TYPES) as client:
        try_sequences(ClientMachine, 25, client=client)


def test_any_calls_in_memory() -> None:
    with Client(SQLiteState(), JOB_TYPES) as client:
        try_sequences(ClientMachine, 25, client=client)
