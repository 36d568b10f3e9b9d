-- Clear the numbers of transactions that this cluster has not given, in some blocks of the table. A closed chain without one
-- counts as closed long ago.
WITH changed AS (
    UPDATE {schema}.job SET completed_tx = NULL
    WHERE ctid >= ('(' || %(low)s::bigint || ',0)')::tid
        AND (%(high)s::bigint IS NULL OR ctid < ('(' || %(high)s::bigint || ',0)')::tid)
        AND completed_tx >= %(next)s::text::xid8
    RETURNING 1
)
SELECT count(*) FROM changed
