-- How many jobs of a type and status the planner believes there to be. Nothing is run.
EXPLAIN (FORMAT JSON) SELECT FROM {schema}.job WHERE type = %(type)s AND status = %(status)s
