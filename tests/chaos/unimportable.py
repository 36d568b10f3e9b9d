"""Names no workload: importing it fails."""

raise LookupError("there is no environment")
