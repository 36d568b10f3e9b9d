-- Note how many chains a bulk write has started.
UPDATE {schema}.bulk_write SET started = %(started)s WHERE write_id = %(write_id)s
