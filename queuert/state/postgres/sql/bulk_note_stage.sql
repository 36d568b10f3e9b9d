-- Note a staging table, so that it is found when its driver dies.
INSERT INTO {schema}.bulk_stage (name, write_id) VALUES (%(name)s, %(write_id)s)
