"""Speed beside the raw ceiling and the peers, measured in one interleaved run: ``make bench``."""
