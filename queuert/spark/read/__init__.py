"""Jobs, chains, attempts, events and workers as DataFrames, and the event log as a stream."""
