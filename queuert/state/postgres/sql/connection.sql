-- name: now
-- The time, by the clock that decides what is due.
SELECT clock_timestamp()

-- name: schema_revision
SELECT version_num FROM {schema}.alembic_version
