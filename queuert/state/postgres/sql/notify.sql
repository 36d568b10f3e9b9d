-- Hints that go out when the caller's transaction commits.
SELECT pg_notify(%(channel)s, payload) FROM unnest(%(payloads)s::text[]) AS hint (payload)
