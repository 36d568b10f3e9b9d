"""One module a contestant, each run as a program of its own, in an environment of its own."""
