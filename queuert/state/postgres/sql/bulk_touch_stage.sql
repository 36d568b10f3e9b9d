-- Say that a staging table is in use. No row: it was dropped.
UPDATE {schema}.bulk_stage SET touched_at = clock_timestamp() WHERE name = %(name)s RETURNING name
