-- From version 6 to 7: whose schedules are, what happens when chains of them overlap, and what else they say of chains.
ALTER TABLE queuert_schedule ADD COLUMN owner TEXT;
ALTER TABLE queuert_schedule ADD COLUMN overlap TEXT NOT NULL DEFAULT 'allow';
ALTER TABLE queuert_schedule ADD COLUMN jitter REAL NOT NULL DEFAULT 0;
ALTER TABLE queuert_schedule ADD COLUMN starts_at INTEGER;
ALTER TABLE queuert_schedule ADD COLUMN ends_at INTEGER;
ALTER TABLE queuert_schedule ADD COLUMN attributes TEXT;
ALTER TABLE queuert_schedule ADD COLUMN result_ttl REAL;
ALTER TABLE queuert_schedule ADD COLUMN last_chain_id TEXT
