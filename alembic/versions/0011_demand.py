"""What an autoscaler reads: how many slots the jobs of a type could use now, and the limits by which that is bounded.

Only additions: workers of the version before go on beside it. They do not record their limits, so until they are
replaced their types count as having none.
"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

# The limits of each type as the last worker that began had them. Workers keep them in their code, and may all be gone.
TYPE_LIMIT = """
CREATE TABLE type_limit (
    type         text COLLATE "C" PRIMARY KEY,
    concurrency  integer,
    per_key      integer,
    rate_count   integer,
    rate_seconds float8
)
"""

# With the owner's rights, so that who may see only numbers can count by keys. Every name is qualified, and the search
# path has nothing that others can write to.
#
# A number ends at `most`, and so does the walk over keys: the cost is that of so many index entries a type and status.
DEMAND = """
DO $migration$
BEGIN
    EXECUTE replace($text$
CREATE FUNCTION {schema}.demand(types text[] DEFAULT NULL, most integer DEFAULT 1000)
RETURNS TABLE (type text, ready bigint, due bigint, running bigint, held_back bigint, oldest_seconds float8)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $function$
DECLARE
    this text;
    limits {schema}.type_limit;
    free bigint;
    free_of_key bigint;
    ready_of_key bigint;
    due_of_key bigint;
    found_ready bigint;
    found_due bigint;
    key text;
    keys integer;
BEGIN
    FOR this IN
        WITH RECURSIVE known (name) AS (
            SELECT head.name FROM (
                SELECT min(job.type COLLATE "C") AS name FROM {schema}.job WHERE job.status = 'ready'
                UNION ALL SELECT min(job.type COLLATE "C") FROM {schema}.job WHERE job.status = 'running'
                UNION ALL SELECT min(job.type || '') FROM {schema}.job WHERE job.status = 'scheduled'
            ) AS head WHERE demand.types IS NULL AND head.name IS NOT NULL
            UNION
            SELECT next.name FROM known CROSS JOIN LATERAL (
                SELECT min(job.type COLLATE "C") AS name FROM {schema}.job
                WHERE job.status = 'ready' AND job.type > known.name
                UNION ALL
                SELECT min(job.type COLLATE "C") FROM {schema}.job
                WHERE job.status = 'running' AND job.type > known.name
                UNION ALL
                SELECT min(job.type || '') FROM {schema}.job
                WHERE job.status = 'scheduled' AND job.type || '' > known.name
            ) AS next WHERE next.name IS NOT NULL
        )
        SELECT name FROM (SELECT name FROM known UNION SELECT unnest(demand.types) COLLATE "C") AS names
        WHERE name IS NOT NULL ORDER BY name COLLATE "C"
    LOOP
        type := this;
        SELECT count(*) INTO running FROM (
            SELECT FROM {schema}.job WHERE job.type = this AND job.status = 'running'
            ORDER BY job.type LIMIT demand.most
        ) AS entry;
        SELECT count(*), extract(epoch FROM clock_timestamp() - min(entry.scheduled_at)) INTO found_due, oldest_seconds
        FROM (
            SELECT job.scheduled_at FROM {schema}.job
            WHERE job.type || '' = this AND job.status = 'scheduled' AND job.scheduled_at <= clock_timestamp()
            ORDER BY job.scheduled_at LIMIT demand.most
        ) AS entry;
        SELECT count(*), greatest(oldest_seconds, extract(epoch FROM clock_timestamp() - min(entry.scheduled_at)))
        INTO found_ready, oldest_seconds
        FROM (
            SELECT job.scheduled_at FROM {schema}.job WHERE job.type = this AND job.status = 'ready'
            ORDER BY job.attempt - job.uncounted - job.lease_expirations - job.priority, job.scheduled_at
            LIMIT demand.most
        ) AS entry;
        SELECT * INTO limits FROM {schema}.type_limit WHERE type_limit.type = this;
        -- Null where nothing limits the type as a whole.
        free := CASE WHEN limits.concurrency IS NOT NULL THEN greatest(0, limits.concurrency - running) END;
        IF EXISTS (SELECT FROM {schema}.paused_type WHERE paused_type.type = this) THEN
            free := 0;
        END IF;
        ready := found_ready;
        due := found_due;
        IF free IS DISTINCT FROM 0 AND found_ready + found_due > 0
            AND (limits.per_key IS NOT NULL OR limits.rate_count IS NOT NULL)
        THEN
            ready := 0;
            due := 0;
            keys := 0;
            -- First the jobs without a key, which have a rate in common and no other limit; then from key to key.
            key := NULL;
            LOOP
                free_of_key := demand.most;
                IF key IS NOT NULL AND limits.per_key IS NOT NULL THEN
                    SELECT limits.per_key - count(*) INTO free_of_key FROM {schema}.job
                    WHERE job.type = this AND job.status = 'running' AND job.limit_key = key;
                END IF;
                IF limits.rate_count IS NOT NULL THEN
                    SELECT least(free_of_key, limits.rate_count - count(*)) INTO free_of_key FROM (
                        SELECT FROM {schema}.limit_start
                        WHERE limit_start.type = this AND limit_start.limit_key = coalesce(key, '')
                            AND limit_start.started_at > clock_timestamp() - limits.rate_seconds * interval '1 second'
                        LIMIT limits.rate_count
                    ) AS started;
                END IF;
                IF free_of_key > 0 AND key IS NULL THEN
                    SELECT count(*) INTO ready_of_key FROM (
                        SELECT FROM {schema}.job
                        WHERE job.type = this AND job.status = 'ready' AND job.limit_key IS NULL
                        ORDER BY job.attempt - job.uncounted - job.lease_expirations - job.priority LIMIT free_of_key
                    ) AS entry;
                ELSIF free_of_key > 0 THEN
                    SELECT count(*) INTO ready_of_key FROM (
                        SELECT FROM {schema}.job WHERE job.type = this AND job.status = 'ready' AND job.limit_key = key
                        ORDER BY job.attempt - job.uncounted - job.lease_expirations - job.priority LIMIT free_of_key
                    ) AS entry;
                END IF;
                IF free_of_key > 0 THEN
                    due_of_key := 0;
                    IF found_due > 0 THEN
                        SELECT count(*) INTO due_of_key FROM (
                            SELECT job.limit_key FROM {schema}.job
                            WHERE job.type || '' = this AND job.status = 'scheduled'
                                AND job.scheduled_at <= clock_timestamp()
                            ORDER BY job.scheduled_at LIMIT demand.most
                        ) AS entry WHERE entry.limit_key IS NOT DISTINCT FROM key;
                    END IF;
                    ready := ready + ready_of_key;
                    due := due + least(due_of_key, free_of_key - ready_of_key);
                END IF;
                EXIT WHEN keys >= demand.most OR ready + due >= coalesce(free, demand.most);
                SELECT min(next.name COLLATE "C") INTO key FROM (
                    SELECT min(job.limit_key COLLATE "C") AS name FROM {schema}.job
                    WHERE job.type = this AND job.status = 'ready' AND job.limit_key > coalesce(key, '')
                    UNION ALL
                    SELECT min(entry.limit_key COLLATE "C") FROM (
                        SELECT job.limit_key FROM {schema}.job
                        WHERE found_due > 0 AND job.type || '' = this AND job.status = 'scheduled'
                            AND job.scheduled_at <= clock_timestamp()
                        ORDER BY job.scheduled_at LIMIT demand.most
                    ) AS entry WHERE entry.limit_key > coalesce(key, '')
                ) AS next;
                EXIT WHEN key IS NULL;
                keys := keys + 1;
            END LOOP;
        END IF;
        ready := least(ready, free, found_ready);
        due := least(due, free - ready, found_due);
        held_back := found_ready + found_due - ready - due;
        IF running + found_ready + found_due > 0 THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$function$
$text$, '{schema}', quote_ident(current_schema()));
END
$migration$
"""


def upgrade() -> None:
    op.execute(TYPE_LIMIT)
    op.execute(DEMAND)
    # Who may call it is for roles.sql to say. Without roles the owner may.
    op.execute("REVOKE ALL ON FUNCTION demand(text[], integer) FROM PUBLIC")


def downgrade() -> None:
    op.execute("DROP FUNCTION demand(text[], integer)")
    op.execute("DROP TABLE type_limit")
