-- Drop the staging table of a bulk write. It waits for tasks that still load it, as long as the lock timeout allows.
DROP TABLE IF EXISTS {schema}.{stage}
