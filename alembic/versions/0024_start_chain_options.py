"""Starts in SQL that wait for other chains, are debounced, or have a number of attempts of their own.

The arguments stand behind those that there were, so a statement of a producer keeps its meaning. Postgres identifies a
function by its arguments: the old one is dropped, and whoever could call it may call the new one.
"""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

# With the owner's rights, so that a producer needs no right on any table. Every name is qualified, and the search path
# has nothing that others can write to. The text has no percent signs and no colons before names, which Alembic would
# read as placeholders.
#
# What it checks is what the client checks (`queuert/new_chain.py`, `queuert/payloads.py`), with the client's limits;
# what it writes is what `start_jobs` writes (`queuert/state/postgres/sql/starting.sql`).
START_CHAIN = r"""
DO $migration$
DECLARE
    before regprocedure := 'start_chain(text, jsonb, text, boolean, text, text, interval, timestamptz, interval,
        integer, text, jsonb, interval, text)'::regprocedure;
    granted text[] := ARRAY(
        SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(rolname) END
        FROM pg_proc CROSS JOIN LATERAL aclexplode(proacl) LEFT JOIN pg_roles ON pg_roles.oid = grantee
        WHERE pg_proc.oid = before AND grantee <> proowner);
    one text;
BEGIN
    EXECUTE 'DROP FUNCTION ' || before;
    EXECUTE replace(replace($text$
CREATE FUNCTION {schema}.start_chain(
    type text,
    input jsonb DEFAULT NULL,
    id text DEFAULT NULL,
    attach boolean DEFAULT false,
    deduplication_key text DEFAULT NULL,
    deduplication_scope text DEFAULT 'open',
    deduplication_window interval DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    priority integer DEFAULT 0,
    limit_key text DEFAULT NULL,
    attributes jsonb DEFAULT NULL,
    result_ttl interval DEFAULT NULL,
    trace_context text DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    blockers text[] DEFAULT NULL,
    debounce interval DEFAULT NULL,
    max_delay interval DEFAULT NULL,
    OUT chain_id text,
    OUT deduplicated boolean
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $function$
#variable_conflict use_column
DECLARE
    wrong text;
    what text;
    given text;
    body jsonb := coalesce(start_chain.input, 'null');
    content jsonb;
    texts text[];
    stored jsonb := '{}';
    number_of_values integer := 0;
    window_seconds float8 := extract(epoch FROM start_chain.deduplication_window);
    ttl_seconds float8 := extract(epoch FROM start_chain.result_ttl);
    debounce_seconds float8 := extract(epoch FROM start_chain.debounce);
    max_delay_seconds float8 := extract(epoch FROM start_chain.max_delay);
    hundred_years CONSTANT float8 := 3153600000;
    -- Whose rights count: those of a role that was set, or of the login. The function itself has its owner's.
    caller text := coalesce(nullif(current_setting('role', true), 'none'), session_user);
    awaited text[];
    missing text;
    waiting record;
    existing record;
    stamp text;
BEGIN
    -- What is checked: the error says what must be, and nothing is written.
    IF start_chain.type IS NULL OR char_length(start_chain.type) > 128
        OR start_chain.type COLLATE "C" !~ '^[A-Za-z_][A-Za-z0-9_.:/-]*$'
    THEN
        wrong := 'type must be 1 to 128 characters of A-Z a-z 0-9 _ . : / - and begin with a letter or _, got '
            || coalesce(quote_literal(left(start_chain.type, 200)), 'NULL');
    END IF;
    FOR what, given IN
        VALUES ('id', start_chain.id), ('deduplication_key', start_chain.deduplication_key),
            ('limit_key', start_chain.limit_key)
        UNION ALL SELECT 'a blocker', one.id FROM unnest(start_chain.blockers) AS one (id)
    LOOP
        IF given = '' OR char_length(given) > 512 OR octet_length(convert_to(given, 'UTF8')) > 1000 THEN
            wrong := what || ' must have 1 to 512 characters and at most 1000 bytes in UTF-8, got '
                || char_length(given) || ' characters';
        END IF;
    END LOOP;
    IF start_chain.attach AND start_chain.id IS NULL THEN
        wrong := 'attach needs an id: pass id =>';
    ELSIF start_chain.deduplication_key IS NULL
        AND (start_chain.deduplication_scope <> 'open' OR start_chain.deduplication_window IS NOT NULL)
    THEN
        wrong := 'deduplication_scope and deduplication_window need a key: pass deduplication_key =>';
    ELSIF start_chain.deduplication_scope NOT IN ('open', 'any') THEN
        wrong := 'deduplication_scope must be open or any, got ' || quote_literal(start_chain.deduplication_scope);
    ELSIF NOT (window_seconds > 0 AND window_seconds <= hundred_years) THEN
        wrong := 'deduplication_window must be above 0 and at most a hundred years, got '
            || start_chain.deduplication_window;
    ELSIF start_chain.run_at IS NOT NULL AND start_chain.delay IS NOT NULL THEN
        wrong := 'run_at and delay exclude each other: pass one of them';
    ELSIF NOT (isfinite(start_chain.run_at) AND start_chain.run_at < '9999-12-31 00:00:00+00') THEN
        wrong := 'run_at must be a time before the year 10000, got ' || start_chain.run_at;
    ELSIF NOT extract(epoch FROM start_chain.delay) BETWEEN 0 AND hundred_years THEN
        wrong := 'delay must be between 0 and a hundred years, got ' || start_chain.delay;
    ELSIF NOT start_chain.priority BETWEEN -1000000 AND 1000000 THEN
        wrong := 'priority must be between -1000000 and 1000000, got ' || start_chain.priority;
    ELSIF NOT ttl_seconds BETWEEN 0 AND hundred_years THEN
        wrong := 'result_ttl must be between 0 and a hundred years, got ' || start_chain.result_ttl;
    ELSIF NOT start_chain.max_attempts BETWEEN 1 AND 1000000 THEN
        wrong := 'max_attempts must be between 1 and 1000000, got ' || start_chain.max_attempts;
    ELSIF array_position(start_chain.blockers, NULL) IS NOT NULL THEN
        wrong := 'blockers must be ids of chains, got NULL among them';
    ELSIF start_chain.debounce IS NULL AND start_chain.max_delay IS NOT NULL THEN
        wrong := 'max_delay limits debounce: pass debounce =>';
    ELSIF start_chain.debounce IS NOT NULL AND (start_chain.deduplication_key IS NULL
        OR start_chain.deduplication_scope <> 'open' OR start_chain.deduplication_window IS NOT NULL)
    THEN
        wrong := 'debounce needs a key, and neither a window nor another scope than open: pass deduplication_key =>';
    ELSIF start_chain.debounce IS NOT NULL
        AND (num_nonnulls(start_chain.run_at, start_chain.delay) > 0 OR cardinality(start_chain.blockers) > 0)
    THEN
        wrong := 'debounce says when the job is due: pass neither run_at, delay nor blockers with it';
    ELSIF NOT (debounce_seconds > 0 AND debounce_seconds <= hundred_years) THEN
        wrong := 'debounce must be above 0 and at most a hundred years, got ' || start_chain.debounce;
    ELSIF NOT (max_delay_seconds >= debounce_seconds AND max_delay_seconds <= hundred_years) THEN
        wrong := 'max_delay must be at least debounce and at most a hundred years, got ' || start_chain.max_delay;
    ELSIF octet_length(start_chain.trace_context) > 2048 THEN
        wrong := 'trace_context must have at most 2048 bytes, got ' || octet_length(start_chain.trace_context);
    END IF;

    given := body::text;
    IF octet_length(given) > 1048576 THEN
        wrong := 'input must have at most 1048576 bytes as text, got ' || octet_length(given);
    ELSIF jsonb_typeof(body) = 'object' AND body ? 'queuert.codec' THEN
        wrong := 'input must not have the key queuert.codec, which is reserved';
    ELSIF octet_length(given) > 300 AND given ~ '[0-9.]{200}[0-9.]{101}' THEN
        -- Numbers are looked for outside of texts.
        FOR what IN
            SELECT long.match[1] FROM regexp_matches(
                regexp_replace(given, '"([^"\\]|\\.)*"', '', 'g'), '([0-9.]{200}[0-9.]{101}[0-9.]*)', 'g'
            ) AS long (match)
        LOOP
            IF char_length(what) > 360 OR what::numeric > 1.7976931348623157e308 THEN
                wrong := 'input must not have a number of more than 300 digits';
            END IF;
        END LOOP;
    END IF;
    IF wrong IS NULL AND char_length(given) - char_length(translate(given, '[{', '')) > 64 THEN
        -- Each round removes the innermost level of brackets.
        what := regexp_replace(regexp_replace(given, '"([^"\\]|\\.)*"', '', 'g'), '[^][{}]+', '', 'g');
        what := translate(what, '{}', '[]');
        FOR level IN 1..64 LOOP
            what := replace(what, '[]', '');
            EXIT WHEN what = '';
        END LOOP;
        IF what <> '' THEN
            wrong := 'input must not be nested deeper than 64';
        END IF;
    END IF;

    -- Attributes are stored as texts, or lists of texts without duplicates.
    IF jsonb_typeof(start_chain.attributes) NOT IN ('object', 'null') THEN
        wrong := 'attributes must be an object of names and values, got ' || jsonb_typeof(start_chain.attributes);
    ELSIF jsonb_typeof(start_chain.attributes) = 'object' THEN
        FOR what, content IN SELECT entry.key, entry.value FROM jsonb_each(start_chain.attributes) AS entry LOOP
            IF what COLLATE "C" !~ '^[A-Za-z_][A-Za-z0-9_.:/-]*$' OR char_length(what) > 64 THEN
                wrong := 'an attribute name must be 1 to 64 characters of A-Z a-z 0-9 _ . : / - and begin with a '
                    || 'letter or _, got ' || quote_literal(left(what, 200));
            END IF;
            IF jsonb_typeof(content) = 'array' THEN
                texts := '{}';
            ELSE
                texts := NULL;
                content := jsonb_build_array(content);
            END IF;
            FOR given IN
                SELECT CASE jsonb_typeof(one.value) WHEN 'string' THEN one.value #>> '{}'
                    WHEN 'number' THEN trim_scale((one.value #>> '{}')::numeric)::text END
                FROM jsonb_array_elements(content) AS one
            LOOP
                IF given IS NULL THEN
                    wrong := 'values of attribute ' || quote_literal(left(what, 64))
                        || ' must be strings, numbers, or a list of them';
                ELSIF given = '' OR char_length(given) > 512 OR octet_length(convert_to(given, 'UTF8')) > 1000 THEN
                    wrong := 'values of attribute ' || quote_literal(left(what, 64))
                        || ' must have 1 to 512 characters and at most 1000 bytes in UTF-8';
                ELSIF texts IS NULL THEN
                    stored := stored || jsonb_build_object(what, given);
                    number_of_values := number_of_values + 1;
                ELSIF given <> ALL (texts) THEN
                    texts := texts || given;
                    number_of_values := number_of_values + 1;
                END IF;
            END LOOP;
            IF texts IS NOT NULL THEN
                stored := stored || jsonb_build_object(what, to_jsonb(texts));
            END IF;
            EXIT WHEN wrong IS NOT NULL;
        END LOOP;
        IF number_of_values > 64 THEN
            wrong := 'attributes must have at most 64 values altogether, got ' || number_of_values;
        END IF;
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'start_chain: ' || wrong;
    END IF;

    IF start_chain.debounce IS NOT NULL
        AND NOT has_function_privilege(caller, '{schema}.debounce(json)', 'EXECUTE')
    THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
            MESSAGE = 'start_chain: debounce changes the input of a waiting job, which ' || quote_ident(caller)
                || ' may not: GRANT EXECUTE ON FUNCTION {schema}.debounce(json) TO ' || quote_ident(caller);
    END IF;

    chain_id := start_chain.id;
    deduplicated := true;
    IF start_chain.deduplication_key IS NOT NULL THEN
        -- The row is only a lock. What it was waited for is seen by the next statement, whose snapshot is newer.
        INSERT INTO {schema}.deduplication (type, key) VALUES (start_chain.type, start_chain.deduplication_key)
        ON CONFLICT (type, key) DO UPDATE SET taken = deduplication.taken + 1;
        IF start_chain.debounce IS NOT NULL THEN
            SELECT found.id INTO chain_id FROM {schema}.debounce(json_build_array(json_build_object(
                'place', 0, 'type', start_chain.type, 'key', start_chain.deduplication_key,
                'debounce', debounce_seconds, 'max_delay', max_delay_seconds, 'excluding', '[]'::json,
                'input', body))) AS found;
        ELSIF start_chain.deduplication_scope = 'any' THEN
            SELECT job.id INTO chain_id FROM {schema}.job
            WHERE job.type = start_chain.type AND job.deduplication_key = start_chain.deduplication_key
                AND (job.expires_at IS NULL OR job.expires_at > clock_timestamp())
                AND job.created_at >= coalesce(
                    statement_timestamp() - window_seconds * interval '1 second', '-infinity')
            ORDER BY job.type DESC, job.deduplication_key DESC, job.created_at DESC LIMIT 1;
        ELSE
            SELECT job.id INTO chain_id FROM {schema}.job
            WHERE job.type = start_chain.type AND job.deduplication_key = start_chain.deduplication_key
                AND job.chain_status = 'open'
                AND job.created_at >= coalesce(
                    statement_timestamp() - window_seconds * interval '1 second', '-infinity')
            ORDER BY job.type DESC, job.deduplication_key DESC, job.created_at DESC LIMIT 1;
        END IF;
        IF FOUND THEN
            IF start_chain.debounce IS NOT NULL THEN
                PERFORM pg_notify({channel}, start_chain.type);
            END IF;
            RETURN;
        END IF;
        chain_id := start_chain.id;
    END IF;
    IF chain_id IS NULL THEN
        -- A UUID of version 7, as clients make them: the milliseconds since 1970, then random bits.
        stamp := lpad(to_hex(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0');
        chain_id := left(stamp, 8) || '-' || right(stamp, 4) || '-7' || substr(gen_random_uuid()::text, 16);
    END IF;

    FOR round IN 1..5 LOOP
        SELECT job.type, job.chain_index, coalesce(job.expires_at <= clock_timestamp(), false) AS expired INTO existing
        FROM {schema}.job WHERE start_chain.id IS NOT NULL AND job.id = start_chain.chain_id;
        IF FOUND AND (existing.chain_index > 0 OR existing.expired OR start_chain.attach IS NOT TRUE) THEN
            RAISE EXCEPTION USING ERRCODE = 'unique_violation', CONSTRAINT = 'job_pkey', TABLE = 'job',
                MESSAGE = 'start_chain: a job with the id ' || quote_literal(chain_id) || ' exists: '
                    || CASE WHEN existing.expired
                        THEN 'its chain has expired, repeat the call when a worker has deleted it'
                        WHEN existing.chain_index > 0 THEN 'it is a later one of its chain, choose another id'
                        ELSE 'choose another id, or pass attach => true to get its chain' END,
                DETAIL = 'Key (id)=(' || chain_id || ') already exists.';
        ELSIF FOUND AND existing.type <> start_chain.type THEN
            RAISE EXCEPTION USING ERRCODE = 'datatype_mismatch',
                MESSAGE = 'start_chain: the chain with the id ' || quote_literal(chain_id)
                    || ' has another job type, ' || existing.type || ': choose another id',
                DETAIL = existing.type;
        ELSIF FOUND THEN
            RETURN;
        END IF;
        IF cardinality(start_chain.blockers) > 0 AND awaited IS NULL THEN
            -- Whoever closes a chain takes the same lock first, the oldest first.
            SELECT array_agg(locked.id) INTO awaited FROM (
                SELECT job.id FROM {schema}.job
                WHERE job.id = ANY (start_chain.blockers) AND job.chain_index = 0
                ORDER BY job.created_at, job.id FOR NO KEY UPDATE
            ) AS locked;
            SELECT one.id INTO missing FROM unnest(start_chain.blockers) WITH ORDINALITY AS one (id, place)
            WHERE one.id <> ALL (coalesce(awaited, '{}')) ORDER BY one.place LIMIT 1;
            UPDATE {schema}.job SET has_dependents = true WHERE job.id = ANY (awaited) AND NOT job.has_dependents;
        END IF;
        WITH written AS (
            INSERT INTO {schema}.job
                (id, type, chain_id, chain_type, chain_status, status, priority, created_at, scheduled_at, input,
                 trace_context, deduplication_key, limit_key, result_ttl, attributes, max_attempts)
            SELECT start_chain.chain_id, start_chain.type, start_chain.chain_id, start_chain.type, 'open',
                CASE WHEN due.at > now.at THEN 'scheduled' ELSE 'ready' END, coalesce(start_chain.priority, 0), now.at,
                due.at, body, start_chain.trace_context, start_chain.deduplication_key, start_chain.limit_key,
                ttl_seconds, nullif(stored, '{}'), start_chain.max_attempts
            FROM (SELECT clock_timestamp() AS at OFFSET 0) AS now
            CROSS JOIN LATERAL (
                SELECT greatest(coalesce(start_chain.run_at,
                    now.at + coalesce(start_chain.delay, debounce_seconds * interval '1 second')), now.at) AS at
            ) AS due
            -- Waits for a transaction that is writing the same id.
            ON CONFLICT (id) DO NOTHING
            RETURNING job.id, job.type, job.status, job.created_at, job.scheduled_at, job.attributes
        ),
        event AS (
            INSERT INTO {schema}.job_event
                (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at)
            SELECT 'created', written.status, written.id, written.id, 0, written.type, written.type, 0,
                written.scheduled_at
            FROM written
            WHERE coalesce(
                (SELECT own.level FROM {schema}.event_level AS own WHERE own.type = written.type),
                (SELECT event_log.level FROM {schema}.event_log)) = 'all'
        ),
        entry AS (
            INSERT INTO {schema}.chain_attribute (name, value, created_at, chain_id)
            SELECT named.key, one.value, written.created_at, written.id
            FROM written
            CROSS JOIN LATERAL jsonb_each(written.attributes) AS named
            CROSS JOIN LATERAL jsonb_array_elements_text(
                CASE jsonb_typeof(named.value) WHEN 'array' THEN named.value ELSE jsonb_build_array(named.value) END
            ) AS one (value)
        )
        SELECT written.id INTO given FROM written;
        IF FOUND THEN
            -- Only now: a call that attaches to a chain needs no blockers, and the INSERT waits for that chain.
            IF missing IS NOT NULL THEN
                RAISE EXCEPTION USING ERRCODE = 'foreign_key_violation',
                    MESSAGE = 'start_chain: no chain has the id ' || quote_literal(missing)
                        || ', which blockers names: start it first',
                    DETAIL = missing;
            END IF;
            deduplicated := false;
            IF awaited IS NOT NULL THEN
                WITH added AS (
                    INSERT INTO {schema}.job_blocker (job_id, blocker_chain_id, position, closed)
                    SELECT start_chain.chain_id, named.id, row_number() OVER (ORDER BY named.place) - 1,
                        chain.chain_status <> 'open'
                    FROM (
                        SELECT one.id, min(one.place) AS place
                        FROM unnest(start_chain.blockers) WITH ORDINALITY AS one (id, place) GROUP BY one.id
                    ) AS named
                    JOIN {schema}.job AS chain ON chain.id = named.id
                    RETURNING job_blocker.closed
                ),
                counted AS (
                    SELECT count(*) AS total, count(*) FILTER (WHERE NOT added.closed) AS open FROM added
                )
                UPDATE {schema}.job
                SET blocker_count = counted.total, open_blockers = counted.open,
                    status = CASE WHEN counted.open > 0 THEN 'blocked' ELSE job.status END
                FROM counted WHERE job.id = start_chain.chain_id
                RETURNING job.status, job.scheduled_at INTO waiting;
                INSERT INTO {schema}.job_event
                    (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at)
                SELECT 'blocked', 'blocked', start_chain.chain_id, start_chain.chain_id, 0, start_chain.type,
                    start_chain.type, 0, waiting.scheduled_at
                WHERE waiting.status = 'blocked' AND coalesce(
                    (SELECT own.level FROM {schema}.event_level AS own WHERE own.type = start_chain.type),
                    (SELECT event_log.level FROM {schema}.event_log)) = 'all';
            END IF;
            PERFORM pg_notify({channel}, start_chain.type);
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
        MESSAGE = 'start_chain: could neither write nor find a chain with the id ' || quote_literal(chain_id)
            || ', as others create and delete such chains: repeat the transaction';
END
$function$
$text$, '{schema}', quote_ident(current_schema())), '{channel}', quote_literal(current_schema() || '_jobs'));
    REVOKE ALL ON FUNCTION start_chain FROM PUBLIC;
    FOREACH one IN ARRAY granted LOOP
        EXECUTE 'GRANT EXECUTE ON FUNCTION start_chain TO ' || one;
    END LOOP;
END
$migration$
"""


def upgrade() -> None:
    op.execute(START_CHAIN)


def downgrade() -> None:
    before = spec_from_file_location("before", Path(__file__).with_name("0015_start_chain.py"))
    assert before is not None
    assert before.loader is not None
    before.loader.exec_module(module := module_from_spec(before))
    op.execute("DROP FUNCTION start_chain")
    module.upgrade()
