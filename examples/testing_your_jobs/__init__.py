"""A small program that uses queuert, and its tests: `python -m pytest examples/testing_your_jobs` runs them."""
