-- Forget a staging table that is about to be dropped in the same transaction.
DELETE FROM {schema}.bulk_stage WHERE name = %(name)s
