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
    tail.id AS tail_id, root.created_at, root.chain_closed_at AS closed_at, root.expires_at, root.attributes
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
CREATE TABLE queuert_paused_type (type TEXT NOT NULL PRIMARY KEY, paused_at INTEGER NOT NULL, reason TEXT) WITHOUT ROWID;
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
-- Steps of jobs. They are deleted with their job.
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
-- Notifications for other processes; the latest few thousand are kept. Null keys stand for all keys.
CREATE TABLE queuert_notification (id INTEGER PRIMARY KEY AUTOINCREMENT, sender TEXT NOT NULL, topic TEXT NOT NULL, keys TEXT);
