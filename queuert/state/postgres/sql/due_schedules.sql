-- The schedules of these types whose next tick has come, the longest due first, by one reading of the clock; and the
-- seconds until the next of the others. One row without a name, if none is due.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
due AS (
    SELECT schedule.* FROM clock, {schema}.schedule
    WHERE NOT paused AND next_at <= clock.now AND type = ANY (%(types)s::text[])
    ORDER BY next_at, name LIMIT %(limit)s
),
following AS (
    SELECT extract(epoch FROM min(next_at) - min(clock.now))::float8 AS seconds
    FROM clock, {schema}.schedule
    WHERE NOT paused AND next_at > clock.now AND type = ANY (%(types)s::text[])
)
SELECT name, type, input::text, cron, every, time_zone, missed, priority, limit_key, paused, next_at, last_at,
    clock.now, following.seconds
FROM clock CROSS JOIN following LEFT JOIN due ON true
ORDER BY next_at, name
