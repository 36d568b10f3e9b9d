-- Which schema of which database of which cluster this is, for names outside of it: the same by any address, and another
-- one after it was dropped and made anew.
SELECT system.system_identifier::text, database.oid::text,
    (SELECT relnamespace::text FROM pg_class WHERE oid = '{schema}.bulk_write'::regclass)
FROM pg_control_system() AS system, pg_database AS database
WHERE database.datname = current_database()
