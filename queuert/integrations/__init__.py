"""Integrations with other libraries, one a module; each needs the extra of its name."""
