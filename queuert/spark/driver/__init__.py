"""For drivers: starts a chain for each row of a DataFrame, waits with progress, returns the results as a DataFrame."""
