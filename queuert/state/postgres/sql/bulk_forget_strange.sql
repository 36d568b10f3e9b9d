-- Forget rows with names that no bulk write makes. Nothing is dropped for them. A row that somebody holds is passed over.
DELETE FROM {schema}.bulk_stage
WHERE name IN (
    SELECT name FROM {schema}.bulk_stage WHERE name !~ '^bulk_stage_[0-9a-f]{32}$' FOR UPDATE SKIP LOCKED
)
