-- name: doctor_server
-- Reads the version of the server, whether it is a standby, the role of this session and its rights, and the numbers of
-- connections: of this server, those in use, and those that this role and this database may have (-1: any number).
SELECT current_setting('server_version_num')::integer, pg_is_in_recovery(), role.rolname::text, role.rolsuper,
    pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all,
    current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer,
    (SELECT sum(numbackends)::integer FROM pg_stat_database), role.rolconnlimit,
    (SELECT count(*)::integer FROM pg_stat_activity WHERE usesysid = role.oid),
    (SELECT datconnlimit FROM pg_database WHERE datname = current_database())
FROM pg_roles AS role WHERE role.rolname = current_user

-- name: doctor_settings
-- Reads settings as this login has them, and where each is set.
SELECT name, setting, source FROM pg_settings WHERE name = ANY (%(names)s::text[])

-- name: doctor_pools
-- Reads how many connections the workers that are alive may open: a pool of their concurrency, at most 20, and 4, one
-- more to renew leases and one to listen.
SELECT count(*)::integer, coalesce(sum(least(concurrency, 20) + 6), 0)::integer
FROM {schema}.worker WHERE expires_at > clock_timestamp()

-- name: doctor_transactions
-- Reads the oldest transactions of sessions, and those that were prepared: each keeps vacuum from removing what was
-- deleted or changed since.
SELECT 'session', pid::text, usename::text, application_name, state,
    extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE xact_start IS NOT NULL AND backend_type = 'client backend' AND pid <> pg_backend_pid()
UNION ALL
SELECT 'prepared', gid, owner::text, database::text, 'prepared', extract(epoch FROM clock_timestamp() - prepared)::float8
FROM pg_prepared_xacts
ORDER BY 6 DESC LIMIT 1

-- name: doctor_slots
-- Reads replication slots that nobody uses.
SELECT slot_name::text FROM pg_replication_slots WHERE NOT active ORDER BY slot_name

-- name: doctor_tables
-- Reads how many live and dead rows the tables of the schema have, and whether autovacuum is switched off for them.
SELECT class.relname::text, n_live_tup, n_dead_tup,
    coalesce(class.reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off'], false)
FROM pg_stat_all_tables AS table_statistics JOIN pg_class AS class ON class.oid = relid
WHERE schemaname = %(schema)s::text
ORDER BY n_dead_tup DESC, class.relname

-- name: doctor_sizes
-- Reads how many bytes the tables of the schema have on disk, with indexes and large values; partitions as one table.
SELECT coalesce(parent.relname, class.relname)::text, sum(pg_total_relation_size(class.oid))::bigint
FROM pg_class AS class
JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
LEFT JOIN pg_inherits ON inhrelid = class.oid
LEFT JOIN pg_class AS parent ON parent.oid = inhparent
WHERE namespace.nspname = %(schema)s::text AND class.relkind = 'r'
GROUP BY 1 ORDER BY 2 DESC, 1

-- name: doctor_clock
SELECT extract(epoch FROM clock_timestamp())::float8

-- name: doctor_missing_grants
-- Reads which of these privileges their roles do not have. Privileges of columns are also held by who has them for the
-- table.
SELECT role, kind, object, privilege, field
FROM unnest(%(roles)s::text[], %(kinds)s::text[], %(objects)s::text[], %(privileges)s::text[], %(fields)s::text[])
    AS wanted (role, kind, object, privilege, field)
WHERE EXISTS (SELECT FROM pg_roles WHERE rolname = role) AND NOT CASE kind
    WHEN 'schema' THEN has_schema_privilege(role, trim(BOTH '"' FROM object), privilege)
    WHEN 'sequence' THEN has_sequence_privilege(role, object, privilege)
    WHEN 'function' THEN has_function_privilege(role, object, privilege)
    ELSE CASE WHEN field IS NULL THEN has_table_privilege(role, object, privilege)
        ELSE has_column_privilege(role, object, field, privilege) END END

-- name: doctor_roles
-- Reads which of these roles exist.
SELECT rolname::text FROM pg_roles WHERE rolname = ANY (%(roles)s::text[]) ORDER BY rolname
