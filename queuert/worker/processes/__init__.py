"""Handlers that run in a process of their own, which can be killed."""
