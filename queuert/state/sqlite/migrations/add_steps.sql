-- From version 6 to 7: steps of jobs. Numbers of activity have one more count before the histograms, so those that are
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
