"""Clients, sync and async, which start, await, list and manage chains."""

from queuert.client.async_chain import AsyncChain
from queuert.client.async_client import AsyncClient
from queuert.client.middleware import ClientMiddleware
from queuert.client.sync_chain import Chain
from queuert.client.sync_client import Client
from queuert.new_chain import ChainOptions, ChainReference, NewChain, RequestOptions

__all__ = [
    "AsyncChain",
    "AsyncClient",
    "Chain",
    "ChainOptions",
    "ChainReference",
    "Client",
    "ClientMiddleware",
    "NewChain",
    "RequestOptions",
]
