"""Speed, as ratios to the raw ceiling, measured side by side in one run: ``make bench``."""
