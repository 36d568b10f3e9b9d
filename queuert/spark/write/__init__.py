"""DataFrames and streams into the queue: rows are checked and staged by tasks, and committed by the driver."""
