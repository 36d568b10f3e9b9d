"""``python -m queuert``: the command line."""

from queuert.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
