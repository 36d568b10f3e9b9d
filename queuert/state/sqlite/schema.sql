-- name: schema
-- All tables. Times are whole microseconds since 1970, UTC; payloads are JSON text. This is run once, in one
-- transaction. The prefix distinguishes the tables from those of the application, which may be in the same file.
CREATE TABLE queuert_schema (version INTEGER NOT NULL);
CREATE TABLE queuert_job (
    id                TEXT NOT NULL PRIMARY KEY,
    type              TEXT NOT NULL,
    chain_id          TEXT NOT NULL,
    chain_type        TEXT NOT NULL,
    chain_index       INTEGER NOT NULL DEFAULT 0,
    status            TEXT NOT NULL CHECK (status IN
        ('blocked', 'scheduled', 'ready', 'running', 'continued', 'completed', 'failed', 'cancelled')),
    chain_status      TEXT CHECK (chain_status IN ('open', 'completed', 'failed', 'cancelled')),
    priority          INTEGER NOT NULL DEFAULT 0,
    attempt           INTEGER NOT NULL DEFAULT 0,
    uncounted         INTEGER NOT NULL DEFAULT 0,
    lease_expirations INTEGER NOT NULL DEFAULT 0,
    open_blockers     INTEGER NOT NULL DEFAULT 0 CHECK (open_blockers >= 0),
    blocker_count     INTEGER NOT NULL DEFAULT 0,
    has_dependents    INTEGER NOT NULL DEFAULT 0,
    created_at        INTEGER NOT NULL,
    scheduled_at      INTEGER NOT NULL,
    started_at        INTEGER,
    finished_at       INTEGER,
    lease_expires_at  INTEGER,
    chain_closed_at   INTEGER,
    expires_at        INTEGER,
    result_ttl        REAL,
    lease_token       TEXT,
    holder            TEXT,
    continued_by      TEXT,
    deduplication_key TEXT,
    limit_key         TEXT,
    trace_context     TEXT,
    attributes        TEXT,
    input             TEXT NOT NULL,
    output            TEXT,
    error             TEXT,
    progress          TEXT,
    attempt_trace_context TEXT,
    failures          TEXT,
    max_attempts      INTEGER,
    stale_at          INTEGER,
    CHECK ((status = 'running') = (lease_expires_at IS NOT NULL)),
    CHECK ((chain_index = 0) = (id = chain_id)),
    CHECK ((chain_index = 0) = (chain_status IS NOT NULL)),
    CHECK ((status = 'continued') = (continued_by IS NOT NULL)),
    CHECK (expires_at IS NULL OR chain_closed_at IS NOT NULL)
);
-- For claims, in their order: by type, and by type and limit key.
CREATE INDEX queuert_job_ready ON queuert_job
    (type, (attempt - uncounted - lease_expirations - priority), scheduled_at) WHERE status = 'ready';
CREATE INDEX queuert_job_limit_ready ON queuert_job
    (type, limit_key, (attempt - uncounted - lease_expirations - priority), scheduled_at) WHERE status = 'ready';
CREATE INDEX queuert_job_scheduled ON queuert_job (type, scheduled_at) WHERE status = 'scheduled';
CREATE INDEX queuert_job_running ON queuert_job (type, limit_key) WHERE status = 'running';
CREATE INDEX queuert_job_expiry ON queuert_job (type, lease_expires_at) WHERE status = 'running';
CREATE INDEX queuert_job_blocked ON queuert_job (id) WHERE status = 'blocked';
CREATE UNIQUE INDEX queuert_job_chain ON queuert_job (chain_id, chain_index);
CREATE UNIQUE INDEX queuert_job_open_tail ON queuert_job (chain_id)
    WHERE status IN ('blocked', 'scheduled', 'ready', 'running');
CREATE INDEX queuert_job_key ON queuert_job (type, deduplication_key, created_at) WHERE deduplication_key IS NOT NULL;
CREATE INDEX queuert_job_open_key ON queuert_job (type, deduplication_key, created_at)
    WHERE deduplication_key IS NOT NULL AND chain_status = 'open';
CREATE INDEX queuert_job_end ON queuert_job (expires_at, id) WHERE expires_at IS NOT NULL;
CREATE INDEX queuert_job_key_order ON queuert_job (type, limit_key, (attempt = 0 AND status <> 'continued'), created_at)
    WHERE chain_status = 'open' AND limit_key IS NOT NULL;
CREATE INDEX queuert_job_later_ready ON queuert_job (type, created_at)
    WHERE status = 'ready' AND chain_index > 0 AND limit_key IS NOT NULL;
-- For listings: of all jobs, and by type and status; the latter are also counted.
CREATE INDEX queuert_job_listing ON queuert_job (created_at, id);
CREATE INDEX queuert_job_type_listing ON queuert_job (type, status, created_at, id);
CREATE INDEX queuert_chain_listing ON queuert_job (created_at, id) WHERE chain_index = 0;
CREATE INDEX queuert_chain_type_listing ON queuert_job (type, chain_status, created_at, id) WHERE chain_index = 0;
CREATE TABLE queuert_job_blocker (
    job_id           TEXT NOT NULL REFERENCES queuert_job (id),
    position         INTEGER NOT NULL,
    blocker_chain_id TEXT NOT NULL REFERENCES queuert_job (id),
    closed           INTEGER NOT NULL,
    PRIMARY KEY (job_id, position)
) WITHOUT ROWID;
CREATE UNIQUE INDEX queuert_job_blocker_chain ON queuert_job_blocker (blocker_chain_id, job_id);
CREATE INDEX queuert_job_blocker_open ON queuert_job_blocker (blocker_chain_id, job_id) WHERE NOT closed;
CREATE VIEW queuert_chain AS
SELECT root.id, root.type, root.chain_status AS status, root.input, tail.output, tail.error, tail.type AS tail_type,
    tail.id AS tail_id, root.created_at, root.chain_closed_at AS closed_at, root.expires_at, root.attributes,
    root.stale_at
FROM queuert_job AS root
JOIN queuert_job AS tail ON tail.chain_id = root.id
    AND tail.chain_index = (SELECT max(chain_index) FROM queuert_job AS last WHERE last.chain_id = root.id)
WHERE root.chain_index = 0;
-- Only an index: the attributes themselves are stored with the first job of a chain.
CREATE TABLE queuert_chain_attribute (
    name       TEXT NOT NULL,
    value      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    chain_id   TEXT NOT NULL,
    PRIMARY KEY (name, value, created_at, chain_id)
) WITHOUT ROWID;
CREATE TABLE queuert_limit_start (type TEXT NOT NULL, limit_key TEXT, started_at INTEGER NOT NULL);
CREATE INDEX queuert_limit_start_of_key ON queuert_limit_start (type, limit_key, started_at);
CREATE INDEX queuert_limit_start_of_type ON queuert_limit_start (type, started_at);
CREATE TABLE queuert_paused_type (type TEXT NOT NULL PRIMARY KEY, paused_at INTEGER NOT NULL, reason TEXT, paused_by TEXT) WITHOUT ROWID;
CREATE TABLE queuert_schedule (
    name      TEXT NOT NULL PRIMARY KEY,
    type      TEXT NOT NULL,
    input     TEXT NOT NULL,
    cron      TEXT,
    every     REAL,
    time_zone TEXT NOT NULL,
    missed    TEXT NOT NULL,
    priority  INTEGER NOT NULL,
    limit_key TEXT,
    paused    INTEGER NOT NULL DEFAULT 0,
    next_at   INTEGER,
    last_at   INTEGER,
    owner         TEXT,
    overlap       TEXT NOT NULL DEFAULT 'allow',
    jitter        REAL NOT NULL DEFAULT 0,
    starts_at     INTEGER,
    ends_at       INTEGER,
    attributes    TEXT,
    result_ttl    REAL,
    last_chain_id TEXT
) WITHOUT ROWID;
CREATE INDEX queuert_schedule_due ON queuert_schedule (type, next_at) WHERE NOT paused;
CREATE TABLE queuert_worker (
    id          TEXT NOT NULL PRIMARY KEY,
    name        TEXT NOT NULL,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    version     TEXT NOT NULL,
    job_types   TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    running     INTEGER NOT NULL,
    state       TEXT NOT NULL,
    started_at  INTEGER NOT NULL,
    seen_at     INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL
) WITHOUT ROWID;
-- The limits of job types, as the worker that started last has them.
CREATE TABLE queuert_type_limit (type TEXT NOT NULL PRIMARY KEY, limits TEXT NOT NULL) WITHOUT ROWID;
-- What is particular to job types, as the worker that started last has them.
CREATE TABLE queuert_type_trait (
    type                TEXT NOT NULL PRIMARY KEY,
    completed_by_client INTEGER NOT NULL,
    overdue_seconds     REAL,
    closes_with_parent  INTEGER NOT NULL
) WITHOUT ROWID;
-- Steps of jobs. They are deleted with their job.
CREATE TABLE queuert_job_step (
    job_id      TEXT NOT NULL REFERENCES queuert_job (id),
    number      INTEGER NOT NULL,
    name        TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    recorded_at INTEGER NOT NULL,
    wake_at     INTEGER,
    result      TEXT,
    event       TEXT,
    answered_at INTEGER,
    started_at  INTEGER,
    PRIMARY KEY (job_id, number)
) WITHOUT ROWID;
-- Events that are sent to chains. Whoever takes one removes its payload; its id stays.
CREATE TABLE queuert_sent_event (
    chain_id TEXT NOT NULL REFERENCES queuert_job (id),
    id       TEXT NOT NULL,
    number   INTEGER NOT NULL,
    sent_at  INTEGER NOT NULL,
    size     INTEGER NOT NULL,
    name     TEXT NOT NULL,
    payload  TEXT,
    PRIMARY KEY (chain_id, id)
) WITHOUT ROWID;
CREATE INDEX queuert_sent_event_kept ON queuert_sent_event (chain_id, number) WHERE payload IS NOT NULL;
-- What workers did in a minute (60 seconds) each, and in an hour (3600 seconds) together, as the empty worker. Numbers are
-- `index:number` of those that are not 0.
CREATE TABLE queuert_activity (
    seconds   INTEGER NOT NULL,
    begins_at INTEGER NOT NULL,
    type      TEXT NOT NULL,
    worker    TEXT NOT NULL,
    report    INTEGER NOT NULL,
    numbers   TEXT NOT NULL,
    PRIMARY KEY (seconds, begins_at, type, worker)
) WITHOUT ROWID;
-- The event log, and how much of it is written and kept. Its id distinguishes it from the logs of other files.
CREATE TABLE queuert_event (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    happened_at  INTEGER NOT NULL,
    kind         TEXT NOT NULL,
    status       TEXT NOT NULL,
    job_id       TEXT NOT NULL,
    chain_id     TEXT NOT NULL,
    chain_index  INTEGER NOT NULL,
    type         TEXT NOT NULL,
    chain_type   TEXT NOT NULL,
    attempt      INTEGER NOT NULL,
    scheduled_at INTEGER,
    started_at   INTEGER,
    worker       TEXT,
    error        TEXT,
    progress     TEXT
);
CREATE TABLE queuert_event_level (
    type  TEXT NOT NULL PRIMARY KEY,
    level TEXT NOT NULL CHECK (level IN ('all', 'terminal', 'off'))
) WITHOUT ROWID;
CREATE TABLE queuert_event_log (
    id          TEXT NOT NULL,
    level       TEXT NOT NULL DEFAULT 'all' CHECK (level IN ('all', 'terminal', 'off')),
    keep_days   INTEGER NOT NULL DEFAULT 14,
    dropped_seq INTEGER NOT NULL DEFAULT 0
);
INSERT INTO queuert_event_log (id) VALUES (lower(hex(randomblob(8))));
-- What a webhook is, and what was sent: the records are text, which a newer tag replaces.
CREATE TABLE queuert_webhook_record (
    kind TEXT NOT NULL,
    id   TEXT NOT NULL,
    tag  TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE TABLE queuert_webhook_attempt (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    endpoint_id TEXT NOT NULL,
    delivery_id TEXT NOT NULL,
    event_type  TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    status      INTEGER,
    error       TEXT,
    seconds     REAL NOT NULL,
    retry_in    REAL,
    response    TEXT
);
CREATE INDEX queuert_webhook_attempt_of_endpoint ON queuert_webhook_attempt (endpoint_id, number);
-- Notifications for other processes; the latest few thousand are kept. Null keys stand for all keys.
CREATE TABLE queuert_notification (id INTEGER PRIMARY KEY AUTOINCREMENT, sender TEXT NOT NULL, topic TEXT NOT NULL, keys TEXT);

-- name: add_progress
-- From version 1 to 2: the progress of the last attempt.
ALTER TABLE queuert_job ADD COLUMN progress TEXT

-- name: add_attempt_trace_context
-- From version 2 to 3: the trace context of the newest attempt.
ALTER TABLE queuert_job ADD COLUMN attempt_trace_context TEXT

-- name: add_type_limits
-- From version 3 to 4: the limits of job types, as the worker that started last has them.
CREATE TABLE queuert_type_limit (type TEXT NOT NULL PRIMARY KEY, limits TEXT NOT NULL) WITHOUT ROWID

-- name: add_failures
-- From version 4 to 5: the failed attempts.
ALTER TABLE queuert_job ADD COLUMN failures TEXT

-- name: add_activity
-- From version 5 to 6: what workers did, by minute and hour.
CREATE TABLE queuert_activity (
    seconds   INTEGER NOT NULL,
    begins_at INTEGER NOT NULL,
    type      TEXT NOT NULL,
    worker    TEXT NOT NULL,
    report    INTEGER NOT NULL,
    numbers   TEXT NOT NULL,
    PRIMARY KEY (seconds, begins_at, type, worker)
) WITHOUT ROWID

-- name: add_schedule_owners
-- From version 6 to 7: whose schedules are, what happens when chains of them overlap, and what else they say of chains.
ALTER TABLE queuert_schedule ADD COLUMN owner TEXT;
ALTER TABLE queuert_schedule ADD COLUMN overlap TEXT NOT NULL DEFAULT 'allow';
ALTER TABLE queuert_schedule ADD COLUMN jitter REAL NOT NULL DEFAULT 0;
ALTER TABLE queuert_schedule ADD COLUMN starts_at INTEGER;
ALTER TABLE queuert_schedule ADD COLUMN ends_at INTEGER;
ALTER TABLE queuert_schedule ADD COLUMN attributes TEXT;
ALTER TABLE queuert_schedule ADD COLUMN result_ttl REAL;
ALTER TABLE queuert_schedule ADD COLUMN last_chain_id TEXT

-- name: add_max_attempts
-- From version 7 to 8: the attempts that the start of a job allows.
ALTER TABLE queuert_job ADD COLUMN max_attempts INTEGER

-- name: add_steps
-- From version 8 to 9: steps of jobs. Numbers of activity have one more count before the histograms, so those that are
-- stored would be read wrongly.
CREATE TABLE queuert_job_step (
    job_id      TEXT NOT NULL REFERENCES queuert_job (id),
    number      INTEGER NOT NULL,
    name        TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    recorded_at INTEGER NOT NULL,
    wake_at     INTEGER,
    result      TEXT,
    PRIMARY KEY (job_id, number)
) WITHOUT ROWID;
DELETE FROM queuert_activity

-- name: add_paused_by
-- From version 9 to 10: who paused a job type.
ALTER TABLE queuert_paused_type ADD COLUMN paused_by TEXT

-- name: add_sent_events
-- From version 10 to 11: events that are sent to chains, and steps that wait for them.
CREATE TABLE queuert_sent_event (
    chain_id TEXT NOT NULL REFERENCES queuert_job (id),
    id       TEXT NOT NULL,
    number   INTEGER NOT NULL,
    sent_at  INTEGER NOT NULL,
    size     INTEGER NOT NULL,
    name     TEXT NOT NULL,
    payload  TEXT,
    PRIMARY KEY (chain_id, id)
) WITHOUT ROWID;
CREATE INDEX queuert_sent_event_kept ON queuert_sent_event (chain_id, number) WHERE payload IS NOT NULL;
ALTER TABLE queuert_job_step ADD COLUMN event TEXT;
ALTER TABLE queuert_job_step ADD COLUMN answered_at INTEGER

-- name: add_key_order
-- From version 11 to 12: chains of a limit key that run in the order of their starts.
CREATE INDEX queuert_job_key_order ON queuert_job (type, limit_key, (attempt = 0 AND status <> 'continued'), created_at)
    WHERE chain_status = 'open' AND limit_key IS NOT NULL;
CREATE INDEX queuert_job_later_ready ON queuert_job (type, created_at)
    WHERE status = 'ready' AND chain_index > 0 AND limit_key IS NOT NULL

-- name: add_event_log
-- From version 12 to 13: the event log. Its id distinguishes it from those of other files.
CREATE TABLE queuert_event (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    happened_at  INTEGER NOT NULL,
    kind         TEXT NOT NULL,
    status       TEXT NOT NULL,
    job_id       TEXT NOT NULL,
    chain_id     TEXT NOT NULL,
    chain_index  INTEGER NOT NULL,
    type         TEXT NOT NULL,
    chain_type   TEXT NOT NULL,
    attempt      INTEGER NOT NULL,
    scheduled_at INTEGER,
    started_at   INTEGER,
    worker       TEXT,
    error        TEXT,
    progress     TEXT
);
CREATE TABLE queuert_event_level (
    type  TEXT NOT NULL PRIMARY KEY,
    level TEXT NOT NULL CHECK (level IN ('all', 'terminal', 'off'))
) WITHOUT ROWID;
CREATE TABLE queuert_event_log (
    id          TEXT NOT NULL,
    level       TEXT NOT NULL DEFAULT 'all' CHECK (level IN ('all', 'terminal', 'off')),
    keep_days   INTEGER NOT NULL DEFAULT 14,
    dropped_seq INTEGER NOT NULL DEFAULT 0
);
INSERT INTO queuert_event_log (id) VALUES (lower(hex(randomblob(8))))

-- name: add_phases
-- From version 13 to 14: when the phases among the steps of a job began.
ALTER TABLE queuert_job_step ADD COLUMN started_at INTEGER

-- name: add_webhooks
-- From version 14 to 15: endpoints of webhooks, and what was sent to them.
CREATE TABLE queuert_webhook_record (
    kind TEXT NOT NULL,
    id   TEXT NOT NULL,
    tag  TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE TABLE queuert_webhook_attempt (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    endpoint_id TEXT NOT NULL,
    delivery_id TEXT NOT NULL,
    event_type  TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    status      INTEGER,
    error       TEXT,
    seconds     REAL NOT NULL,
    retry_in    REAL,
    response    TEXT
);
CREATE INDEX queuert_webhook_attempt_of_endpoint ON queuert_webhook_attempt (endpoint_id, number)

-- name: add_stale_at
-- From version 15 to 16: when retention marked a chain as stale.
ALTER TABLE queuert_job ADD COLUMN stale_at INTEGER;
DROP VIEW queuert_chain;
CREATE VIEW queuert_chain AS
SELECT root.id, root.type, root.chain_status AS status, root.input, tail.output, tail.error, tail.type AS tail_type,
    tail.id AS tail_id, root.created_at, root.chain_closed_at AS closed_at, root.expires_at, root.attributes,
    root.stale_at
FROM queuert_job AS root
JOIN queuert_job AS tail ON tail.chain_id = root.id
    AND tail.chain_index = (SELECT max(chain_index) FROM queuert_job AS last WHERE last.chain_id = root.id)
WHERE root.chain_index = 0

-- name: add_type_traits
-- From version 16 to 17: what is particular to job types, as the worker that started last has them.
CREATE TABLE queuert_type_trait (
    type                TEXT NOT NULL PRIMARY KEY,
    completed_by_client INTEGER NOT NULL,
    overdue_seconds     REAL,
    closes_with_parent  INTEGER NOT NULL
) WITHOUT ROWID
