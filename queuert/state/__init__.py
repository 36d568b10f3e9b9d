"""Where jobs live: the contract of a state adapter, and its stores."""

from queuert.state.adapter import Capability, StateAdapter
from queuert.state.async_store import AsyncStore, AsyncStoreTransaction
from queuert.state.sync_store import Store, StoreTransaction

__all__ = ["AsyncStore", "AsyncStoreTransaction", "Capability", "StateAdapter", "Store", "StoreTransaction"]
