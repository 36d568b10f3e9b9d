-- The cluster whose transaction numbers the log and the jobs have, and the one that this server is of.
SELECT event_log.system, system.system_identifier::text FROM {schema}.event_log, pg_control_system() AS system
