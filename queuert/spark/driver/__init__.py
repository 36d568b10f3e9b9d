"""From a driver: requests for the rows of a DataFrame, waiting with progress, and the results as a DataFrame."""
