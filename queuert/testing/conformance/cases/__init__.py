"""The cases, a module a group."""
